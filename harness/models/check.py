"""What cannot be built, said before anything is built. Pure functions of the configuration."""

from harness.config import ModelConfig, ResNetConfig, ViTConfig
from harness.errors import ConfigError, near_matches

_CHOICES = {
    "stem": ("fixed", "same", "small"),
    "block": ("bottleneck", "basic"),
    "activation": ("gelu", "gelu_tanh"),
    "init": ("paper", "timm"),
    "head": ("linear", "hidden_tanh"),
}


def total_stride(cfg: ResNetConfig) -> int:
    """Image pixels a pixel of the ResNet's last feature map."""
    stem = cfg.stem_stride if cfg.stem == "small" else 4
    return stem * 2 ** (len(cfg.layers) - 1)


def check_model(cfg: ModelConfig) -> None:
    """Raise ConfigError, naming field and fix, when `cfg` cannot be built."""
    if cfg.timm:
        _check_timm(cfg)
        return
    if cfg.vit is None and cfg.resnet is None:
        raise ConfigError(f"model {cfg.name}: give `vit` (a ViT), `resnet` (a ResNet) or both (a hybrid).")
    if cfg.image_size < 1:
        raise ConfigError(f"model {cfg.name}: image_size={cfg.image_size} must be at least 1 pixel.")
    _check_choice(cfg.name, "head", cfg.head)
    if cfg.head == "hidden_tanh" and cfg.vit is None:
        raise ConfigError(
            f"model {cfg.name}: head=hidden_tanh is the ViT's pre-training head; a ResNet takes head=linear."
        )
    if cfg.resnet is not None:
        _check_resnet(cfg.name, cfg.resnet)
    if cfg.vit is not None:
        _check_vit(cfg.name, cfg.image_size, cfg.vit, cfg.resnet)


def _check_choice(name: str, field: str, value: str) -> None:
    if value not in _CHOICES[field]:
        raise ConfigError(f"model {name}: {field}={value!r} is unknown.{near_matches(value, _CHOICES[field])}")


def _check_vit(name: str, image_size: int, vit: ViTConfig, resnet: ResNetConfig | None) -> None:
    _check_choice(name, "activation", vit.activation)
    _check_choice(name, "init", vit.init)
    if min(vit.patch_size, vit.width, vit.depth, vit.heads) < 1:
        raise ConfigError(f"model {name}: vit.patch_size, width, depth and heads must be at least 1.")
    if vit.width % vit.heads:
        raise ConfigError(f"model {name}: vit.width={vit.width} is not divisible by vit.heads={vit.heads}.")
    if not 0 <= vit.dropout < 1:
        raise ConfigError(f"model {name}: vit.dropout={vit.dropout} is not in [0, 1).")
    if resnet is None:
        if image_size % vit.patch_size:
            below = image_size // vit.patch_size * vit.patch_size
            near = f"{below} and {below + vit.patch_size}" if below else f"{vit.patch_size}"
            raise ConfigError(
                f"model {name}: image_size={image_size} is not divisible by vit.patch_size={vit.patch_size} "
                f"(near: {near})."
            )
        return
    if vit.patch_size != 1:
        raise ConfigError(
            f"model {name}: a hybrid has 1x1 patches of the ResNet's map, vit.patch_size={vit.patch_size}."
        )
    stride = total_stride(resnet)
    if image_size % stride:
        raise ConfigError(
            f"model {name}: image_size={image_size} is not divisible by {stride}, the stride of its ResNet; "
            "choose fewer stages or another size."
        )


def _check_resnet(name: str, cfg: ResNetConfig) -> None:
    _check_choice(name, "stem", cfg.stem)
    _check_choice(name, "block", cfg.block)
    if len(cfg.layers) != len(cfg.channels) or not cfg.layers:
        raise ConfigError(
            f"model {name}: resnet.layers={list(cfg.layers)} and resnet.channels={list(cfg.channels)} "
            "must have one number a stage each."
        )
    if min(*cfg.layers, *cfg.channels, cfg.stem_channels, cfg.stem_stride, cfg.groups) < 1:
        raise ConfigError(f"model {name}: resnet.layers, channels, stem_channels, stem_stride and groups start at 1.")
    if not cfg.preactivation and cfg.block == "basic":
        raise ConfigError(f"model {name}: resnet.block=basic needs resnet.preactivation=true (timm has no other).")
    squeeze = 1 if cfg.block == "basic" else 4
    widths = {"stem_channels": cfg.stem_channels} | {f"channels[{i}]": c for i, c in enumerate(cfg.channels)}
    for field, width in widths.items():
        inner = width if field == "stem_channels" else width // squeeze
        # timm rounds to multiples of 8 without a word; the file would then not say what is trained
        if inner % 8 or (field != "stem_channels" and width % (8 * squeeze)):
            multiple = 8 if field == "stem_channels" else 8 * squeeze
            raise ConfigError(
                f"model {name}: resnet.{field}={width} is not a multiple of {multiple} (timm would round it)."
            )
        if inner % cfg.groups:
            what = "" if inner == width else f" (its bottleneck has {inner})"
            raise ConfigError(
                f"model {name}: resnet.{field}={width}{what} is not divisible by "
                f"resnet.groups={cfg.groups}, the groups of GroupNorm."
            )


def _check_timm(cfg: ModelConfig) -> None:
    import timm  # slow to import, and only this branch needs it

    if cfg.vit is not None or cfg.resnet is not None:
        raise ConfigError(f"model {cfg.name}: timm=true takes the architecture from timm; leave vit and resnet null.")
    if not timm.is_model(cfg.name):
        raise ConfigError(f"model.name={cfg.name!r} is no timm model.{near_matches(cfg.name, timm.list_models())}")
