"""Published runs stay what they are: a change of the schema that gave them another hash would orphan them."""

from dataclasses import dataclass
from pathlib import Path

import pytest
from omegaconf import OmegaConf

from harness.cell import transfer_id
from harness.compose import compose
from harness.config import added, stated
from harness.run_folder import identity_hash
from harness.submission import load_frozen

RESULTS = Path(__file__).parent.parent / "results"
FOLDERS = sorted(path.parent for path in RESULTS.glob("pocket*@glyphs/*/config.yaml"))


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_a_published_run_keeps_its_hash(folder: Path) -> None:
    """The Fashion-MNIST runs are of a schema before this promise, and their hybrids of a network since mended."""
    frozen = OmegaConf.to_container(OmegaConf.load(folder / "config.yaml"))
    assert isinstance(frozen, dict)
    config = load_frozen(folder).config
    assert stated(config.model) == frozen["identity"]["model"]
    assert stated(config.recipe) == frozen["identity"]["recipe"]
    assert identity_hash(frozen["identity"]) == frozen["config_hash"]
    assert frozen["transfer_id"].endswith(identity_hash(stated(config.transfer))[:8])
    assert frozen["transfer_id"] == transfer_id(config.transfer) == transfer_id(compose(["transfer=digits"]).transfer)


def test_a_younger_field_is_stated_only_where_it_differs() -> None:
    @dataclass
    class Inner:
        width: int = 3
        depth: int = added(2)

    @dataclass
    class Outer:
        inner: Inner
        name: str = added("")

    assert stated(Outer(Inner())) == {"inner": {"width": 3}}
    assert stated(Outer(Inner(3, 1), "x")) == {"inner": {"width": 3, "depth": 1}, "name": "x"}
