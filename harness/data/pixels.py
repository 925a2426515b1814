"""Decoded samples of a split by position, one pread a sample, straight from the shards. Needs no torch."""

import os
from collections import OrderedDict
from pathlib import Path
from tarfile import TarError

import numpy as np

from harness.data.images import BadImageError, decode
from harness.data.manifest import Dataset
from harness.data.remote import RemoteShard
from harness.data.shard import member_key
from harness.errors import DatasetError

OPEN_FILES = 256  # a process may often open no more than 1024; the oldest is closed first


class Pixels:
    """`pixels[position]` is uint8 (C, H, W). Cheap to open whatever the number of samples."""

    def __init__(self, dataset: Dataset, split: str, image_size: int, channels: int) -> None:
        self.dataset, self.split, self.image_size, self.channels = dataset, split, image_size, channels
        self.index = dataset.rows(split)
        self.files = dataset.shards(split)
        self._open: OrderedDict[int, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, position: int) -> np.ndarray:
        """Raises DatasetError naming shard and key, also where the shard ends early."""
        row = self.index[position]
        try:
            return decode(self._read(row), self.image_size, self.channels)
        except (BadImageError, OSError) as error:
            raise DatasetError(f"{self.name(position)}: {error}; run `harness data check`") from error

    def name(self, position: int) -> str:
        """`shard: sample key`, for messages."""
        row = self.index[position]
        file = self.files[int(row["shard"])]
        try:
            path = file.local() if isinstance(file, RemoteShard) else file
            return f"{file}: sample {member_key(path, int(row['offset']))}"
        except (DatasetError, OSError, ValueError, TarError):
            return f"{file}: sample {position} of {self.split}"

    def _read(self, row: np.void) -> bytes:
        size, offset, file = int(row["size"]), int(row["offset"]), self.files[int(row["shard"])]
        if isinstance(file, RemoteShard):
            data = file.read(offset, size)
        else:
            data = os.pread(self._descriptor(int(row["shard"]), file), size, offset)
        if len(data) != size:
            raise OSError(f"{len(data)} of {size} bytes could be read")
        return data

    def _descriptor(self, shard: int, path: Path) -> int:
        if shard in self._open:
            self._open.move_to_end(shard)
        else:
            if len(self._open) >= OPEN_FILES:
                os.close(self._open.popitem(last=False)[1])
            self._open[shard] = os.open(path, os.O_RDONLY)
        return self._open[shard]

    def close(self) -> None:
        """Close every shard; reading again opens them again."""
        while self._open:
            os.close(self._open.popitem()[1])

    def __del__(self) -> None:
        if hasattr(self, "_open"):
            self.close()
