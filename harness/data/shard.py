"""One shard: a plain WebDataset tar (`KEY.png` beside `KEY.cls`), written atomically, and the record of what is in it.

Equal input gives equal bytes: members carry no time, owner or mode of the machine.
"""

import hashlib
import io
import os
import tarfile
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

from harness.data.images import BadImageError
from harness.data.manifest import INDEX
from harness.data.sources import SourceSplit
from harness.run_folder import read_json, write_atomic, write_json

LONGEST_NAME = 100  # bytes, in the name field of a header


@dataclass(frozen=True)
class ShardRecord:
    """What the packer remembers of a finished shard until the manifest is written; its index rows lie beside it."""

    file: str
    samples: int
    bytes: int
    sha256: str
    digest: str  # over keys, labels and pixels, in order
    dropped: list[list[str]]  # [image, reason]
    converted: dict[str, int]  # conversions of odd images, by name

    def manifest_entry(self) -> dict[str, Any]:
        return {"file": self.file, "samples": self.samples, "bytes": self.bytes, "sha256": self.sha256}


def read_record(folder: Path, records: Path, file: str) -> ShardRecord | None:
    """The record of a shard that is finished and still there, else None."""
    content = read_json(records / f"{file}.json")
    try:
        record = ShardRecord(**(content or {}))
        whole = (folder / file).stat().st_size == record.bytes and len(read_rows(records, file)) == record.samples
    except (OSError, TypeError, ValueError):
        return None
    return record if whole else None


def read_rows(records: Path, file: str) -> np.ndarray:
    """The index rows of a finished shard; `shard` is not filled in yet."""
    return np.load(records / f"{file}.npy")


def write_rows(path: Path, rows: np.ndarray) -> None:
    """Index rows as a .npy file, atomically."""
    buffer = io.BytesIO()
    np.save(buffer, rows, allow_pickle=False)
    write_atomic(path, buffer.getvalue())


def write_shard(folder: Path, records: Path, file: str, split: SourceSplit, indices: np.ndarray) -> None:
    """Write the samples `indices` of a split, in this order, as `file`; images that cannot be used are left out.

    The record is written last: a shard without one is written again.
    """
    temporary = folder / f".{file}.tmp"
    digest = hashlib.sha256()
    rows = np.zeros(len(indices), INDEX)
    count = 0
    dropped: list[list[str]] = []
    converted: Counter[str] = Counter()
    with open(temporary, "wb", buffering=1 << 20) as tar:
        for index in indices.tolist():
            try:
                sample = split.get(index)
            except BadImageError as error:
                dropped.append([split.name_of(index), error.reason])
                continue
            offset = add(tar, f"{sample.key}.{sample.extension}", sample.data)
            add(tar, f"{sample.key}.cls", str(sample.label).encode())
            rows[count] = (0, offset, len(sample.data), sample.label, sample.origin)
            count += 1
            converted.update(sample.converted)
            digest.update(sample_digest(sample.key, sample.label, sample.pixels_digest))
        tar.write(bytes(2 * tarfile.BLOCKSIZE))  # the end of a tar
        tar.flush()
        os.fsync(tar.fileno())
    sha256, size = file_sha256(temporary), temporary.stat().st_size
    temporary.replace(folder / file)
    write_rows(records / f"{file}.npy", rows[:count])
    record = ShardRecord(file, count, size, sha256, digest.hexdigest(), dropped, dict(sorted(converted.items())))
    write_json(records / f"{file}.json", asdict(record))


def sample_digest(key: str, label: int, pixels_digest: bytes) -> bytes:
    """What one sample adds to the digest of its shard."""
    return f"{key}\0{label}\0".encode() + pixels_digest


def add(tar: BinaryIO, name: str, data: bytes) -> int:
    """Append a member; returns the offset of its data."""
    tar.write(tar_header(name, len(data)))
    offset = tar.tell()
    tar.write(data + bytes(-len(data) % tarfile.BLOCKSIZE))
    return offset


def tar_header(name: str, size: int) -> bytes:
    """POSIX ustar header of a file, as tarfile writes it, which takes twenty times as long for each of two a sample.

    No time, owner or mode of this machine.
    """
    encoded = name.encode()
    if len(encoded) > LONGEST_NAME or size >= 8**11:
        info = tarfile.TarInfo(name)
        info.size = size
        return info.tobuf(tarfile.USTAR_FORMAT)
    before = encoded.ljust(100, b"\0") + b"0000644\x000000000\x000000000\0" + b"%011o\x0000000000000\0" % size
    after = b"0" + bytes(100) + b"ustar\x0000" + bytes(247)
    return before + b"%06o\0 " % (sum(before) + sum(after) + 8 * ord(" ")) + after


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
