"""One shard: a plain WebDataset tar (`KEY.png` beside `KEY.cls`), written atomically, and the record of what is in it.

Equal input gives equal bytes: members carry no time, owner or mode of the machine.
"""

import hashlib
import os
import tarfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from harness.data.images import BadImageError
from harness.data.manifest import INDEX
from harness.data.sources import SourceSplit
from harness.run_folder import read_json, write_json


@dataclass(frozen=True)
class ShardRecord:
    """What the packer remembers of a finished shard until the manifest is written."""

    file: str
    samples: int
    bytes: int
    sha256: str
    digest: str  # over keys, labels and pixels, in order
    dropped: list[list[str]]  # [image, reason]
    offsets: list[int]
    sizes: list[int]
    labels: list[int]
    origins: list[int]

    def rows(self, number: int) -> np.ndarray:
        """The shard's part of the index."""
        rows = np.empty(self.samples, INDEX)
        rows["shard"] = number
        rows["offset"], rows["size"] = self.offsets, self.sizes
        rows["label"], rows["origin"] = self.labels, self.origins
        return rows

    def manifest_entry(self) -> dict[str, Any]:
        return {"file": self.file, "samples": self.samples, "bytes": self.bytes, "sha256": self.sha256}


def read_record(folder: Path, file: str) -> ShardRecord | None:
    """The record of a shard that is finished, else None."""
    content = read_json(folder / f"{file}.json")
    return ShardRecord(**content) if content else None


def write_shard(folder: Path, records: Path, file: str, split: SourceSplit, indices: np.ndarray) -> None:
    """Write the samples `indices` of a split, in this order, as `file`; images that cannot be used are left out.

    The record is written last: a shard without one is written again.
    """
    temporary = folder / f".{file}.tmp"
    digest = hashlib.sha256()
    columns: dict[str, list[int]] = {name: [] for name in ("offsets", "sizes", "labels", "origins")}
    dropped: list[list[str]] = []
    with open(temporary, "wb") as tar:
        for index in indices.tolist():
            try:
                sample = split.get(index)
            except BadImageError as error:
                dropped.append([split.name_of(index), error.reason])
                continue
            columns["offsets"].append(add(tar, f"{sample.key}.{sample.extension}", sample.data))
            add(tar, f"{sample.key}.cls", str(sample.label).encode())
            columns["sizes"].append(len(sample.data))
            columns["labels"].append(sample.label)
            columns["origins"].append(sample.origin)
            digest.update(f"{sample.key}\0{sample.label}\0".encode() + sample.pixels_digest)
        tar.write(bytes(2 * tarfile.BLOCKSIZE))  # the end of a tar
        tar.flush()
        os.fsync(tar.fileno())
    sha256 = file_sha256(temporary)
    size = temporary.stat().st_size
    temporary.replace(folder / file)
    record = ShardRecord(file, len(columns["sizes"]), size, sha256, digest.hexdigest(), dropped, **columns)
    write_json(records / f"{file}.json", asdict(record))


def add(tar: BinaryIO, name: str, data: bytes) -> int:
    """Append a member (POSIX ustar; no time, owner or mode of this machine); returns the offset of its data."""
    info = tarfile.TarInfo(name)
    info.size = len(data)
    tar.write(info.tobuf(tarfile.USTAR_FORMAT))
    offset = tar.tell()
    tar.write(data + bytes(-len(data) % tarfile.BLOCKSIZE))
    return offset


def file_sha256(path: Path) -> str:
    """sha256 of a file's bytes."""
    with open(path, "rb") as file:
        digest = hashlib.sha256()
        while block := file.read(1 << 20):
            digest.update(block)
    return digest.hexdigest()


def member_key(path: Path, offset: int) -> str:
    """Key of the sample whose data starts at `offset`: the tar header lies in the block before it."""
    with open(path, "rb") as file:
        file.seek(offset - tarfile.BLOCKSIZE)
        info = tarfile.TarInfo.frombuf(file.read(tarfile.BLOCKSIZE), "utf-8", "surrogateescape")
    return info.name.rsplit(".", 1)[0]
