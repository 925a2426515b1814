"""Transfer by two ranks over gloo: the same images, each taken once, and the same numbers as one rank's."""

import json
import os
import socket
from dataclasses import replace
from multiprocessing.context import ForkServerContext
from pathlib import Path

import numpy as np
import pytest
import torch

from harness.compose import compose
from harness.data.on_demand import open_or_pack
from harness.errors import DatasetError, HarnessError
from harness.train.distributed import ALONE, Ranks, joined
from harness.transfer.evaluate import in_turn, transfer_rows
from harness.transfer.features import extract
from tests.transfer.test_evaluate import subject
from tests.transfer.test_finetune import transfer_config


def transfer_both(ranks: Ranks, folder: Path) -> None:
    """Features and rows of both protocols, as this rank has them, to the folder."""
    torch.set_num_threads(1)
    here = replace(subject(), ranks=ranks)
    digits = open_or_pack("digits")
    features = extract(here.network(here.trained(), 16), digits, "test", here.setting(16))
    fewshot = replace(compose(["transfer=digits"]).transfer, shots=[1, 5])
    rows = [
        transfer_rows(cfg, digits, here, folder / "work")[0]
        for cfg in (fewshot, transfer_config(learning_rates=[0.03], polyak=0.5))
    ]
    np.savez(folder / f"rank{ranks.rank}.npz", features=features.features, labels=features.labels)
    (folder / f"rank{ranks.rank}.json").write_text(json.dumps(rows))


def refuse() -> None:
    raise DatasetError("no such set")


def rank_body(rank: int, port: int, environment: dict[str, str], folder: str) -> None:
    os.environ.update(environment)
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1")
    os.environ["MASTER_PORT"] = str(port)
    with joined(60.0, "cpu") as ranks:
        with pytest.raises(HarnessError, match=["no such set", "the first rank could not"][rank]):
            in_turn(ranks, refuse)  # on both, or the messages of what follows would be another's
        transfer_both(ranks, Path(folder))


def test_two_ranks_find_what_one_rank_finds(
    roots: Path, processes: ForkServerContext, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone, together = tmp_path / "alone", tmp_path / "together"
    alone.mkdir()
    together.mkdir()
    transfer_both(ALONE, alone)
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    monkeypatch.setenv("HARNESS_CACHE", str(tmp_path / "other-cache"))  # or they would find the features of before
    environment = {name: os.environ[name] for name in ("HARNESS_DATA", "HARNESS_CACHE")}
    children = [processes.Process(target=rank_body, args=(rank, port, environment, str(together))) for rank in (0, 1)]
    for child in children:
        child.start()
    for child in children:
        child.join(120)
    assert [child.exitcode for child in children] == [0, 0]

    expected = np.load(alone / "rank0.npz")
    for rank in (0, 1):  # every rank has all features, in the packed order
        found = np.load(together / f"rank{rank}.npz")
        np.testing.assert_array_equal(found["labels"], expected["labels"])
        np.testing.assert_allclose(found["features"], expected["features"], atol=1e-5)
    fewshot, tuned = json.loads((together / "rank0.json").read_text())
    fewshot_alone, tuned_alone = json.loads((alone / "rank0.json").read_text())
    for rows, others, apart in ((fewshot, fewshot_alone, 0.0), (tuned, tuned_alone, 3 / 900)):
        assert [{**row, "value": 0} for row in rows] == [{**row, "value": 0} for row in others]
        assert [row["value"] for row in rows] == pytest.approx([row["value"] for row in others], abs=apart)
    assert json.loads((together / "rank1.json").read_text())[0] == []  # the first rank alone fits classifiers
