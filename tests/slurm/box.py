"""A real Slurm on this machine for tests: munged, slurmctld and slurmd by hand, in a folder, without systemd.

Two partitions: `low`, whose jobs are requeued when a job of `high` wants their cores. Daemons are stopped by the pids
that they were started with.
"""

import contextlib
import os
import platform
import shutil
import subprocess
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest

DAEMONS = ("slurmctld", "slurmd", "munged", "sbatch")
GRACE_SECONDS = 30


@dataclass
class Box:
    """A running Slurm: its folder and daemons."""

    folder: Path
    port: int
    nodes: list[str]
    daemons: dict[str, "subprocess.Popen[bytes]"] = field(default_factory=dict)

    @property
    def conf(self) -> Path:
        return self.folder / "slurm.conf"

    def start(self, name: str, *command: str) -> None:
        """Start a daemon in the foreground of a process of ours."""
        with open(self.folder / "log" / f"{name}.out", "ab") as out:
            self.daemons[name] = subprocess.Popen(command, stdout=out, stderr=out, stdin=subprocess.DEVNULL)

    def start_controller(self) -> None:
        self.start("slurmctld", "slurmctld", "-D", "-f", str(self.conf))

    def stop(self, name: str) -> None:
        """End a daemon by its pid, and wait for it."""
        process = self.daemons.pop(name)
        process.terminate()
        try:
            process.wait(15)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()

    def wait_until_up(self, seconds: float = 60) -> None:
        """Every node idle or busy in the controller's eyes."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            states = call("sinfo", "-h", "-N", "-p", "low", "-o", "%T").split()
            if len(states) == len(self.nodes) and all(state in ("idle", "mixed", "allocated") for state in states):
                return
            time.sleep(0.1)
        logs = "\n".join(path.read_text(errors="replace")[-2000:] for path in (self.folder / "log").glob("*"))
        raise RuntimeError(f"Slurm did not come up:\n{logs}")


def call(*command: str) -> str:
    """Output of a Slurm command; empty when it failed."""
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    return done.stdout if done.returncode == 0 else ""


def require_slurm() -> None:
    """Skip where Slurm cannot be run by hand; fail where .ci/run has installed it."""
    missing = [name for name in DAEMONS if shutil.which(name, path=f"{os.environ['PATH']}:/usr/sbin") is None]
    if os.geteuid() != 0:
        missing.append("root")
    if missing and os.environ.get("HARNESS_CI") == "1":
        pytest.fail(f"a real Slurm is part of CI, and this is missing: {', '.join(missing)}")
    if missing:
        pytest.skip(f"needs {', '.join(missing)} (Debian: slurmctld slurmd slurm-client munge)")


@contextlib.contextmanager
def slurm_box(folder: Path, port: int, node_count: int = 1, cores: int = 2) -> Iterator[Box]:
    """A Slurm with SLURM_CONF set, on five ports from `port`; everything is stopped at the end."""
    os.environ["PATH"] = f"{os.environ['PATH']}:/usr/sbin"
    (folder / "log").mkdir(parents=True)
    (folder / "state").mkdir()
    nodes = [platform.node().split(".")[0]] if node_count == 1 else [f"n{i}" for i in range(node_count)]
    box = Box(folder, port, nodes)
    box.conf.write_text(configuration(box, cores))
    before = os.environ.get("SLURM_CONF")
    os.environ["SLURM_CONF"] = str(box.conf)
    try:
        start_munge(box)
        box.start_controller()
        for node in nodes:
            (folder / f"spool.{node}").mkdir()
            box.start(f"slurmd.{node}", "slurmd", "-D", "-N", node, "-f", str(box.conf))
        box.wait_until_up()
        yield box
    finally:
        call("scancel", "--user=root")
        for name in [*(f"slurmd.{node}" for node in nodes), "slurmctld", "munged"]:
            if name in box.daemons:
                box.stop(name)
        os.environ.pop("SLURM_CONF")
        if before is not None:
            os.environ["SLURM_CONF"] = before


def start_munge(box: Box) -> None:
    """munged as its own user with a key and socket of ours: whatever munge the machine runs is left alone."""
    place = box.folder / "munge"
    place.mkdir(mode=0o755)
    key = place / "key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    options = [f"--socket={place}/socket", f"--key-file={key}", f"--pid-file={place}/pid", f"--log-file={place}/log"]
    box.start("munged", "munged", "--foreground", "--force", f"--seed-file={place}/seed", *options)
    deadline = time.monotonic() + 20
    while not (place / "socket").exists():
        if time.monotonic() > deadline:
            raise RuntimeError((box.folder / "log" / "munged.out").read_text())
        time.sleep(0.05)


def configuration(box: Box, cores: int) -> str:
    """slurm.conf (Slurm 22.05 and later). cred_expire: a requeued job waits that long, 120 s where it is not given."""
    host, folder = platform.node().split(".")[0], box.folder
    share = max(1, cores // len(box.nodes))
    if len(box.nodes) == 1:
        node_lines = f"NodeName={host} NodeAddr=127.0.0.1 Port={box.port + 1} CPUs={cores} RealMemory=8000"
    else:  # several slurmd on one host, which Debian's build allows
        node_lines = "\n".join(
            f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={box.port + 1 + i} CPUs={share} "
            "RealMemory=4000"
            for i, node in enumerate(box.nodes)
        )
    names = ",".join(box.nodes)
    return f"""\
ClusterName=box
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=cred_expire=5,socket={folder}/munge/socket
CryptoType=crypto/munge
SlurmctldPort={box.port}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
DefMemPerCPU=1000
SchedulerType=sched/backfill
SchedulerParameters=batch_sched_delay=1,bf_interval=1,sched_interval=1,sched_min_interval=0,defer
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SlurmctldParameters=preempt_send_user_signal
JobRequeue=1
MaxArraySize=6
ReturnToService=2
KillWait=5
MinJobAge=300
{node_lines}
PartitionName=low Nodes={names} Default=YES MaxTime=60 State=UP PriorityTier=1 PreemptMode=REQUEUE \
GraceTime={GRACE_SECONDS}
PartitionName=high Nodes={names} MaxTime=60 State=UP PriorityTier=10 PreemptMode=OFF
"""
