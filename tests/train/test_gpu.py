"""The same loop on a CUDA device: bf16, compiled, a probe for the micro-batch, memory that runs out."""

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from harness.run_folder import read_metrics
from harness.train.loop import StoppedError, TrainJob, find_micro_batch, resume, train
from harness.train.prepare import OutOfMemoryError
from tests.train.conftest import stop_after

pytestmark = pytest.mark.gpu
Job = Callable[..., TrainJob]


@pytest.fixture
def gpu_job(job: Job) -> Job:
    def make(name: str, **changes: Any) -> TrainJob:
        made = job(name, **changes)
        made.device, made.precision = torch.device("cuda", 0), "bf16"
        return made

    return make


@pytest.fixture
def little_memory() -> Iterator[None]:
    """256 MiB of the device."""
    torch.cuda.empty_cache()
    torch.cuda.set_per_process_memory_fraction(256 * 2**20 / torch.cuda.get_device_properties(0).total_memory, 0)
    yield
    torch.cuda.set_per_process_memory_fraction(1.0, 0)


@pytest.mark.parametrize("compiled", [False, True])
@pytest.mark.parametrize("model", ["vit_pocket", "resnet_pocket"])
def test_a_stopped_run_sees_the_same_samples_and_losses(gpu_job: Job, model: str, compiled: bool) -> None:
    changes: dict[str, Any] = {"model": model, "settings": {"compile": compiled}}
    whole = gpu_job("whole", **changes)
    train(whole)
    part = gpu_job("part", **changes)
    stop_after(part, 7)
    with pytest.raises(StoppedError):
        train(part)
    again = gpu_job("part", **changes)
    assert train(again).device_seconds > 0
    for row, expected in zip(read_metrics(part.folder), read_metrics(whole.folder), strict=True):
        assert (row["samples_seen"], row["split"]) == (expected["samples_seen"], expected["split"])
        assert row["loss"] == pytest.approx(expected["loss"], rel=0.05)


@pytest.mark.usefixtures("little_memory")
def test_the_probe_finds_what_fits_and_the_batch_stays_what_it_is(gpu_job: Job) -> None:
    changes: dict[str, Any] = {"batch_size": 48_000, "samples_seen": "96000", "evaluations": 1}
    probed = gpu_job("probed", **changes)
    progress = train(probed)
    assert progress.micro_batch < 48_000
    assert 48_000 % progress.micro_batch == 0
    assert progress.samples_seen == 96_000
    again = gpu_job("probed", **changes)
    state = resume(again, again_trained(again))
    assert state is not None
    assert find_micro_batch(again, state) == progress.micro_batch


def again_trained(job: TrainJob) -> Any:
    """An empty state to resume into."""
    from harness.train.average import Average
    from harness.train.loop import Trained
    from harness.train.optim import build_optimizer

    model = job.model.to(job.device)
    return Trained(
        model, build_optimizer(model, job.recipe), Average(model, job.recipe.polyak), torch.zeros((), device=job.device)
    )


@pytest.mark.usefixtures("little_memory")
def test_out_of_memory_says_what_to_set(gpu_job: Job) -> None:
    changes: dict[str, Any] = {"batch_size": 48_000, "samples_seen": "96000", "evaluations": 1}
    with pytest.raises(OutOfMemoryError, match=r"micro-batch of 48000 .* set loop\.micro_batch=24000"):
        train(gpu_job("full", settings={"micro_batch": 48_000}, **changes))
