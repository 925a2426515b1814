"""Precision and attention path of a run: by rule from device and network, decided when the plan is made.

Never by a timing at run time, which would let two equal commands give different numbers. The rules and what they rest
on (training step = forward, backward, clip, fused AdamW; one thread, batch 128, torch 2.14):

- CUDA: bf16 autocast where the device has it (V100: fp32), fused attention.
- CPU, precision: bf16 pays only where the processor multiplies bf16 natively and the network is not tiny. With
  avx512-bf16 a ViT of 33 MFLOPs forward trains 2.2x faster in bf16 than in fp32, one of 0.6 MFLOPs no faster; without
  native bf16 it is emulated and slow.
- CPU, attention: unfused. In bf16 the backward pass of fused attention takes 64 % of a step (585 against 1,470
  images/s); in fp32 unfused is the faster one by 0-18 % (8,500 against 8,560 images/s for vit_pocket, 5,500 against
  5,790 at 17 tokens, 2,280 against 2,690 for a hybrid of 17 tokens). It loses with many tokens, which are no case for
  a CPU: 340 against 370 at 50 tokens (28 px, width 64, 6 layers), 87 against 136 at 197; `attention=fused` is there.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from harness.config import DeviceConfig
from harness.errors import ConfigError, near_matches
from harness.models.compute import Cost

PRECISIONS = ("auto", "fp32", "bf16")
ATTENTIONS = ("auto", "fused", "unfused")
SMALLEST_BF16_FORWARD_FLOPS = 1e6
NATIVE_BF16_FLAGS = ("avx512_bf16", "amx_bf16")


def resolve(device: DeviceConfig, cost: Cost, *, precision: str = "auto", attention: str = "auto") -> tuple[str, str]:
    """('fp32' | 'bf16', 'fused' | 'unfused') for a network of `cost` on `device`; 'auto' asks the rules above.

    Raises ConfigError for an unknown value.
    """
    for field, value, known in (("precision", precision, PRECISIONS), ("attention", attention, ATTENTIONS)):
        if value not in known:
            raise ConfigError(f"{field}={value}.{near_matches(value, known)}")
    on_cpu = device.kind == "cpu"
    if precision == "auto":
        large = 2 * cost.forward_macs_per_image >= SMALLEST_BF16_FORWARD_FLOPS
        fast = large and cpu_has_native_bf16() if on_cpu else device.peak_flops_bf16 is not None
        precision = "bf16" if fast else "fp32"
    if attention == "auto":
        attention = "unfused" if on_cpu else "fused"
    return precision, attention


def cpu_has_native_bf16(cpuinfo: Path = Path("/proc/cpuinfo")) -> bool:
    """Whether the processor says that it multiplies bf16; False where it cannot be asked."""
    try:
        text = cpuinfo.read_text()
    except OSError:
        return False
    flags = next((line for line in text.splitlines() if line.startswith("flags")), "").split()
    return any(flag in flags for flag in NATIVE_BF16_FLAGS)


@contextmanager
def attention_path(attention: str) -> Iterator[None]:
    """Networks built inside use this attention path; timm's global switch is put back afterwards."""
    from timm.layers import set_fused_attn, use_fused_attn  # seconds to import, and plans need the rules alone

    before = use_fused_attn()
    set_fused_attn(attention == "fused")
    try:
        yield
    finally:
        set_fused_attn(bool(before))
