"""Precision and attention path of a run, by rule from device and model, never from a timing: both are part of
the run's hash, so the same plan must come out on a busy machine and on an idle one.
"""

import torch

from harness.config import DeviceConfig, ModelConfig
from harness.errors import ConfigError
from harness.models.compute import Cost

BF16_MIN_FORWARD_MACS = (
    500_000  # 1 MFLOP; below it fp32 is as fast on a CPU (measured, ViT of width under 64)
)


def cpu_has_native_bf16() -> bool:
    """Whether this CPU multiplies bfloat16 itself (AVX512-BF16 or AMX); emulated, it is several times slower."""
    capabilities = torch.cpu.get_capabilities()
    return any(capabilities.get(name, False) for name in ("avx512_bf16", "amx_bf16", "amx_tile", "bf16"))


def resolve(
    device: DeviceConfig, cost: Cost, cfg: ModelConfig, precision: str = "auto", attention: str = "auto"
) -> tuple[str, str]:
    """(precision, attention) with 'auto' replaced.

    CUDA: bf16 autocast, fused attention. CPU: fp32 and fused attention, except bf16 with unfused attention where
    the CPU has native bf16 and a forward pass is over 1 MFLOP.
    """
    for field, value, known in (
        ("precision", precision, ("auto", "fp32", "bf16")),
        ("attention", attention, ("auto", "fused", "unfused")),
    ):
        if value not in known:
            raise ConfigError(f"{field}={value!r} is unknown; use one of {', '.join(known)}.")
    if precision == "auto":
        fast = device.kind != "cpu" or (
            cost.forward_macs_per_image > BF16_MIN_FORWARD_MACS and cpu_has_native_bf16()
        )
        precision = "bf16" if fast else "fp32"
    if attention == "auto":
        attention = "unfused" if device.kind == "cpu" and precision == "bf16" else "fused"
    return precision, attention
