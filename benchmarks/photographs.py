"""JPEGs of about 500 x 400 pixels, made from the photographs that scikit-learn, scikit-image and matplotlib ship."""

import io
from pathlib import Path

import matplotlib
import numpy as np
import skimage
from PIL import Image
from sklearn.datasets import load_sample_images

FROM_SKIMAGE = (
    "astronaut.png",
    "chelsea.png",
    "coffee.png",
    "hubble_deep_field.jpg",
    "ihc.png",
    "motorcycle_left.png",
    "motorcycle_right.png",
    "retina.jpg",
    "rocket.jpg",
)


def originals() -> list[Image.Image]:
    """The photographs, whole, RGB."""
    folder = Path(skimage.__file__).parent / "data"
    hopper = Path(matplotlib.get_data_path()) / "sample_data" / "grace_hopper.jpg"
    pictures = [Image.open(path).convert("RGB") for path in [*(folder / name for name in FROM_SKIMAGE), hopper]]
    return pictures + [Image.fromarray(picture) for picture in load_sample_images().images]


def write_jpegs(folder: Path, count: int, seed: int = 0) -> None:
    """`count` files FOLDER/CLASS/NUMBER.jpg, a class an original: windows of any scale, quality 75 to 95."""
    rng = np.random.default_rng(seed)
    pictures = originals()
    for number in range(count):
        which = number % len(pictures)
        path = folder / f"{which:02d}" / f"{number:06d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(window_of(pictures[which], rng))


def window_of(picture: Image.Image, rng: np.random.Generator) -> bytes:
    """One window, about 500 x 400, as JPEG bytes."""
    size = (int(rng.integers(440, 561)), int(rng.integers(350, 451)))
    fit = min(picture.width / size[0], picture.height / size[1])
    share = fit * rng.uniform(0.5, 1.0)
    width, height = int(size[0] * share), int(size[1] * share)
    left = int(rng.integers(0, picture.width - width + 1))
    top = int(rng.integers(0, picture.height - height + 1))
    resized = picture.resize(size, Image.Resampling.BICUBIC, box=(left, top, left + width, top + height))
    buffer = io.BytesIO()
    resized.save(buffer, "JPEG", quality=int(rng.integers(75, 96)))
    return buffer.getvalue()
