"""One process of a run on several Slurm tasks: srun's numbers become torch.distributed's, then the run begins.

No torchrun in between: it would pass neither USR1 on nor wait longer than 30 s for a checkpoint after TERM.
"""

import os
import sys

NAMES = {"RANK": "SLURM_PROCID", "LOCAL_RANK": "SLURM_LOCALID", "WORLD_SIZE": "SLURM_NTASKS"}


def main(arguments: list[str]) -> None:
    """Replace this process by `python ARGUMENTS` with the environment that torch.distributed reads."""
    for name, slurm_name in NAMES.items():
        os.environ[name] = os.environ[slurm_name]
    per_node = os.environ.get("SLURM_NTASKS_PER_NODE", "1")
    os.environ["LOCAL_WORLD_SIZE"] = per_node
    os.execv(sys.executable, [sys.executable, *arguments])


if __name__ == "__main__":
    main(["-m", *sys.argv[1:]])
