"""What is in one shard that someone else packed: every image with its label, or why it cannot be used."""

import hashlib
import json
import re
import tarfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

import numpy as np

from harness.data.images import BadImageError, read_image
from harness.data.manifest import INDEX
from harness.errors import DatasetError

IMAGE = re.compile(r"(?i)(jpe?g|png|webp|gif|bmp|tiff?|ppm|pgm)")
LABELS = ("cls", "label")  # where a label is looked for when the user does not say
NO_LABELS = "none"  # what the user says where there are none
UNLABELLED = "unlabelled"  # the one class then
SIDE_FILES = ("._", ".DS_Store")  # of macOS


class Member(NamedTuple):
    """Where a file of a shard lies."""

    offset: int
    size: int


class ShardIndex(NamedTuple):
    """A foreign shard, read once."""

    rows: np.ndarray  # INDEX; `label` numbers `labels`, `origin` the row within the shard
    labels: list[str]
    samples: list[int]  # images of each label
    dropped: list[list[str]]  # [key, reason]
    sha256: str
    bytes: int
    digest: str  # over keys, labels and encoded bytes of the rows, in order


def index_shard(path: Path, name: str, label: str | None, decode: bool, channels: int) -> ShardIndex:
    """Read a whole shard.

    Args:
        name: what to call it in messages: its URL or path.
        label: extension (cls) or field of the .json that holds the class; None looks for LABELS; NO_LABELS for none.
        decode: also decode every image, and drop those that cannot be.
    Raises DatasetError for a file that is no plain tar, or ends early.
    """
    digest = hashlib.sha256()
    labels: list[str] = []
    rows: list[tuple[int, int, int, int, int]] = []
    dropped: list[list[str]] = []
    numbers: dict[str, int] = {}
    with open(path, "rb") as file:
        samples, repeated = members(path, name)
        dropped += [[key, "repeated_member"] for key in repeated]
        for key, files in samples.items():
            try:
                image = image_of(files)
                data = read(file, image, name, key)
                text = label_of(file, files, label, name, key)
                if decode:
                    read_image(data, channels)
            except BadImageError as error:
                dropped.append([key, error.reason])
                continue
            number = numbers.setdefault(text, len(numbers))
            rows.append((0, image.offset, image.size, number, len(rows)))
            labels.append(text)
            digest.update(f"{key}\0{text}\0".encode(errors="surrogateescape") + hashlib.sha256(data).digest())
        file.seek(0)
        sha256 = hashlib.file_digest(file, "sha256").hexdigest() if hasattr(hashlib, "file_digest") else digest_of(file)
        size = file.seek(0, 2)
    counts = Counter(labels)
    names = list(numbers)
    return ShardIndex(
        np.array(rows, INDEX), names, [counts[text] for text in names], dropped, sha256, size, digest.hexdigest()
    )


def digest_of(file: BinaryIO) -> str:
    """sha256 of an open file, where Python is older than hashlib.file_digest."""
    digest = hashlib.sha256()
    while block := file.read(1 << 20):
        digest.update(block)
    return digest.hexdigest()


def members(path: Path, name: str) -> tuple[dict[str, dict[str, Member]], list[str]]:
    """{key: {extension: member}} of a shard in the order of the keys' first files, and keys with a file twice.

    The key is what WebDataset takes: the path up to the first dot of its last part. Raises DatasetError.
    """
    samples: defaultdict[str, dict[str, Member]] = defaultdict(dict)
    repeated: list[str] = []
    last = ""
    try:
        with tarfile.open(path, "r:", errors="surrogateescape") as tar:
            for info in tar:
                folder, _, base = info.name.rpartition("/")
                if not info.isreg() or info.issparse() or base.startswith(SIDE_FILES):
                    continue
                stem, _, extension = base.partition(".")
                last = f"{folder}/{stem}" if folder else stem
                files, extension = samples[last], extension.lower()
                if extension in files:
                    repeated.append(last)
                else:
                    files[extension] = Member(info.offset_data, info.size)
                tar.members = []  # type: ignore[attr-defined]  # tarfile would keep a kilobyte a file
            end = tar.offset
        with open(path, "rb") as file:  # tarfile takes a file that stops between two members for a whole one
            file.seek(end)
            if file.read(tarfile.BLOCKSIZE) != bytes(tarfile.BLOCKSIZE):
                raise EOFError("it ends without the mark of its end")
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DatasetError(
            f"{name}: not a whole, uncompressed tar ({error}){f'; the last sample read is {last}' if last else ''}"
        ) from error
    return samples, repeated


def image_of(files: dict[str, Member]) -> Member:
    """The image among a sample's files. Raises BadImageError for none, and for several that could be meant."""
    images = [extension for extension in files if IMAGE.fullmatch(extension)]
    images = images or [extension for extension in files if IMAGE.fullmatch(extension.rpartition(".")[2])]
    if len(images) != 1:
        raise BadImageError("no_image" if not images else "several_images", ", ".join(files))
    return files[images[0]]


def label_of(file: BinaryIO, files: dict[str, Member], label: str | None, name: str, key: str) -> str:
    """The class of a sample as text. Raises BadImageError no_label."""
    if label == NO_LABELS:
        return UNLABELLED
    for wanted in LABELS if label is None else (label,):
        if wanted in files:
            return read(file, files[wanted], name, key).decode(errors="replace").strip()
        if "json" in files:
            value = fields_of(read(file, files["json"], name, key)).get(wanted)
            if isinstance(value, str | int) and not isinstance(value, bool):
                return str(value).strip()
    raise BadImageError("no_label", f"files: {', '.join(files)}")


def fields_of(data: bytes) -> dict[str, Any]:
    """The fields of a sample's .json; none of one that is no object."""
    try:
        value = json.loads(data)
    except ValueError:
        return {}
    return value if isinstance(value, dict) else {}


def read(file: BinaryIO, member: Member, name: str, key: str) -> bytes:
    """Bytes of a member. Raises DatasetError where the shard ends before it does."""
    file.seek(member.offset)
    data = file.read(member.size)
    if len(data) < member.size:
        raise DatasetError(f"{name}: ends within sample {key}")
    return data


def kinds_of_labels(path: Path, name: str) -> Iterator[str]:
    """What could hold a label in the first sample of a shard: extensions, and the fields of its .json."""
    samples, _ = members(path, name)
    with open(path, "rb") as file:
        for key, files in list(samples.items())[:1]:
            yield from (extension for extension in files if not IMAGE.fullmatch(extension) and extension != "json")
            if "json" in files:
                yield from fields_of(read(file, files["json"], name, key))
