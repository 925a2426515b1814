"""ELPV: electroluminescence photographs of solar cells, from the pip package elpv-dataset.

Four classes: monocrystalline and polycrystalline cells, sound (probability of a defect below a half) and defective.
Deitsch et al., arXiv 1807.02894; the data's licence forbids commercial use.
"""

import numpy as np

from harness.config import DataConfig
from harness.data.sources import Source
from harness.data.sources.common import raw_folder
from harness.data.sources.entries import Entries, entries_source, reader
from harness.errors import DatasetError

CLASSES = ["mono-sound", "mono-defective", "poly-sound", "poly-defective"]


def open_elpv(cfg: DataConfig) -> Source:
    """Raises DatasetError for a labels.csv that is not there or not as it is published."""
    folder = raw_folder(cfg)
    table = folder / "labels.csv"
    entries = Entries()
    try:
        lines = table.read_text().splitlines()
    except OSError as error:
        raise DatasetError(f"{table}: not the package elpv-dataset ({error})") from error
    for number, line in enumerate(lines, 1):
        try:
            name, probability, kind = line.split()
            label = 2 * ("mono", "poly").index(kind) + (float(probability) >= 0.5)
        except ValueError as error:
            raise DatasetError(f"{table}: line {number}: wanted IMAGE PROBABILITY mono|poly, not {line!r}") from error
        entries.add(name, 0, label)
    everything = {"train": np.arange(len(entries))}
    return entries_source(entries, everything, CLASSES, reader(folder, entries), cfg)
