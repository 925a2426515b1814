"""Sets that come as arrays: Fashion-MNIST (IDX files) and scikit-learn's digits."""

import gzip
import hashlib
from pathlib import Path

import numpy as np
from PIL import Image

from harness.config import DataConfig
from harness.data.images import shrink
from harness.data.sources import Sample, Source, SourceSplit
from harness.data.sources.common import count_or_none, cut, png_sample, raw_folder
from harness.errors import DatasetError

DEBIAN_FASHION_MNIST = Path("/usr/share/datasets/fashion-mnist")
FASHION_CLASSES = [
    "T-shirt/top",
    "Trouser",
    "Pullover",
    "Dress",
    "Coat",
    "Sandal",
    "Shirt",
    "Sneaker",
    "Bag",
    "Ankle boot",
]
IDX_FILES = ("train-images-idx3-ubyte", "train-labels-idx1-ubyte", "t10k-images-idx3-ubyte", "t10k-labels-idx1-ubyte")
UNSIGNED_BYTES = bytes([0, 0, 8])  # how an IDX file of them begins


def array_split(
    images: np.ndarray, labels: np.ndarray, chosen: np.ndarray, prefix: str, size: int | None
) -> SourceSplit:
    """Images (N, H, W) uint8 at the positions `chosen`, `size` pixels square; keys name the place in the original."""

    def get(i: int) -> Sample:
        pixels = images[chosen[i]]
        if size is not None and size != len(pixels):
            pixels = np.asarray(shrink(Image.fromarray(pixels), size))
        return png_sample(f"{prefix}{chosen[i]:06d}", pixels, int(labels[chosen[i]]))

    return SourceSplit(len(chosen), get, lambda i: f"{prefix}{chosen[i]:06d}")


def open_fashion_mnist(cfg: DataConfig) -> Source:
    """Fashion-MNIST; validation is cut from its training images, its test images stay test.

    Raises DatasetError naming the three ways to get it when it is not to be had.
    """
    return open_idx(find_fashion_mnist(cfg), FASHION_CLASSES, "distinct photographs", cfg)


def open_mnist(cfg: DataConfig) -> Source:
    """MNIST; validation is cut from its training images, its test images stay test. Raises DatasetError."""
    folder = raw_folder(cfg)
    if not has_idx_files(folder):
        raise DatasetError(f"{folder}: not all of MNIST's IDX files: {', '.join(IDX_FILES)}")
    return open_idx(folder, [str(digit) for digit in range(10)], "distinct handwritten digits", cfg)


def open_idx(folder: Path, class_names: list[str], origins: str, cfg: DataConfig) -> Source:
    """A set in the four IDX files of MNIST. Raises DatasetError for files that do not belong together."""
    train_x, train_y, test_x, test_y = (read_idx(folder, name) for name in IDX_FILES)
    for images, labels in ((train_x, train_y), (test_x, test_y)):
        if images.ndim != 3 or labels.ndim != 1 or len(images) != len(labels):
            raise DatasetError(f"{folder}: {len(images)} images and {len(labels)} labels: not one set's")
        if labels.max(initial=0) >= len(class_names):
            raise DatasetError(f"{folder}: label {labels.max()}, the set has {len(class_names)} classes")
    val, train = cut(len(train_x), [count_or_none(cfg.val_samples, len(train_x), "data.val_samples")], cfg.seed)
    splits = {
        "train": array_split(train_x, train_y, train, "train", cfg.image_size),
        "val": array_split(train_x, train_y, val, "train", cfg.image_size),
        "test": array_split(test_x, test_y, np.arange(len(test_x)), "test", cfg.image_size),
    }
    return Source(
        class_names=class_names,
        splits={name: split for name, split in splits.items() if split.samples},
        fingerprint=hashlib.sha256(train_x.tobytes() + train_y.tobytes() + test_x.tobytes()).hexdigest(),
        notes={"origins": origins},
    )


def find_fashion_mnist(cfg: DataConfig) -> Path:
    """A folder with the four IDX files: the user's, Debian's, or torchvision's download."""
    if cfg.path is not None:
        folder = Path(cfg.path)
        if not has_idx_files(folder):
            raise DatasetError(f"data.path={folder}: not all of Fashion-MNIST's IDX files: {', '.join(IDX_FILES)}")
        return folder
    if has_idx_files(DEBIAN_FASHION_MNIST):
        return DEBIAN_FASHION_MNIST
    try:
        from torchvision.datasets import FashionMNIST

        root = Path.home() / ".cache" / "harness"
        FashionMNIST(str(root), train=True, download=True)
        return root / "FashionMNIST" / "raw"
    except (OSError, RuntimeError, ImportError) as error:
        raise DatasetError(
            "Fashion-MNIST is not here. Three ways to get it: name a folder with its IDX files (data.path=DIR), "
            "install Debian's package (apt-get install dataset-fashion-mnist), or let torchvision download it, which "
            f"failed just now ({str(error).splitlines()[0] if str(error) else type(error).__name__})"
        ) from error


def has_idx_files(folder: Path) -> bool:
    """Whether all four files are there, compressed or not."""
    return all((folder / name).exists() or (folder / f"{name}.gz").exists() for name in IDX_FILES)


def read_idx(folder: Path, name: str) -> np.ndarray:
    """An IDX file of unsigned bytes (format: http://yann.lecun.com/exdb/mnist), gzipped or not."""
    path = folder / name
    try:
        data = path.read_bytes() if path.exists() else gzip.decompress((folder / f"{name}.gz").read_bytes())
        if data[:3] != UNSIGNED_BYTES:
            raise ValueError("does not begin like one of unsigned bytes")
        dimensions = data[3]
        shape = [int.from_bytes(data[4 + 4 * i : 8 + 4 * i], "big") for i in range(dimensions)]
        return np.frombuffer(data, np.uint8, offset=4 + 4 * dimensions).reshape(shape)
    except (OSError, EOFError, IndexError, ValueError) as error:
        raise DatasetError(f"{path}: not a whole IDX file ({error})") from error


def open_digits(cfg: DataConfig) -> Source:
    """scikit-learn's 1,797 handwritten digits of 8 x 8 pixels, 0-16 scaled to 0-255, enlarged bilinearly.

    The package has no split of its own: a seeded half is train, the other half test.
    """
    from sklearn.datasets import load_digits

    digits = load_digits()
    images = np.round(digits.images * 255 / 16).astype(np.uint8)
    test, val, train = cut(
        len(images),
        [
            count_or_none(cfg.test_samples, len(images), "data.test_samples"),
            count_or_none(cfg.val_samples, len(images), "data.val_samples"),
        ],
        cfg.seed,
    )
    parts = {"train": train, "val": val, "test": test}
    return Source(
        class_names=[str(digit) for digit in range(10)],
        splits={
            name: array_split(images, digits.target, part, "digit", cfg.image_size)
            for name, part in parts.items()
            if len(part)
        },
        fingerprint=hashlib.sha256(images.tobytes()).hexdigest(),
        notes={"origins": "distinct handwritten digits"},
    )
