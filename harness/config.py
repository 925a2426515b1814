"""The typed schema of conf/: an unknown key or a value of the wrong type is an error before anything starts.

One dataclass a Hydra group, one field an option; the YAML files hold the values and their sources.
Counts of images are strings so that they read like the paper's: '9M', '300k', '1234', '10%'
(harness.data.subset.parse_size).
"""

import hashlib
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any

from hydra.core.config_store import ConfigStore
from omegaconf import MISSING


def added(default: Any) -> Any:
    """A field younger than published results: it enters a hash only where it differs from its default (`stated`)."""
    return field(default=default, metadata={"added": True})


def stated(config: Any) -> dict[str, Any]:
    """A config as a dict to hash: `added` fields that hold their default are left out, so that old runs keep theirs."""
    values: dict[str, Any] = {}
    for item in fields(config):
        value = getattr(config, item.name)
        if item.metadata.get("added") and value == item.default:
            continue
        values[item.name] = stated(value) if is_dataclass(value) else value
    return values


@dataclass
class DataConfig:
    """conf/data/: where images come from and how they are packed."""

    name: str = MISSING  # also the folder below the data root
    source: str = MISSING  # which reader in harness/data/sources
    title: str = ""  # one line for tables and the report
    licence: str = ""
    origin: str = ""  # who made the images, where they come from
    channels: int = 3  # 1 grey, 3 RGB, as stored
    image_size: int | None = None  # short side in pixels as stored; null keeps the images as they are
    samples: str | None = None  # training images; generated sets only
    val_samples: str = "5%"  # cut from the training distribution
    test_samples: str = "5%"  # where the source has no test split of its own
    path: str | None = None  # a folder of the user's with the raw files
    fonts: str | None = None  # glyphs: a folder of font files; null = the fonts that matplotlib ships
    fonts_left_out: list[str] | None = added(None)  # glyphs: folders, or how files begin, of faces to leave out
    font_family: str = added("name")  # glyphs: a design is the first word of the family's name, or the font's 'folder'
    characters: str | None = None  # glyphs: 'latin62' or the characters themselves; null = all that the faces share
    min_characters: int = 400  # glyphs: faces with fewer letters and digits are left out
    seed: int = 0  # seed of the one global shuffle (and of generated images)
    shard_samples: int = 10_000  # images a shard
    max_dropped: float = 0.01  # share of images that may be unusable before packing fails
    num_classes: int | None = None  # declared sets only: the others bring their classes
    codec: str = added("auto")  # keep | png | jpeg | webp; auto keeps bytes where image_size is null, else png up to 64
    # pixels and jpeg above
    quality: int = added(95)  # of jpeg and webp, 1 to 100
    verify: str = added("pixels")  # pixels: every image is decoded while it is packed; headers: kept bytes are not
    max_pixels: int = added(100_000_000)  # larger images are dropped undecoded
    group_by: str | None = added(None)  # folder, list: regular expression on an image's path that gives its group
    val_within_groups: bool = added(False)  # only test holds whole groups; val has other images of training's groups
    image_column: str | None = added(None)  # list: the path; parquet: the image; null finds it
    label_column: str | None = added(None)  # list, parquet: the class; null finds it
    group_column: str | None = added(None)  # list, parquet: images that belong together; null finds `group`
    classes: list[str] | None = added(None)  # folder: only these class folders
    torchvision: str | None = added(None)  # torchvision: name of the class in torchvision.datasets
    fetch: str = added("")  # where `harness data fetch` gets it: npm:, apt:, pip: or torchvision:, see data/fetch.py
    raw: str = added("")  # where the images lie below the fetched folder
    allow_shell: bool = added(False)  # whether shards may be behind `pipe:` URLs: reading one runs its command
    pack_on_demand: bool = False  # small and needs no download: packed by the first command that needs it


@dataclass
class ViTConfig:
    """A Vision Transformer (arXiv 2010.11929 §3.1); as part of a hybrid, what follows the ResNet stem."""

    patch_size: int = MISSING
    width: int = MISSING
    depth: int = MISSING
    heads: int = MISSING
    mlp_ratio: float = 4.0
    activation: str = "gelu"  # the exact form; 'gelu_tanh' is flax's, as the authors trained
    dropout: float = 0.0  # after the position embedding and every dense layer except qkv
    init: str = "paper"  # the authors' initial weights; 'timm' for timm's own


@dataclass
class ResNetConfig:
    """A BiT ResNet (arXiv 1912.11370): pre-activation, GroupNorm, weight standardisation."""

    layers: list[int] = MISSING  # blocks a stage
    channels: list[int] = MISSING  # output channels a stage
    stem_channels: int = 64
    stem: str = "fixed"  # timm's BiT stem (7x7 stride 2, pool); 'same': with SAME padding throughout, as the
    # released hybrids; 'small': one 3x3 convolution of stem_stride
    stem_stride: int = 2  # of the 'small' stem
    block: str = "bottleneck"  # or 'basic'
    groups: int = 32  # of GroupNorm
    preactivation: bool = True  # false: the post-activation ResNet of the released hybrids


@dataclass
class ModelConfig:
    """conf/model/: `vit` alone is a ViT, `resnet` alone a ResNet, both a hybrid."""

    name: str = MISSING
    family: str = MISSING  # ViT | ResNet | hybrid | any label: the line it belongs to in every figure
    image_size: int = 224
    vit: ViTConfig | None = None
    resnet: ResNetConfig | None = None
    timm: bool = False  # `name` is one of timm's models; vit and resnet stay null
    head: str = "linear"  # or 'hidden_tanh', the paper's pre-training head; the last layer starts at zero
    head_bias: float = 0.0  # -10 for sigmoid losses


@dataclass
class RecipeConfig:
    """conf/recipe/: every hyper-parameter of training. A recipe's name is its version."""

    name: str = MISSING
    source: str = MISSING  # where the values come from
    samples_seen: str = MISSING  # the horizon of every run, whatever the subset: equal steps at every size
    batch_size: int = MISSING
    optimizer: str = (
        "adamw"  # adamw | adam (decay coupled: added to the gradient) | sgd (Nesterov-free momentum, coupled)
    )
    learning_rate: float = MISSING
    weight_decay: float = MISSING  # on matrices only, whichever the optimiser
    beta1: float = 0.9  # sgd: the momentum
    beta2: float = 0.999
    schedule: str = "cosine"  # cosine | linear | constant | rsqrt, after warm-up
    warmup: str = "5%"  # of the horizon, or a number of images
    timescale: str = added("")  # rsqrt: rate / sqrt(1 + images since warm-up / timescale); images, or % of the horizon
    cooldown: str = added("0")  # images, or % of the horizon, over which the rate goes linearly to 0 at the end
    clip_norm: float | None = 1.0  # global gradient norm
    label_smoothing: float = 0.0
    loss: str = added("softmax")  # softmax cross-entropy, or 'sigmoid': summed over classes, mean over the batch
    dropout: float = added(0.0)  # of a ViT, and of the ViT in a hybrid: after the position embedding and dense layers
    stochastic_depth: float = added(0.0)  # chance to skip the last residual block; linear from 0 at the first
    random_resized_crop: bool = added(False)
    min_crop_area: float = added(0.05)  # share of the picture that a random crop covers at least
    flip: bool = added(False)  # left to right, every second time
    polyak: float = added(0.0)  # decay of an average of the weights, which is then what is evaluated and kept; 0 = none
    best_by: str = added("top1")  # top1 | loss | mean_per_class: which validation result makes a checkpoint the best
    evaluations: int = 10  # evenly spaced along the horizon; the last one is at its end
    train_eval_samples: int = 2000  # the fixed sample of the training subset on which train top-1 is measured


@dataclass
class FinetuneConfig:
    """Fine-tuning by the paper (arXiv 2010.11929 §3.2, B.1.1, Table 4): SGD, cosine, no decay, a head from zero."""

    source: str = MISSING  # where the values come from
    steps: int = MISSING
    learning_rates: list[float] = MISSING  # the one with the best dev result is taken; the test split has no say
    dev_split: str = "2%"  # of the training images, where the set has no validation split of its own
    seeds: list[int] = field(default_factory=lambda: [0, 1, 2])  # of order and augmentation
    batch_size: int = 512
    momentum: float = 0.9
    clip_norm: float | None = 1.0
    warmup_steps: int = 0
    dropout: float = 0.0
    polyak: float = 0.0  # the paper: 0.9999 on ImageNet for Table 2
    image_size: int | None = None  # pixels; null = the model's own
    image_sizes: dict[str, int] = field(default_factory=dict)  # by model name, where one differs: {vit_h14: 518}
    random_resized_crop: bool = True
    min_crop_area: float = 0.05
    flip: bool = True


@dataclass
class TransferConfig:
    """conf/transfer/: a target, and one protocol of three.

    fewshot: closed form on a few images a class (big_vision's evaluators/fewshot_lsr.py); probe: the same on the whole
    training split; finetune: the whole network is trained.
    """

    name: str = MISSING
    data: str = MISSING  # a name in conf/data, or of a packed set below the data root
    shots: list[int] = field(default_factory=lambda: [5])
    support_seeds: list[int] = field(default_factory=lambda: [0, 1, 2])
    l2: float = 1024.0  # λ, not scaled by the number of images
    bias: float = 100.0  # the constant column appended after standardisation
    baselines: bool = True  # also raw pixels (not for fine-tuning) and the untrained network
    protocol: str = added("fewshot")  # fewshot | probe | finetune
    l2s: list[float] | None = added(None)  # choose λ among these on a held-out part of the support set
    held_out: float = added(0.2)  # its share
    image_size: int | None = added(None)  # of few-shot and probe features, pixels; null = the model's own
    metrics: list[str] | None = added(None)  # top1, top5, mean_per_class, real; null = top1
    real_labels: str | None = added(None)  # real.json of ImageNet-ReaL
    shared_images: str = added("refuse")  # or 'train': the target's training images may be among those of pre-training
    finetune: FinetuneConfig | None = added(None)


UNREAD_FIELDS = {  # what a protocol does not read is no part of its hash
    "fewshot": {"finetune"},
    "probe": {"finetune", "shots", "support_seeds"},
    "finetune": {"shots", "support_seeds", "l2", "bias", "l2s", "held_out", "image_size"},
}


def transfer_identity(config: TransferConfig) -> dict[str, Any]:
    """The fields of a target and protocol that change its result."""
    unread = UNREAD_FIELDS.get(config.protocol, set()) | {"real_labels"}
    identity = {name: value for name, value in stated(config).items() if name not in unread}
    if (config.metrics or ["top1"]) == ["top1"]:
        identity.pop("metrics", None)  # as null, however it is written
    if config.real_labels and (path := Path(config.real_labels).expanduser()).is_file():  # its content
        identity["real_labels_sha256"] = hashlib.sha256(path.read_bytes()).hexdigest()
    return identity


def transfer_name(config: TransferConfig) -> str:
    """`digits`, `digits_probe`, `digits_finetune`: the readable part of a transfer file's name."""
    return config.name if config.protocol == "fewshot" else f"{config.name}_{config.protocol}"


@dataclass
class DeviceConfig:
    """conf/device/: what a run is trained on, for the plan and for the precision rule."""

    name: str = MISSING
    kind: str = MISSING  # cpu | cuda | tpu (plans only)
    peak_flops_fp32: float = MISSING  # dense FLOP/s of one device
    peak_flops_tf32: float | None = None
    peak_flops_fp16: float | None = None
    peak_flops_bf16: float | None = None
    utilisation: float = MISSING  # stated share of the peak that training reaches, used where nothing is measured
    memory_bytes: float | None = None
    price_per_hour: float = 0.0  # the user's number
    currency: str = "USD"
    source: str = ""


@dataclass
class LauncherConfig:
    """conf/launcher/: how a study's runs are started. Of all this only `threads` enters a run's hash."""

    name: str = "local"
    kind: str = "local"  # local: processes of this machine | slurm: job arrays through sbatch
    threads: int = 1  # a process: part of the hash, since it changes the order of float sums
    processes: int = 1  # a node; more than one are started by torchrun, each with a GPU of its own where there are GPUs
    max_failures_per_run: int = 3  # a run that failed so often is not tried again unless `--only failed` asks for it
    run_memory_bytes: float | None = None  # host memory of a run; null = from the plan
    poll_seconds: float = 0.5
    # local
    slots: int | None = None  # runs side by side; null = so that every thread has a core
    runs_per_gpu: int = 1  # small runs may share a GPU
    memory_bytes: float | None = None  # of all runs together; null = nine tenths of the machine's
    # slurm
    nodes: int = 1  # a run
    partition: str | None = None
    account: str | None = None
    time_minutes: int | None = None  # a job; null = twice the plan's device time and ten minutes
    max_time_minutes: int = 1440  # no job asks for more; a longer run goes on in the same job, requeued
    signal_seconds: int = 120  # before the limit the run is told to make a checkpoint and end
    transfer_apart: bool = False  # transfer in jobs of their own, each after its run's training
    sbatch: list[str] = field(default_factory=list)  # further options of sbatch: '--qos=long', '--exclude=n7'
    setup: list[str] = field(default_factory=list)  # shell lines before a run: 'module load cuda'


@dataclass
class LoopConfig:
    """How training runs on its machine. None of it is hashed: like devices and ranks it moves float sums at most."""

    micro_batch: int | None = None  # images of a device at once; null = as many as one probe finds room for
    compile: bool = False
    channels_last: bool = False
    activation_checkpointing: bool = False  # compute activations again in the backward pass: less memory, slower
    workers: int = 0  # decoding processes of each rank
    checkpoint_seconds: float = 600.0  # between checkpoints, apart from those at evaluations
    stop_signals: list[str] = field(default_factory=lambda: ["SIGTERM", "SIGUSR1"])  # make a checkpoint, then exit 85
    rank_timeout_seconds: float = 600.0  # a rank that is silent for so long ends the others


@dataclass
class TrackerConfig:
    """conf/tracker/: where metrics.jsonl is mirrored to."""

    name: str = "none"  # none | wandb
    project: str = "harness"
    entity: str | None = None
    mode: str = "auto"  # online | offline; auto = online where there is a key


@dataclass
class BudgetConfig:
    """What `harness run` may spend on the runs that are not finished; it refuses before the first step."""

    exaflops: float | None = None
    device_days: float | None = None


@dataclass
class TrainConfig:
    """One cell of a study: everything that `harness train` needs."""

    data: DataConfig = field(default_factory=DataConfig)
    model: ModelConfig = field(default_factory=ModelConfig)
    recipe: RecipeConfig = field(default_factory=RecipeConfig)
    transfer: TransferConfig = field(default_factory=TransferConfig)
    device: DeviceConfig = field(default_factory=DeviceConfig)
    launcher: LauncherConfig = field(default_factory=LauncherConfig)
    loop: LoopConfig = field(default_factory=LoopConfig)
    tracker: TrackerConfig = field(default_factory=TrackerConfig)
    budget: BudgetConfig = field(default_factory=BudgetConfig)
    subset: str = MISSING  # size of the nested training subset
    draw: int = 0  # which window of that size
    seed: int = 0  # initialisation, order, dropout
    order: str = "global"  # or 'block': a few shards at a time, for shards read over a network
    precision: str = "auto"  # fp32 | bf16; auto = by rule (harness.models.precision)
    attention: str = "auto"  # fused | unfused; auto = by rule
    convention: str = "executed"  # of counting FLOPs; 'paper' leaves out multiplications with zero padding
    patience: int = 0  # evaluations without a better one after which training ends; 0 = never; no study may
    study: str = "single"  # name of the study that this run belongs to
    keep: str = "best"  # of a finished run's checkpoints: 'best' alone, or 'all'


_GROUPS: dict[str, Any] = {
    "data": DataConfig,
    "model": ModelConfig,
    "recipe": RecipeConfig,
    "transfer": TransferConfig,
    "device": DeviceConfig,
    "launcher": LauncherConfig,
    "tracker": TrackerConfig,
}


def register_schema() -> None:
    """Put the schema into Hydra's ConfigStore: `schema` for train.yaml, `GROUP/schema` for each group."""
    store = ConfigStore.instance()
    store.store(name="schema", node=TrainConfig)
    for group, node in _GROUPS.items():
        store.store(group=group, name="schema", node=node)
