"""Precision and attention path of a run, by rule from device and model, never from a timing.

Both are part of a run's hash: the same plan must come out on a busy machine and on an idle one. The rule was
fixed once, from images/s of one thread in training (forward, backward, fused AdamW), torch 2.14:

| CPU, model | fp32 fused | fp32 unfused | bf16 fused | bf16 unfused |
|---|---|---|---|---|
| AVX2, vit_pocket (0.6 MFLOPs forward), batch 256 | 11,700 | 12,700 | 1,100 | 1,100 |
| AVX2, ViT of 50 tokens (28 px, patch 4, width 64, 6 layers) | 370 | 340 | | |
| AVX2, ViT of 197 tokens (28 px, patch 2, width 64, 3 layers) | 136 | 87 | | |
| AVX512-BF16, ViT of 50 tokens, 33 MFLOPs forward | 650-680 | | 585 | 1,460-1,490 |
| AVX512-BF16, under 1 MFLOP forward | as bf16 or faster | | | |

(The first three rows ran beside other jobs: best of 10 rounds in turn; their medians order the same way.)
So: emulated bf16 is ten times slower, fused bf16 attention is slow in its backward pass on a CPU, and fused
fp32 attention costs at most a tenth with few tokens and wins with many.
"""

from typing import Any

import torch

from harness.config import DeviceConfig, ModelConfig
from harness.errors import ConfigError
from harness.models.cost import Cost

BF16_MIN_FORWARD_MACS = 500_000  # 1 MFLOP

_CHOICES = {"precision": ("auto", "fp32", "bf16"), "attention": ("auto", "fused", "unfused")}


def cpu_has_native_bf16() -> bool:
    """Whether this CPU multiplies bfloat16 itself (AVX512-BF16 or AMX); False where torch cannot tell."""
    capabilities: dict[str, Any] = getattr(torch.cpu, "get_capabilities", dict)()
    return bool(capabilities.get("avx512_bf16") or capabilities.get("amx_bf16"))


def resolve(
    device: DeviceConfig, cost: Cost, cfg: ModelConfig, precision: str = "auto", attention: str = "auto"
) -> tuple[str, str]:
    """(precision, attention) with 'auto' replaced; other values pass.

    CUDA: bf16 autocast where the device has it, fused attention. CPU: fp32 and fused attention; bf16 and
    unfused attention where this CPU has native bf16 and a forward pass of the model is over 1 MFLOP.

    Raises:
        ConfigError: a value that is neither 'auto' nor known.
    """
    for field, value in (("precision", precision), ("attention", attention)):
        if value not in _CHOICES[field]:
            raise ConfigError(f"{field}={value!r} is unknown; use one of {', '.join(_CHOICES[field])}.")
    if precision == "auto":
        if device.kind == "cpu":
            fast = cost.forward_macs_per_image > BF16_MIN_FORWARD_MACS and cpu_has_native_bf16()
        else:
            fast = device.peak_flops_bf16 is not None
        precision = "bf16" if fast else "fp32"
    if attention == "auto":
        # A ResNet has none: one value for all, so that no setting without effect changes a hash.
        has_attention = cfg.timm or cfg.vit is not None
        unfused = device.kind == "cpu" and precision == "bf16" and has_attention
        attention = "unfused" if unfused else "fused"
    return precision, attention
