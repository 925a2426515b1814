"""Device-days from FLOPs, at a device's peak times its stated utilisation. Measured step times are better."""

import math
from functools import cache

from harness.config import DeviceConfig
from harness.errors import ConfigError
from harness.models.named import device_config

SECONDS_PER_DAY = 86_400


def check_device(device: DeviceConfig) -> None:
    """Raise ConfigError for numbers that no plan could be made of."""
    if not 0 < device.utilisation <= 1:
        raise ConfigError(f"device.utilisation={device.utilisation}: a share of the peak, above 0 and at most 1")
    for field in ("peak_flops_fp32", "peak_flops_tf32", "peak_flops_fp16", "peak_flops_bf16", "memory_bytes"):
        value = getattr(device, field)
        if value is not None and not 0 < value < math.inf:
            raise ConfigError(f"device.{field}={value}: a number above 0")
    if not 0 <= device.price_per_hour < math.inf:
        raise ConfigError(f"device.price_per_hour={device.price_per_hour}: 0 and above")


def sustained_flops(device: DeviceConfig, precision: str) -> float:
    """FLOP/s that training reaches on one device: peak of `precision` ('fp32' or 'bf16') times utilisation.

    Without a bf16 peak, bf16 is taken to run at the fp32 one.
    """
    peak = device.peak_flops_fp32
    if precision == "bf16" and device.peak_flops_bf16 is not None:
        peak = device.peak_flops_bf16
    return peak * device.utilisation


def device_days(flops: float, device: DeviceConfig, precision: str) -> float:
    """Days on one device for `flops` FLOPs of training."""
    return flops / sustained_flops(device, precision) / SECONDS_PER_DAY


def tpu_v3_core_days(flops: float) -> float:
    """TPUv3-core-days at the rate that the paper's own runs sustained (conf/device/tpu_v3_core.yaml)."""
    return device_days(flops, _tpu_v3_core(), "bf16")


@cache
def _tpu_v3_core() -> DeviceConfig:
    return device_config("tpu_v3_core")
