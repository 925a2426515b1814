"""A second count of parameters, MACs and training FLOPs by formulas, sharing no code with the first.

It is there to be compared: `harness.models.compute` runs the real module, this only reads the configuration.
Notation: width D, tokens N with the class token, MLP width M, image channels C, classes K.
"""

from typing import NamedTuple

from harness.config import ModelConfig, ResNetConfig, ViTConfig
from harness.errors import ConfigError


class ClosedForm(NamedTuple):
    """Of one image; MACs as executed, padding included."""

    parameters: int
    forward_macs_per_image: int
    training_flops_per_image: int


class _Tally:
    """Adds up layers; a layer whose input is the image has no gradient with respect to its input."""

    def __init__(self) -> None:
        self.parameters = 0
        self.macs = 0
        self.first_layer_macs = 0

    def dense(self, inputs: int, outputs: int, tokens: int = 1) -> None:
        self.parameters += inputs * outputs + outputs
        self.macs += tokens * inputs * outputs

    def convolution(self, inputs: int, outputs: int, kernel: int, size: int, first: bool = False) -> None:
        """Without bias, on a map of size x size outputs."""
        macs = kernel**2 * inputs * outputs * size**2
        self.parameters += kernel**2 * inputs * outputs
        self.macs += macs
        self.first_layer_macs += macs if first else 0

    def norm(self, channels: int) -> None:
        self.parameters += 2 * channels

    def total(self) -> ClosedForm:
        return ClosedForm(self.parameters, self.macs, 2 * (3 * self.macs - self.first_layer_macs))


def closed_form(cfg: ModelConfig, num_classes: int, channels: int) -> ClosedForm:
    """Count `cfg` by formula; the arguments are those of `harness.models.compute.count`.

    Raises:
        ConfigError: a model of timm's, whose architecture the configuration does not hold.
    """
    if cfg.timm:
        raise ConfigError(f"model.name={cfg.name}: there is no closed formula for a timm model.")
    tally = _Tally()
    features, size = channels, cfg.image_size
    if cfg.resnet is not None:
        features, size = _resnet(tally, cfg.resnet, channels, cfg.image_size)
    if cfg.vit is not None:
        _vit(tally, cfg.vit, features, size, first=cfg.resnet is None)
        features = cfg.vit.width
    if num_classes:
        if cfg.head == "hidden_tanh":
            tally.dense(features, features)
        tally.dense(features, num_classes)
    return tally.total()


def _vit(tally: _Tally, vit: ViTConfig, features: int, size: int, first: bool) -> None:
    """12 N D^2 + 2 N^2 D MACs a block at the usual M = 4 D."""
    width, hidden = vit.width, int(vit.width * vit.mlp_ratio)
    grid = size // vit.patch_size
    tokens = grid**2 + 1
    tally.convolution(features, width, vit.patch_size, grid, first=first)
    tally.parameters += width + width + tokens * width  # bias, class token, position embedding
    for _ in range(vit.depth):
        tally.norm(width)
        tally.dense(width, 3 * width, tokens)
        tally.macs += 2 * tokens**2 * width  # query-key and attention-value products, over all heads
        tally.dense(width, width, tokens)
        tally.norm(width)
        tally.dense(width, hidden, tokens)
        tally.dense(hidden, width, tokens)
    tally.norm(width)


def _resnet(tally: _Tally, cfg: ResNetConfig, channels: int, size: int) -> tuple[int, int]:
    """Returns channels and size of the last map. Stride 2 halves, rounding up, under every padding here."""
    if cfg.stem == "small":
        size = -(-size // cfg.stem_stride)
        tally.convolution(channels, cfg.stem_channels, 3, size, first=True)
    else:
        size = -(-size // 2)
        tally.convolution(channels, cfg.stem_channels, 7, size, first=True)
        size = -(-size // 2)  # pooling
    if not cfg.preactivation:
        tally.norm(cfg.stem_channels)
    inputs = cfg.stem_channels
    for stage, (blocks, outputs) in enumerate(zip(cfg.layers, cfg.channels, strict=True)):
        for block in range(blocks):
            stride = 2 if stage and not block else 1
            size = _block(tally, cfg, inputs, outputs, size, stride, first=not block)
            inputs = outputs
    if cfg.preactivation:
        tally.norm(inputs)
    return inputs, size


def _block(tally: _Tally, cfg: ResNetConfig, inputs: int, outputs: int, size: int, stride: int, first: bool) -> int:
    """One residual block, returns the size of its output; bottlenecks carry the stride on their 3x3."""
    basic = cfg.block == "basic"
    middle = outputs if basic else outputs // 4
    after = -(-size // stride)
    if first and not (basic and stride == 1 and inputs == outputs):
        tally.convolution(inputs, outputs, 1, after)
        if not cfg.preactivation:
            tally.norm(outputs)
    if basic:
        tally.convolution(inputs, middle, 3, after)
        tally.convolution(middle, outputs, 3, after)
        norms = [inputs, middle]
    else:
        tally.convolution(inputs, middle, 1, size)
        tally.convolution(middle, middle, 3, after)
        tally.convolution(middle, outputs, 1, after)
        norms = [inputs, middle, middle] if cfg.preactivation else [middle, middle, outputs]
    for width in norms:
        tally.norm(width)
    return after
