"""Device-days from FLOPs, at a device's peak times its stated utilisation. Measured step times are better."""

from functools import cache

from harness.config import DeviceConfig
from harness.models.named import device_config

SECONDS_PER_DAY = 86_400


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
