"""Sets that are not here: declared with sizes and classes alone, so that studies on them can be planned.

`source: declared` in conf/data; nothing can be read from one, and a run refuses to start on it.
"""

import hashlib
from pathlib import Path

from harness.config import DataConfig
from harness.data.manifest import Dataset, Split, dataset_folder, open_dataset
from harness.data.subset import parse_size
from harness.errors import ConfigError, DatasetError

SOURCE = "declared"


def open_or_declare(cfg: DataConfig, root: Path) -> Dataset:
    """The packed set, or for a declared one that is not packed its sizes and classes."""
    folder = dataset_folder(cfg, root)
    if cfg.source != SOURCE or (folder / "manifest.json").exists():
        return open_dataset(folder, allow_shell=cfg.allow_shell)
    if cfg.samples is None or cfg.num_classes is None:
        raise ConfigError(f"data={cfg.name}: a declared set needs data.samples and data.num_classes")
    sizes = {"train": cfg.samples, "val": cfg.val_samples, "test": cfg.test_samples}
    return Dataset(
        folder=folder,
        name=cfg.name,
        title=cfg.title,
        licence=cfg.licence,
        class_names=[str(number) for number in range(cfg.num_classes)],
        channels=cfg.channels,
        image_size=cfg.image_size,
        digest=hashlib.sha256(f"declared/{cfg.name}/{sizes}/{cfg.num_classes}".encode()).hexdigest(),
        splits={name: Split(parse_size(size, None), [], []) for name, size in sizes.items()},
        notes={"declared": True},
    )


def refuse_declared(dataset: Dataset) -> None:
    """Raise DatasetError for a set that is declared and not here."""
    if dataset.notes.get("declared"):
        raise DatasetError(
            f"{dataset.name} is declared, not here: plans work, runs do not. Pack it as {dataset.folder} "
            f"(harness data pack folder data.path=DIR data.name={dataset.name}), or name another set with data=NAME"
        )
