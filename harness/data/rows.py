"""Rows of an index too large to map: a few at a time, with pread.

Mapped, the kernel maps two megabytes around every row that is touched (large folios, Linux 6), and counts them as
memory of the process: 9 GB after 6,000 rows of an index of 8.4 GB.
"""

import os
from pathlib import Path
from typing import overload

import numpy as np

MAPPED_AT_MOST = 20_000_000  # rows; smaller indices are mapped, which is quicker


class Rows:
    """`rows[position]` is one row, `rows[positions]` an array of rows, as of the mapped file."""

    def __init__(self, path: Path, mapped: np.ndarray) -> None:
        """`mapped` is the file as np.load maps it: its header has been read and checked, its rows are not touched."""
        assert isinstance(mapped, np.memmap)
        self.dtype, self._length, self._start = mapped.dtype, len(mapped), int(mapped.offset)
        self._file = os.open(path, os.O_RDONLY)

    def __len__(self) -> int:
        return self._length

    @overload
    def __getitem__(self, positions: int) -> np.void: ...

    @overload
    def __getitem__(self, positions: np.ndarray) -> np.ndarray: ...

    def __getitem__(self, positions: int | np.ndarray) -> np.ndarray | np.void:
        """Raises IndexError for a position outside, OSError for a file that has become shorter."""
        chosen = np.atleast_1d(np.asarray(positions, np.int64))
        if chosen.size and (chosen.min() < 0 or chosen.max() >= self._length):
            raise IndexError(f"rows {chosen.min()} to {chosen.max()} of {self._length}")
        size = self.dtype.itemsize
        data = b"".join(os.pread(self._file, size, self._start + size * position) for position in chosen.tolist())
        rows = np.frombuffer(data, self.dtype)
        if len(rows) != len(chosen):
            raise OSError(f"{len(rows)} of {len(chosen)} rows could be read")
        found: np.ndarray | np.void = rows[0] if np.ndim(positions) == 0 else rows
        return found

    def __del__(self) -> None:
        if hasattr(self, "_file"):
            os.close(self._file)
