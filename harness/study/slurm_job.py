"""The body of a Slurm job: trains the run of its array task, and asks to be requeued when it is told to stop.

`python -m harness.study.slurm_job LIST STAGE` becomes the batch script. Warnings (USR1 before the time limit, TERM on
preemption) are handed to the run as TERM; it makes a checkpoint and ends, and the job is requeued with the same id.
A job that its user cancelled is not. Exit codes as harness.experiment's, so that Slurm's own records are right too.
"""

import os
import signal
import subprocess
import sys
from pathlib import Path
from types import FrameType

from harness.submission import EXIT_BUSY, EXIT_FAILED, EXIT_REQUEUE, settle

RENDEZVOUS_PORTS = (20_000, 20_000)  # first, and how many: a job's port is one of them, by its id


def main(list_file: str, stage: str) -> int:
    """Train line SLURM_ARRAY_TASK_ID of the list. Returns the exit code."""
    task = int(os.environ["SLURM_ARRAY_TASK_ID"])
    folder = Path(Path(list_file).read_text().splitlines()[task])
    told: list[int] = []
    with open(folder / "log.txt", "ab", buffering=0) as log:
        child = subprocess.Popen(command(folder, stage), stdout=log, stderr=log, env=dict(os.environ) | rendezvous())

        def hand_on(number: int, frame: FrameType | None) -> None:
            told.append(number)
            child.send_signal(signal.SIGTERM)

        for number in (signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, hand_on)
        code = child.wait()
    if code == 0:
        return 0
    if code == EXIT_BUSY:  # another job or machine trains this run
        print(f"{folder.name}: another process has it", flush=True)
        return 0
    if told or code == EXIT_REQUEUE:
        settle(folder, EXIT_REQUEUE)
        requeue(always=signal.SIGUSR1 in told)
        return EXIT_REQUEUE
    print(settle(folder, code), flush=True)
    return EXIT_FAILED


def command(folder: Path, stage: str) -> list[str]:
    """The run itself: one process here, or a process a task of the job on all its nodes."""
    body = [sys.executable, "-m", "harness.experiment", str(folder), stage]
    if int(os.environ.get("SLURM_NTASKS", "1")) == 1:
        return body
    return ["srun", "--kill-on-bad-exit=1", sys.executable, "-m", "harness.study.slurm_rank", *body[2:]]


def rendezvous() -> dict[str, str]:
    """Where the processes of a run on several nodes meet: the first node, by the address that Slurm itself uses."""
    if int(os.environ.get("SLURM_NTASKS", "1")) == 1:
        return {}
    first, count = RENDEZVOUS_PORTS
    return {
        "MASTER_ADDR": address(scontrol("show", "hostnames", os.environ["SLURM_JOB_NODELIST"]).split()[0]),
        "MASTER_PORT": str(first + int(os.environ["SLURM_JOB_ID"]) % count),
    }


def address(node: str) -> str:
    """NodeAddr of a node; its name where Slurm has no other."""
    fields = dict(word.split("=", 1) for word in scontrol("show", "node", "-o", node).split() if "=" in word)
    return fields.get("NodeAddr") or node


def requeue(always: bool) -> None:
    """Ask for this job to be started again. Its user's scancel sends TERM as preemption does: then it stays cancelled.

    Where Slurm is requeueing it already the request is refused, which is as good.
    """
    job = os.environ["SLURM_JOB_ID"]
    if not always and "JobState=CANCELLED" in scontrol("show", "job", "-o", job):
        print(f"job {job} was cancelled; `harness run` goes on from the checkpoint", flush=True)
        return
    print(f"job {job} is requeued", flush=True)
    print(scontrol("requeue", job), flush=True)


def scontrol(*arguments: str) -> str:
    """What scontrol prints, errors too; the caller looks for what it needs."""
    done = subprocess.run(["scontrol", *arguments], capture_output=True, text=True)
    return done.stdout + done.stderr


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:3]))
