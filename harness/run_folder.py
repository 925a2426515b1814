"""A run's folder: names, states, atomic reads and writes.

runs/<study>@<dataset>/<name>-<hash8>/
    config.yaml        resolved configuration and the identity that is hashed
    environment.json   versions, git commit and diff, hardware
    status.json        waiting | running | finished | failed + reason, attempt, heartbeat, progress
    metrics.jsonl      one row a log step or evaluation; equal runs have equal bytes
    log.txt            what the process printed
    checkpoints/       last.safetensors, best.safetensors
    transfer/          one JSON a target and protocol
    result.json        written last, atomically: a run is finished exactly when it is there, valid, with its hash
"""

import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from harness.results_schema import CURVES, RUNS, SCHEMA_VERSION, Column, problem, shown, wrong

HASH_CHARACTERS = 8
STATES = ("finished", "running", "waiting", "failed")
UNREADABLE = (ValueError, RecursionError)  # what json raises: no JSON, or nested too deeply
STATUS = {name: Column("str", "", required=name == "state") for name in ("state", "reason", "error", "host")} | {
    name: Column("float", "", required=False)
    for name in ("heartbeat", "attempt", "failures", "samples_seen", "images_per_second", "best_val_top1")
}


def identity_hash(identity: dict[str, Any]) -> str:
    """sha256 over the fields that change a result; keys in any order, numbers as JSON writes them."""
    text = json.dumps(identity, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def run_id(name: str, config_hash: str) -> str:
    """`name-hash8`: readable, the same on every attempt and machine, no clock in it."""
    return f"{name}-{config_hash[:HASH_CHARACTERS]}"


def study_folder(root: Path, study: str, dataset_name: str) -> Path:
    """`<root>/<study>@<dataset>`: one instance of a study."""
    return root / f"{study}@{dataset_name}"


def write_atomic(path: Path, data: str | bytes, durable: bool = True) -> None:
    """Write so that a reader, or a crash at any moment, finds either the old content or the new."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    content = data.encode() if isinstance(data, str) else data
    try:
        with naming(path, len(content)), open(temporary, "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        temporary.replace(path)
    except OSError:  # a full disk gets its room back, and the old content is still there
        temporary.unlink(missing_ok=True)
        raise


@contextmanager
def naming(path: Path, size_bytes: int) -> Iterator[None]:
    """An OSError inside says which file it is about and how much was to be written."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"{error.strerror} ({size_bytes:,} bytes to write)", str(path)) from error


def write_json(path: Path, value: Any, durable: bool = True) -> None:
    """JSON, atomically; NaN and infinity are refused since they are not JSON."""
    write_atomic(path, json.dumps(value, indent=1, allow_nan=False) + "\n", durable)


def read_json(path: Path) -> dict[str, Any] | None:
    """The object in `path`, or None where there is none or it is damaged."""
    try:
        value = json.loads(path.read_text())
    except (OSError, *UNREADABLE):
        return None
    return value if isinstance(value, dict) else None


def target_digest(content: dict[str, Any] | None) -> str:
    """The digest of the images that a transfer file is about; '' where it does not say, as those of the first days."""
    target = (content or {}).get("target")
    return str(target.get("digest") or "") if isinstance(target, dict) else ""


def target_data(content: dict[str, Any] | None) -> str:
    """The data set that a transfer file's target is; '' where it does not say."""
    config = (content or {}).get("config")
    return str(config.get("data") or "") if isinstance(config, dict) else ""


def read_result(folder: Path, config_hash: str | None = None) -> dict[str, Any] | None:
    """result.json if it is whole (every required column, right types) and of this configuration, else None."""
    result = read_json(folder / "result.json")
    if result is None or result.get("schema_version") != SCHEMA_VERSION:
        return None
    if config_hash is not None and result.get("config_hash") != config_hash:
        return None
    return None if missing_columns(result) else result


def missing_columns(result: dict[str, Any]) -> list[str]:
    """Names of columns of `runs` that are absent though required, of the wrong type, not finite or out of range."""
    return [name for name, column in RUNS.items() if wrong(result.get(name), column)]


def write_status(folder: Path, state: str, reason: str | None = None, **fields: Any) -> None:
    """Replace status.json. Durable only at changes of state: a heartbeat may be lost, a state may not."""
    write_json(
        folder / "status.json",
        {"state": state, "reason": reason, "heartbeat": time.time(), **fields},
        durable=state != "running",
    )


def read_status(folder: Path) -> dict[str, Any]:
    """status.json, or {'state': 'waiting'} for a run that never started or whose file is damaged."""
    content = read_json(folder / "status.json")
    return {"state": "waiting", "reason": None} if content is None or status_problem(content) else content


def status_problem(content: dict[str, Any]) -> str:
    """What is wrong with a status.json; '' for a sound one."""
    bad = problem(content, STATUS)
    return bad or ("" if content["state"] in STATES else f"state: {shown(content['state'])} is no state of a run")


def append_metrics(folder: Path, rows: Iterable[dict[str, Any]]) -> None:
    """Add rows to metrics.jsonl."""
    text = "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows)
    with naming(folder / "metrics.jsonl", len(text)), open(folder / "metrics.jsonl", "a") as file:
        file.write(text)


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """Rows of metrics.jsonl; a line cut short by a crash is left out."""
    return [row for row in parse_metrics(metric_lines(folder) or []) if isinstance(row, dict)]


def metric_lines(folder: Path) -> list[str] | None:
    """Lines of metrics.jsonl as they are; None where there is no such file."""
    try:
        return (folder / "metrics.jsonl").read_text(errors="replace").splitlines()
    except OSError:
        return None


def parse_metrics(lines: list[str]) -> list[Any]:
    """What each line of metrics.jsonl holds, None for one that is no JSON."""
    try:
        rows: list[Any] = json.loads(f"[{','.join(lines)}]")  # at once: ten thousand runs have a million lines
    except UNREADABLE:
        rows = []
    return rows if len(rows) == len(lines) else [parsed(line) for line in lines]


def parsed(line: str) -> Any:
    """A line of metrics.jsonl; None for what is no JSON."""
    try:
        return json.loads(line)
    except UNREADABLE:
        return None


def rewind_metrics(folder: Path, samples_seen: int) -> None:
    """Drop damaged rows and those later than the checkpoint to go on from: no row is ever written twice."""
    upto = CURVES["samples_seen"]._replace(most=samples_seen)
    rows = [row for row in read_metrics(folder) if not wrong(row.get("samples_seen"), upto)]
    write_atomic(folder / "metrics.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
