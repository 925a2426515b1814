"""Which step went wrong, without waiting for the device at every step."""

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch

from harness.data.block_order import blocks_of
from harness.data.loader import rank_rows, window_batches
from harness.data.pixels import Pixels
from harness.errors import HarnessError
from harness.run_folder import write_json
from harness.train.schedule import learning_rate, total_steps
from harness.train.step import Step

if TYPE_CHECKING:
    from harness.train.loop import TrainJob

SHOWN_KEYS = 8
LOOKED_AT_TOGETHER = 512  # steps


class DivergedError(HarnessError):
    """Training loss or gradient is no longer finite. Starting again would end the same way."""


class FiniteWatch:
    """Remembers the first step whose loss or gradient is not finite, with both numbers; reads the device at `check`."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, Step]] = []  # since the last check; looking at them one by one costs more
        self.first = torch.zeros(3, dtype=torch.float64)  # step, loss, gradient norm; step 0 = none; on the device

    def note(self, step: int, taken: Step) -> None:
        """Look at one step; nothing is read back."""
        self.seen.append((step, taken))
        if len(self.seen) >= LOOKED_AT_TOGETHER:
            self.look()

    def look(self) -> None:
        """Keep the first bad one of the steps seen, on the device."""
        if not self.seen:
            return
        numbers = torch.stack([number for _, taken in self.seen for number in taken]).double().view(-1, 2)
        steps = torch.tensor([float(step) for step, _ in self.seen], dtype=torch.float64).to(numbers.device)
        bad = ~torch.isfinite(numbers.sum(1))
        rows = torch.cat([steps[:, None], numbers], dim=1)
        found = torch.where(bad.any(), rows[bad.int().argmax()], torch.zeros_like(rows[0]))
        self.first = self.first.to(numbers.device)
        self.first = torch.where(self.first[0] > 0, self.first, found)
        self.seen.clear()

    def check(self, explain: Callable[[int], str], any_rank: Callable[[bool], bool]) -> None:
        """Raise DivergedError, on every rank, if any step of any rank was bad; explain(step) adds to it."""
        self.look()
        step, loss, norm = self.first.tolist()
        if not any_rank(step > 0):
            return
        if not step:
            raise DivergedError("loss or gradient of another rank is not finite; its log has the step")
        raise DivergedError(
            f"training loss is {loss:g} and the gradient's norm {norm:g} at step {int(step)} ({explain(int(step))})"
        )


def describe_batch(job: "TrainJob", step: int) -> str:
    """Learning rate and first sample keys of a step's batch (of this rank); all keys go to diverged.json.

    Nothing was kept for this: the order of samples is a pure function, and is computed again.
    """
    recipe, dataset = job.recipe, job.dataset
    start = (step - 1) * recipe.batch_size
    blocks = blocks_of(job.order, job.window, dataset.splits["train"].shards, job.seed)
    batch = next(window_batches(job.window, job.seed, recipe.batch_size, start, blocks))
    positions = batch[rank_rows(recipe.batch_size, job.ranks.rank, job.ranks.count)]
    pixels = Pixels(dataset, "train", job.image_size, job.channels)
    keys = [pixels.name(int(position)).rpartition("sample ")[2] for position in positions]
    rate = learning_rate(start, recipe, total_steps(recipe) * recipe.batch_size)
    name = f"diverged-rank{job.ranks.rank}.json" if job.ranks.rank else "diverged.json"
    write_json(job.folder / name, {"step": step, "samples_seen": start, "learning_rate": rate, "sample_keys": keys})
    shown = ", ".join(keys[:SHOWN_KEYS])
    return f"learning rate {rate:.3g}, {start:,} samples seen before it; its batch: {shown}, …; all in {name}"
