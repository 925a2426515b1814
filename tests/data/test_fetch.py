"""Fetched archives: unpacked within their folder, recorded, and errors that say what the client said."""

import io
import shutil
import subprocess
import tarfile
import zipfile
from pathlib import Path

import pytest

from harness.compose import compose
from harness.data.fetch import fetch, unpack
from harness.errors import ConfigError, DatasetError


def tar(path: Path, *names: str) -> Path:
    with tarfile.open(path, "w:gz") as archive:
        for name in names:
            info = tarfile.TarInfo(name)
            info.size = 3
            archive.addfile(info, io.BytesIO(b"abc"))
    return path


def test_members_are_chosen_by_pattern(tmp_path: Path) -> None:
    unpack(tar(tmp_path / "a.tgz", "package/a.svg", "package/b.txt"), tmp_path / "out", ["package/*.svg"])
    assert [path.name for path in (tmp_path / "out").rglob("*.*")] == ["a.svg"]


@pytest.mark.parametrize("name", ["../outside.txt", "a/../../outside.txt"])
def test_a_member_that_would_leave_the_folder_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "deep").mkdir()
    with pytest.raises(DatasetError, match=r"a\.tgz: cannot be unpacked"):
        unpack(tar(tmp_path / "a.tgz", name), tmp_path / "deep" / "out", [])
    assert not list(tmp_path.rglob("outside.txt"))


def test_an_absolute_name_lands_below_the_folder(tmp_path: Path) -> None:
    """As tarfile's data filter has it: the leading slash goes."""
    unpack(tar(tmp_path / "a.tgz", f"{tmp_path}/outside.txt"), tmp_path / "out", [])
    assert [path for path in tmp_path.rglob("outside.txt") if not path.is_relative_to(tmp_path / "out")] == []


def test_a_wheel_and_a_debian_package(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.whl", "w") as wheel:
        wheel.writestr("data/x.png", b"abc")
    unpack(tmp_path / "a.whl", tmp_path / "wheel", [])
    assert (tmp_path / "wheel/data/x.png").read_bytes() == b"abc"
    if shutil.which("dpkg-deb") is None:
        pytest.skip("no dpkg-deb here")
    (tmp_path / "deb/DEBIAN").mkdir(parents=True)
    (tmp_path / "deb/DEBIAN/control").write_text(
        "Package: x\nVersion: 1\nArchitecture: all\nMaintainer: x <x@example.org>\nDescription: x\n"
    )
    (tmp_path / "deb/usr/share").mkdir(parents=True)
    (tmp_path / "deb/usr/share/x.png").write_bytes(b"abc")
    subprocess.run(["dpkg-deb", "-b", tmp_path / "deb", tmp_path / "x.deb"], check=True, capture_output=True)
    unpack(tmp_path / "x.deb", tmp_path / "from_deb", ["usr/share/*"])
    assert (tmp_path / "from_deb/usr/share/x.png").read_bytes() == b"abc"


def test_what_cannot_be_fetched_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HARNESS_DATA", str(tmp_path))
    with pytest.raises(ConfigError, match="nothing to fetch"):
        fetch(compose(["data=glyphs"]).data)
    with pytest.raises(ConfigError, match="wanted npm:, apt:, pip: or torchvision:"):
        fetch(compose(["data=mnist", "data.fetch='ftp:x'"]).data)
    with pytest.raises(DatasetError, match=r"data.path=DIR"):
        fetch(compose(["data=elpv", "data.fetch='pip:no-such-package-of-harness-tests==0'"]).data)
    assert not (tmp_path / "raw" / "elpv").exists()
