"""Submit a study to Slurm as job arrays of sbatch, and return.

Slurm decides when and where a run starts; whether it is finished says its run folder alone. What was submitted is in
`<study>/slurm/NNNN.runs` (line i is array task i) and NNNN.sh, and the job's name ends in NNNN: that is how a later
`harness run` tells which runs are still queued, also when this process was killed between sbatch and its next line.
"""

import getpass
import hashlib
import math
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from shlex import join, quote

from harness.cell import Cell
from harness.environment import snapshot_code
from harness.errors import HarnessError
from harness.paths import data_root, runs_root, user_config_dir
from harness.run_folder import read_result, write_atomic
from harness.run_lock import lock
from harness.study.calibrate import read as read_calibration
from harness.study.plan import Plan, device_seconds
from harness.study.slots import THREAD_VARIABLES, need_of
from harness.study.todo import TO_RUN, Todo, What
from harness.submission import submit

CONTROLLER_AWAY = ("Unable to contact slurm controller", "Socket timed out", "Connection refused", "Zero Bytes were")
CONTROLLER_PATIENCE_SECONDS = 120.0
TIME_FACTOR, EXTRA_MINUTES = 2.0, 10
TRANSFER_MINUTES = 60
MEMORY_STEP_MEGABYTES, TIME_STEP_MINUTES = 256, 5  # so that runs of nearly equal needs share an array


@dataclass(frozen=True)
class Resources:
    """What a job asks for; runs that ask for the same share an array."""

    nodes: int
    processes: int  # a node
    threads: int  # a process
    gpus: int  # a node
    memory_megabytes: int  # a node
    minutes: int
    signal_seconds: int
    stage: str  # all | train | transfer


def submit_study(plan: Plan, todos: Sequence[Todo]) -> int:
    """Submit every run that is to run and is not queued already. Returns the exit code of `harness run`.

    Raises HarnessError when there is no Slurm here, or another command is submitting this study.
    """
    with lock(plan.folder) as mine:
        if not mine:
            raise HarnessError(f"{plan.folder}: another `harness run` is submitting this study; run this again later")
        name = job_prefix(plan)
        in_queue = queued_runs(plan.folder / "slurm", name)
        due = [t.cell for t in todos if t.what in TO_RUN and t.cell.run_id not in in_queue]
        counts = count(todos, in_queue)
        submitted = 0
        try:
            submitted = submit_cells(plan, due, name) if due else 0
        finally:
            print(
                f"{plan.name}@{plan.dataset.name}: {submitted} runs submitted now, {counts['queued']} queued or "
                f"running before, {counts['finished']} finished, {counts['failed']} failed and not tried again"
            )
    for todo in todos:
        if todo.what in (What.DIVERGED, What.GIVEN_UP):
            print(f"  {todo.cell.run_id}: {todo.why}")
    print(f"`harness status {plan.name}` shows where they stand; the same command submits what is then not finished")
    return 1 if counts["failed"] else 0


def count(todos: Sequence[Todo], in_queue: set[str]) -> dict[str, int]:
    """How the selected cells stand before anything is submitted."""
    return {
        "queued": sum(t.what is What.ELSEWHERE or (t.what in TO_RUN and t.cell.run_id in in_queue) for t in todos),
        "finished": sum(t.what is What.FINISHED for t in todos),
        "failed": sum(t.what in (What.DIVERGED, What.GIVEN_UP) for t in todos),
    }


def submit_cells(plan: Plan, cells: list[Cell], name: str) -> int:
    """Submit arrays of runs of equal resources, none larger than Slurm takes. Returns how many runs were submitted."""
    code = snapshot_code(plan.folder / "slurm" / "code")
    limit = max_array_size()
    submitted = 0
    groups: dict[tuple[Resources, ...], list[Cell]] = {}
    for cell in cells:
        groups.setdefault(jobs_of(cell, plan), []).append(cell)
    for jobs, members in groups.items():
        for start in range(0, len(members), limit):
            chunk = members[start : start + limit]
            for cell in chunk:
                submit(cell, plan.folder)
            dependency = None
            for resources in jobs:
                dependency = submit_array(plan, chunk, resources, name, code, dependency)
            submitted += len(chunk)
    return submitted


def jobs_of(cell: Cell, plan: Plan) -> tuple[Resources, ...]:
    """The jobs of a run, each after the one before: one, or training and then transfer."""
    if not cell.config.launcher.transfer_apart:
        return (resources_of(cell, "all"),)
    trained = read_result(plan.folder / cell.run_id, cell.config_hash) is not None
    transfer = resources_of(cell, "transfer")
    return (transfer,) if trained else (resources_of(cell, "train"), transfer)


def resources_of(cell: Cell, stage: str) -> Resources:
    """What one run asks Slurm for, from the plan: twice the estimated time and ten minutes, memory as counted."""
    launcher, need = cell.config.launcher, need_of(cell)
    nodes, processes = (1, 1) if stage == "transfer" else (launcher.nodes, launcher.processes)
    seconds = device_seconds(cell, read_calibration(runs_root()))[0] / (nodes * processes)
    estimated = TRANSFER_MINUTES
    if stage != "transfer":
        estimated = round_up(TIME_FACTOR * seconds / 60, TIME_STEP_MINUTES) + EXTRA_MINUTES
    minutes = min(launcher.time_minutes or estimated, launcher.max_time_minutes)
    return Resources(
        nodes=nodes,
        processes=processes,
        threads=launcher.threads,
        gpus=processes if need.gpus else 0,
        memory_megabytes=round_up(need.memory_bytes / 1e6, MEMORY_STEP_MEGABYTES),
        minutes=minutes,
        signal_seconds=min(launcher.signal_seconds, minutes * 30),
        stage=stage,
    )


def round_up(value: float, step: int) -> int:
    """The next multiple of `step`."""
    return step * math.ceil(value / step)


def submit_array(
    plan: Plan, cells: list[Cell], resources: Resources, name: str, code: Path, dependency: str | None
) -> str:
    """Write list and script of one array and hand them to sbatch. Returns the job's id."""
    folder = (plan.folder / "slurm").resolve()
    folder.mkdir(parents=True, exist_ok=True)
    number = 1 + max((int(path.stem) for path in folder.glob("*.runs")), default=0)
    runs, script, job_name = folder / f"{number:04d}.runs", folder / f"{number:04d}.sh", f"{name}-{number:04d}"
    write_atomic(runs, "".join(f"{(plan.folder / cell.run_id).resolve()}\n" for cell in cells))
    write_atomic(script, script_text(plan, cells, resources, runs, code))
    options = [f"--job-name={job_name}", f"--output={folder}/{number:04d}.%a.out"]
    if dependency is not None:  # task i after task i, if that ended well
        options += [f"--dependency=aftercorr:{dependency}", "--kill-on-invalid-dep=yes"]
    job = sbatch([*options, str(script)], job_name)
    print(f"job {job}: {len(cells)} runs, {resources.stage}, {resources.minutes} min, {resources.memory_megabytes} MB")
    return job


def script_text(plan: Plan, cells: list[Cell], resources: Resources, runs: Path, code: Path) -> str:
    """The batch script: what it asks for, the environment, and one line that becomes the run."""
    launcher = plan.cells[0].config.launcher
    asked = [
        f"--array=0-{len(cells) - 1}",
        f"--nodes={resources.nodes}",
        f"--ntasks-per-node={resources.processes}",
        f"--cpus-per-task={resources.threads}",
        f"--mem={resources.memory_megabytes}M",
        f"--time={resources.minutes}",
        f"--signal=B:USR1@{resources.signal_seconds}",
        "--requeue",
        "--open-mode=append",
        *([f"--gpus-per-node={resources.gpus}"] if resources.gpus else []),
        *([f"--partition={launcher.partition}"] if launcher.partition else []),
        *([f"--account={launcher.account}"] if launcher.account else []),
        *launcher.sbatch,
    ]
    threads = str(resources.threads)
    environment = {
        "HARNESS_DATA": str(data_root().resolve()),
        "HARNESS_RUNS": str(runs_root().resolve()),
        **dict.fromkeys(THREAD_VARIABLES, threads),
    }
    if user_config_dir():
        environment["HARNESS_CONFIG_DIR"] = str(user_config_dir())
    body = [sys.executable, "-m", "harness.study.slurm_job", str(runs), resources.stage]
    return "\n".join(
        [
            "#!/bin/bash",
            f"# {plan.name}@{plan.dataset.name}: written by `harness run`; task i trains line i + 1 of {runs.name}",
            *(f"#SBATCH {option}" for option in asked),
            *(f"export {key}={quote(value)}" for key, value in environment.items()),
            f"export PYTHONPATH={quote(str(code))}${{PYTHONPATH:+:$PYTHONPATH}}",
            f"cd {quote(str(code))}  # python -m looks here first",
            *launcher.setup,
            f"exec {join(body)}  # in place of the shell: Slurm's signals reach it",
            "",
        ]
    )


def job_prefix(plan: Plan) -> str:
    """Jobs of this study folder and of no other start with this name."""
    place = hashlib.sha256(str(plan.folder.resolve()).encode()).hexdigest()[:6]
    return f"{plan.name}@{plan.dataset.name}-{place}"


def queued_runs(folder: Path, name: str) -> set[str]:
    """Run ids that Slurm has waiting or running for this study."""
    lines = ask(["squeue", "--noheader", "--array", f"--user={getpass.getuser()}", "--format=%j %K"]).splitlines()
    found: set[str] = set()
    for line in lines:
        job_name, _, task = line.strip().partition(" ")
        prefix, _, number = job_name.rpartition("-")
        if prefix != name or not task.strip().isdigit():
            continue
        try:
            runs = (folder / f"{number}.runs").read_text().splitlines()
        except OSError:
            continue
        found |= {Path(run).name for run in runs[int(task) : int(task) + 1]}
    return found


def max_array_size() -> int:
    """Tasks that one array may have (indices from 0)."""
    for line in ask(["scontrol", "show", "config"]).splitlines():
        key, _, value = line.partition("=")
        if key.strip() == "MaxArraySize" and value.strip().isdigit():
            return max(1, int(value))
    return 1001  # Slurm's own default


def sbatch(arguments: list[str], job_name: str) -> str:
    """Submit and return the job's id. When the controller did not answer, the queue is looked at before another try:
    it may have taken the job all the same."""
    deadline = time.monotonic() + CONTROLLER_PATIENCE_SECONDS
    while True:
        done = call(["sbatch", "--parsable", *arguments])
        if done.returncode == 0:
            return done.stdout.strip().split(";")[0]
        if not is_away(done) or time.monotonic() > deadline:
            raise HarnessError(f"sbatch: {done.stderr.strip()}; what was submitted stays, the same command goes on")
        time.sleep(2.0)
        taken = ask(["squeue", "--noheader", f"--name={job_name}", "--format=%F"]).split()
        if taken:
            return taken[0]


def ask(command: list[str]) -> str:
    """Output of a Slurm command; waits while the controller restarts. Raises HarnessError with Slurm's own words."""
    deadline = time.monotonic() + CONTROLLER_PATIENCE_SECONDS
    while True:
        done = call(command)
        if done.returncode == 0:
            return done.stdout
        if not is_away(done) or time.monotonic() > deadline:
            raise HarnessError(f"{command[0]}: {done.stderr.strip() or f'exit code {done.returncode}'}")
        time.sleep(2.0)


def is_away(done: "subprocess.CompletedProcess[str]") -> bool:
    """Whether a command failed because the controller did not answer."""
    return any(words in done.stderr for words in CONTROLLER_AWAY)


def call(command: list[str]) -> "subprocess.CompletedProcess[str]":
    """Run a Slurm command. Raises HarnessError where Slurm is not installed."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=300)
    except FileNotFoundError as error:
        raise HarnessError(f"launcher=slurm needs {command[0]}, and it is not on this machine's PATH") from error
