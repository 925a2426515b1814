"""Fine-tuning through the training loop: the rate chosen on dev, all images in the end, interruptions without trace."""

import json
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from harness.compose import compose
from harness.config import FinetuneConfig, LoopConfig, TransferConfig
from harness.data.joined import dev_window, full_training_split
from harness.data.manifest import Dataset, open_dataset
from harness.data.on_demand import open_or_pack
from harness.data.pack import pack
from harness.data.pixels import Pixels
from harness.data.subset import window
from harness.errors import ConfigError, HarnessError
from harness.models.adapt import downstream
from harness.models.build import build_model
from harness.train.evaluate import to_input
from harness.train.loop import Progress, StoppedError, TrainJob, find_micro_batch
from harness.transfer import finetune
from harness.transfer.features import labels_of
from harness.transfer.finetune import Tuning, best_rate, finetune_recipe, finetune_rows
from tests.transfer.test_evaluate import subject

OPTIONS = FinetuneConfig(
    source="test",
    steps=6,
    learning_rates=[1e-6, 0.03],
    dev_split="10%",
    seeds=[0, 1],
    batch_size=64,
    random_resized_crop=False,
    flip=False,
)


def transfer_config(**changes: object) -> TransferConfig:
    options = replace(OPTIONS, **changes)  # type: ignore[arg-type]
    return replace(compose(["transfer=digits"]).transfer, protocol="finetune", finetune=options, baselines=False)


@pytest.fixture
def digits(roots: Path) -> Dataset:
    return open_or_pack("digits")


def test_rows_name_every_seed_and_the_rate_comes_from_dev(digits: Dataset, tmp_path: Path) -> None:
    rows, details = finetune_rows(transfer_config(steps=40), digits, subject(), tmp_path / "work", None)
    assert [(row["protocol"], row["features"], row["support_seed"]) for row in rows] == [
        ("finetune", "pretrained", 0),
        ("finetune", "pretrained", 1),
    ]
    dev = details["dev"]["pretrained"]
    assert dev["0.03"] > dev["1e-06"]
    assert details["learning_rate"]["pretrained"] == 0.03
    assert min(row["value"] for row in rows) > 0.3
    assert not (tmp_path / "work").exists()


def test_an_interrupted_fine_tuning_ends_as_an_undisturbed_one(
    digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    import os
    import signal

    cfg = transfer_config(learning_rates=[0.03])
    expected, _ = finetune_rows(cfg, digits, subject(), tmp_path / "undisturbed", None)

    work = tmp_path / "work" / digits.digest[:16] / "pretrained"
    tuning = Tuning(cfg, digits, subject(), subject().trained(), work)
    tuning.dev_score(0.03)
    job = tuning.job(work / "seed-0", full_window(digits), 0.03, 0, np.arange(1))
    beats: list[int] = []

    def stop(**report: object) -> None:
        beats.append(1)
        os.kill(os.getpid(), signal.SIGUSR1)

    job.heartbeat = stop
    from harness.train.loop import train

    with pytest.raises(StoppedError):
        train(job)
    assert beats
    assert (job.folder / "checkpoints" / "last.safetensors").exists()
    found, _ = finetune_rows(cfg, digits, subject(), tmp_path / "work", None)
    assert found == expected


def test_what_was_begun_on_other_images_is_not_gone_on_with(
    digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    cfg = transfer_config(learning_rates=[0.03])
    expected, _ = finetune_rows(cfg, digits, subject(), tmp_path / "undisturbed", None)
    honest = Tuning.test_values

    def interrupted(self: Tuning, rate: float, seed: int, real: list[list[int]] | None) -> list[tuple[str, float]]:
        if seed == 1:
            raise KeyboardInterrupt
        honest(self, rate, seed, real)
        return [("top1", self.keep(self.work / "seed-0", {"test": [("top1", 0.123)]})["test"][0][1])]

    monkeypatch.setattr(Tuning, "test_values", interrupted)
    with pytest.raises(KeyboardInterrupt):
        finetune_rows(cfg, replace(digits, digest="0" * 64), subject(), tmp_path / "work", None)
    monkeypatch.undo()
    assert finetune_rows(cfg, digits, subject(), tmp_path / "work", None)[0] == expected


def test_with_polyak_averaging_the_mean_of_the_weights_is_tested(
    digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Factor min(polyak, (1 + n) / (10 + n)) after step n, from the weights that training began with."""
    from harness.train import loop

    along: list[dict[str, torch.Tensor]] = []
    real = loop.take_step

    def take_step(job: loop.TrainJob, wrapped: object, trained: loop.Trained, *rest: object) -> object:
        if not along:
            along.append({name: tensor.clone() for name, tensor in trained.model.state_dict().items()})
        taken = real(job, wrapped, trained, *rest)  # type: ignore[arg-type]
        along.append({name: tensor.clone() for name, tensor in trained.model.state_dict().items()})
        return taken

    monkeypatch.setattr(loop, "take_step", take_step)
    cfg = transfer_config(steps=5, polyak=0.4)
    tuning = Tuning(cfg, digits, subject(), subject().trained(), tmp_path)
    [(metric, value)] = tuning.test_values(0.1, 0, None)
    mean = along[0]
    for step, weights in enumerate(along[1:], start=1):
        factor = min(0.4, (1 + step) / (10 + step))
        mean = {name: factor * mean[name] + (1 - factor) * weights[name] for name in mean}
    scores = {}
    for name, tensors in (("mean", mean), ("last", along[-1])):
        network = tuning.job(tmp_path / name, full_window(digits), 0.1, 0, np.arange(1)).model.eval()
        network.load_state_dict(tensors)
        pixels = Pixels(digits, "test", 16, 1)
        images = np.stack([pixels[position] for position in range(len(pixels))])
        with torch.no_grad():
            choice = network(to_input(torch.from_numpy(images), torch.device("cpu"))).argmax(1).numpy()
        scores[name] = float((choice == labels_of(digits, "test")).mean())
    assert len(along) == 6
    assert (metric, value) == ("top1", pytest.approx(scores["mean"], abs=1e-9))
    assert scores["mean"] != scores["last"]


def full_window(dataset: Dataset):  # type: ignore[no-untyped-def]
    from harness.data.subset import window

    samples = dataset.splits["train"].samples
    return window(samples, samples, 0)


def test_the_head_starts_at_zero_and_its_hidden_layer_is_gone() -> None:
    config = replace(compose(["model=vit_pocket"]).model, head="hidden_tanh")
    torch.manual_seed(0)
    source = build_model(config, 10, 1)
    model = downstream(config, source.state_dict(), 32, 7, 1)
    assert set(dict(model.head.named_parameters())) == {"weight", "bias"}  # type: ignore[union-attr, operator]
    assert model(torch.randn(3, 1, 32, 32)).abs().max() == 0
    torch.testing.assert_close(model.blocks[1].mlp.fc1.weight, source.blocks[1].mlp.fc1.weight)  # type: ignore[index, union-attr]
    assert model.pos_embed.shape[1] == 1 + 16  # type: ignore[union-attr, index]


@pytest.mark.parametrize("name", ["vit_pocket", "resnet_pocket", "hybrid_pocket"])
def test_every_family_gets_a_head_and_keeps_its_features(name: str) -> None:
    config = compose([f"model={name}"]).model
    source = build_model(config, 10, 1).eval()
    model = downstream(config, source.state_dict(), 16, 4, 1).eval()
    images = torch.randn(2, 1, 16, 16)
    with torch.no_grad():
        torch.testing.assert_close(model.forward_features(images), source.forward_features(images))  # type: ignore[operator]


def test_a_checkpoint_of_another_network_is_told() -> None:
    source = build_model(compose(["model=resnet_pocket"]).model, 10, 1)
    with pytest.raises(HarnessError, match=r"missing: cls_token.*left over: stem"):
        downstream(compose(["model=vit_pocket"]).model, source.state_dict(), 16, 4, 1)


def test_the_full_training_split_is_train_and_val_in_place(tiny: Dataset, roots: Path) -> None:
    full = full_training_split(tiny)
    train, val = tiny.splits["train"].samples, tiny.splits["val"].samples
    assert full.splits["train"].samples == train + val
    joined = Pixels(full, "train", 16, 1)
    for position, (split, own) in {0: ("train", 0), train - 1: ("train", train - 1), train: ("val", 0)}.items():
        np.testing.assert_array_equal(joined[position], Pixels(tiny, split, 16, 1)[own])
    np.testing.assert_array_equal(full.index("train")["label"][train:], tiny.index("val")["label"])
    part, dev = dev_window(tiny, "2%")
    assert (part.start, part.size, dev[0], len(dev)) == (0, train, train, val)


def test_the_index_of_a_set_packed_anew_in_another_encoding_is_its_own(roots: Path, tmp_path: Path) -> None:
    """Equal pixels and digest, other bytes: the index that was kept would point into them anywhere."""
    rng = np.random.default_rng(0)
    for number in range(40):
        path = tmp_path / "files" / f"class{number % 2}" / f"{number}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        blocks = np.kron(rng.integers(0, 255, (4, 4)), np.ones((16, 16)))  # what a compression makes smaller
        Image.fromarray(blocks.astype(np.uint8)).save(path, compress_level=0)
    words = ["data=folder", f"data.path={tmp_path / 'files'}", "data.name=files", "data.channels=1"]
    words += ["data.image_size=null", "data.val_samples=10", "data.test_samples=10"]
    kept, anew = (
        open_dataset(pack(compose([*words, f"data.codec={codec}"]).data, tmp_path / codec, workers=1, progress=False))
        for codec in ("keep", "png")
    )
    assert kept.digest == anew.digest
    assert [shard["bytes"] for shard in kept.splits["train"].shards] != [
        shard["bytes"] for shard in anew.splits["train"].shards
    ]
    for dataset in (kept, anew):
        found, expected = Pixels(full_training_split(dataset), "train", 64, 1), Pixels(dataset, "train", 64, 1)
        for position in (1, 7, 19):
            np.testing.assert_array_equal(found[position], expected[position])


def test_rates_that_differ_in_the_last_digit_are_two_runs(digits: Dataset, tmp_path: Path) -> None:
    cfg = transfer_config(learning_rates=[0.01, 0.010000001], seeds=[0], steps=2)
    _, details = finetune_rows(cfg, digits, subject(), tmp_path / "work", None)
    assert set(details["dev"]["pretrained"]) == {"0.01", "0.010000001"}


def test_one_models_own_image_size_is_said(digits: Dataset, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cfg = transfer_config(image_size=32, image_sizes={"vit_pocket": 24})
    tuning = Tuning(cfg, digits, subject(), subject().trained(), tmp_path)
    assert tuning.image_size == 24
    assert "vit_pocket is fine-tuned at 24 pixels" in capsys.readouterr().out


def test_a_step_takes_as_many_images_at_once_as_memory_holds(
    digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """384 pixels are 2,304 tokens of this network: unfused, 512 images keep 75 GB."""
    cfg = transfer_config(image_size=384, batch_size=512)
    monkeypatch.setattr(finetune, "usable_memory_bytes", lambda: 16e9)

    def job_of(cfg: TransferConfig, loop: LoopConfig) -> TrainJob:
        whose = replace(subject(), loop=loop)
        tuning = Tuning(cfg, digits, whose, whose.trained(), tmp_path)
        return tuning.job(tmp_path / "run", window(100, 100, 0), 0.01, 0, np.arange(1))

    job = job_of(cfg, LoopConfig())
    found = re.fullmatch(
        r"fine-tuning vit_pocket at 384 pixels: 512 images at once would take at least (\d+) of 16 GB, so they are "
        r"taken in parts; the batch stays 512\n",
        capsys.readouterr().out,
    )
    assert found is not None
    fitting, takes = find_micro_batch(job, Progress()), int(found[1])
    assert 512 % fitting == 0
    assert takes * fitting / 512 < 0.4 * 16 < takes * 2 * fitting / 512
    assert find_micro_batch(job, Progress(micro_batch=2 * fitting)) == 2 * fitting  # gone on with as it was begun
    assert find_micro_batch(job_of(cfg, LoopConfig(micro_batch=64)), Progress()) == 64
    small = replace(cfg, finetune=replace(cfg.finetune, image_size=16))
    assert find_micro_batch(job_of(small, LoopConfig()), Progress()) == 512
    assert capsys.readouterr().out == ""
    monkeypatch.setattr(finetune, "usable_memory_bytes", lambda: 1e8)
    with pytest.raises(ConfigError, match=r"at least 0\.1 GB for one image, and this machine has 0\.1 GB a process"):
        Tuning(cfg, digits, subject(), {}, tmp_path)


def test_dev_is_cut_from_training_where_there_is_no_validation(digits: Dataset) -> None:
    part, dev = dev_window(digits, "10%")
    samples = digits.splits["train"].samples
    assert len(dev) == round(samples / 10)
    assert part.size + len(dev) == samples
    assert not set(part.split_positions(np.arange(part.size)).tolist()) & set(dev.tolist())


def test_the_recipe_is_table_4() -> None:
    recipe = finetune_recipe(compose(["transfer=cifar10"]).transfer.finetune, 0.01)  # type: ignore[arg-type]
    assert (recipe.optimizer, recipe.beta1, recipe.weight_decay, recipe.clip_norm) == ("sgd", 0.9, 0.0, 1.0)
    assert (recipe.batch_size, recipe.schedule, recipe.samples_seen) == (512, "cosine", str(512 * 10_000))
    rates = {"imagenet": [0.003, 0.01, 0.03, 0.06], "pets": [0.001, 0.003, 0.01, 0.03]}
    for name, expected in rates.items():
        options = compose([f"transfer={name}"]).transfer.finetune
        assert options is not None
        assert (options.learning_rates, options.image_size, len(options.seeds)) == (expected, 384, 3)


def test_the_best_rate_is_the_smallest_of_equals_and_diverged_ones_lose() -> None:
    assert best_rate({0.01: 0.5, 0.003: 0.5, 0.1: -1.0}) == 0.003
    with pytest.raises(HarnessError, match="every learning rate"):
        best_rate({0.1: -1.0, 1.0: -1.0})


def test_a_rate_that_diverges_is_left_out(digits: Dataset, tmp_path: Path) -> None:
    cfg = transfer_config(learning_rates=[0.03, 1e30], clip_norm=None, seeds=[0])
    rows, details = finetune_rows(cfg, digits, subject(), tmp_path / "work", None)
    assert details["dev"]["pretrained"]["1e+30"] == -1.0
    assert details["learning_rate"]["pretrained"] == 0.03
    json.dumps(rows)
