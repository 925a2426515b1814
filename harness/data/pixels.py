"""Decoded samples of a split by position, one pread a sample, straight from the shards. Needs no torch."""

import os
from collections import OrderedDict
from pathlib import Path
from tarfile import TarError
from typing import Any

import numpy as np

from harness.data.augment import Augmentation, decode_crop
from harness.data.images import BadImageError, open_image
from harness.data.jpeg import decode_square, scratch
from harness.data.manifest import Dataset
from harness.data.remote import RemoteShard
from harness.data.shard import member_key
from harness.errors import DatasetError

OPEN_FILES = 256  # a process may often open no more than 1024; the oldest is closed first


class Pixels:
    """`pixels[position]` is uint8 (C, H, W). Cheap to open whatever the number of samples."""

    def __init__(
        self,
        dataset: Dataset,
        split: str,
        image_size: int,
        channels: int,
        augmentation: Augmentation | None = None,
    ) -> None:
        self.dataset, self.split, self.image_size, self.channels = dataset, split, image_size, channels
        self.augmentation = augmentation
        self.index = dataset.rows(split)
        self.files = dataset.shards(split)
        self._open: OrderedDict[int, int] = OrderedDict()

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, position: int) -> np.ndarray:
        """Raises DatasetError naming shard and key, also where the shard ends early."""
        row = self.index[position]
        try:
            return decode_square(self._read(row), self.image_size, self.channels)
        except (BadImageError, OSError) as error:
            raise self._error(position, error) from error

    def cut(self, position: int, numbers: np.ndarray, out: np.ndarray) -> None:
        """The augmented picture into `out`, uint8 (H, W, C), by its random numbers. Raises as reading does."""
        assert self.augmentation is not None
        try:
            data = self._read(self.index[position])
            decode_crop(data, numbers, self.augmentation, self.image_size, self.channels, out)
        except (BadImageError, OSError) as error:
            raise self._error(position, error) from error

    def stored(self, position: int) -> np.ndarray:
        """The picture as it is stored, uint8 (C, H, W). Raises as reading does."""
        try:
            image = np.asarray(open_image(self._read(self.index[position]), self.channels))
        except (BadImageError, OSError) as error:
            raise self._error(position, error) from error
        return image[None] if image.ndim == 2 else image.transpose(2, 0, 1)

    def stored_size(self, position: int) -> tuple[int, int]:
        """(height, width) of a picture as it is stored."""
        height, width = self.stored(position).shape[1:]
        return height, width

    def _error(self, position: int, error: Exception) -> DatasetError:
        return DatasetError(f"{self.name(position)}: {error}; run `harness data check`")

    def name(self, position: int) -> str:
        """`shard: sample key`, for messages."""
        row = self.index[position]
        file = self.files[int(row["shard"])]
        try:
            path = file.local() if isinstance(file, RemoteShard) else file
            return f"{file}: sample {member_key(path, int(row['offset']))}"
        except (DatasetError, OSError, ValueError, TarError):
            return f"{file}: sample {position} of {self.split}"

    def _read(self, row: Any) -> bytes | memoryview:
        """A sample's encoded bytes, in memory that the next call overwrites."""
        size, offset, file = int(row["size"]), int(row["offset"]), self.files[int(row["shard"])]
        if isinstance(file, RemoteShard):
            return file.read(offset, size)
        data = scratch(size, "file").data
        count = os.preadv(self._descriptor(int(row["shard"]), file), [data], offset)
        if count != size:
            raise OSError(f"{count} of {size} bytes could be read")
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
