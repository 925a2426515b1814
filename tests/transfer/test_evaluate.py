"""A target by a protocol: features kept by digest, shared images refused, numbers of the published protocol."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from harness.compose import compose
from harness.config import TransferConfig
from harness.data.joined import dev_window
from harness.data.manifest import Dataset
from harness.data.on_demand import open_or_pack
from harness.errors import ConfigError, DatasetError, HarnessError
from harness.models.build import build_model, pre_logits
from harness.paths import cache_root
from harness.train.evaluate import to_input
from harness.transfer import evaluate, features
from harness.transfer.check import check_transfer
from harness.transfer.evaluate import evaluate_target, transfer_rows
from harness.transfer.features import Features, Setting, cache_path, cached_features, extract
from harness.transfer.fewshot import Protocol, fewshot_grid
from harness.transfer.shared import refuse_shared, shared_classes
from harness.transfer.subject import Subject

CPU = torch.device("cpu")


@pytest.fixture
def network() -> nn.Module:
    torch.manual_seed(0)
    return build_model(compose(["model=vit_pocket"]).model, 10, 1)


@pytest.fixture
def setting() -> Setting:
    return Setting(16, 1, CPU)


def subject(channels: int = 1) -> Subject:
    config = compose(["model=vit_pocket"]).model

    def tensors(seed: int) -> dict[str, torch.Tensor]:
        torch.manual_seed(seed)
        return build_model(config, 10, channels).state_dict()

    return Subject(config, 10, channels, lambda: tensors(1), lambda: tensors(2), "fp32", "unfused", CPU)


@pytest.fixture
def digits(roots: Path) -> Dataset:
    return open_or_pack("digits")


def test_features_are_extracted_once(digits: Dataset, network: nn.Module, setting: Setting) -> None:
    config = compose(["model=vit_pocket"]).model
    first = cached_features(network, config, digits, "test", setting)
    assert len(first.features) == digits.splits["test"].samples
    network.forward_features = None  # type: ignore[assignment]  # whoever calls it now fails
    again = cached_features(network, config, digits, "test", setting)
    np.testing.assert_array_equal(first.features, again.features)
    np.testing.assert_array_equal(first.labels, again.labels)


def test_a_damaged_cache_file_is_made_again(
    digits: Dataset, network: nn.Module, setting: Setting, capsys: pytest.CaptureFixture[str]
) -> None:
    config = compose(["model=vit_pocket"]).model
    first = cached_features(network, config, digits, "train", setting)
    path = cache_path(network, config, digits, "train", setting)
    data = bytearray(path.read_bytes())
    data[-5] ^= 1
    path.write_bytes(bytes(data))
    again = cached_features(network, config, digits, "train", setting)
    np.testing.assert_array_equal(first.features, again.features)
    assert "extracted again" in capsys.readouterr().out
    assert path.read_bytes() != bytes(data)


def test_features_that_are_not_finite_are_no_result(
    digits: Dataset, network: nn.Module, setting: Setting, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Finite weights, too large; before and after features were kept by a version that did not look."""
    config, message = compose(["model=vit_pocket"]).model, r"vit_pocket: .* 898 of 898 images of digits's test split"
    with torch.no_grad():
        network.patch_embed.proj.weight.fill_(1e30)  # type: ignore[union-attr, operator]
    with pytest.raises(HarnessError, match=message):
        cached_features(network, config, digits, "test", setting)
    assert not cache_path(network, config, digits, "test", setting).exists()
    monkeypatch.setattr(features, "load_cached", lambda path: np.full((898, 3), np.inf, np.float32))
    with pytest.raises(HarnessError, match=message):
        cached_features(network, config, digits, "test", setting)


def test_the_cache_knows_what_features_depend_on(digits: Dataset, network: nn.Module, setting: Setting) -> None:
    config = compose(["model=vit_pocket"]).model
    paths = [
        cache_path(network, config, digits, "train", setting),
        cache_path(network, config, digits, "test", setting),
        cache_path(network, config, digits, "train", replace(setting, image_size=8)),
        cache_path(network, config, digits, "train", replace(setting, precision="bf16")),
        cache_path(network, config, replace(digits, digest="0" * 64), "train", setting),
        cache_path(network, replace(config, head="hidden_tanh"), digits, "train", setting),
    ]
    with torch.no_grad():
        next(network.parameters()).add_(1e-7)
    paths.append(cache_path(network, config, digits, "train", setting))
    assert len(set(paths)) == len(paths)


def test_features_equal_a_bare_forward_pass(digits: Dataset, network: nn.Module, setting: Setting) -> None:
    from harness.data.pixels import Pixels

    found = extract(network, digits, "test", setting)
    pixels = Pixels(digits, "test", 16, 1)
    images = torch.from_numpy(np.stack([pixels[i] for i in range(7)]))
    with torch.no_grad():
        expected = pre_logits(network.eval(), to_input(images, CPU))
    np.testing.assert_allclose(found.features[:7], expected.numpy(), atol=1e-5)


def test_rows_of_the_default_protocol_are_the_published_ones(digits: Dataset, tmp_path: Path) -> None:
    """Every kind, shots and seed once, each the value of the plain function."""
    cfg = replace(compose(["transfer=digits"]).transfer, shots=[1, 5])
    rows, details = transfer_rows(cfg, digits, subject(), tmp_path)
    assert [(row["features"], row["shots"], row["support_seed"]) for row in rows] == [
        (kind, shots, seed)
        for kind in ("pretrained", "untrained", "raw_pixels")
        for shots in (1, 5)
        for seed in (0, 1, 2)
    ]
    pixels = [extract(None, digits, split, Setting(16, 1, CPU)) for split in ("train", "test")]
    row = next(
        row for row in rows if row["features"] == "raw_pixels" and row["shots"] == 5 and row["support_seed"] == 1
    )
    (fit,) = fewshot_grid(*pixels[0], pixels[1].features, shots=[5], seeds=[1], protocol=Protocol())
    assert row["value"] == (fit.classes[fit.scores.argmax(1)] == pixels[1].labels).mean()
    chosen = details["support"]["5-shot, seed 1"]
    assert len(chosen) == 50
    assert np.bincount(pixels[0].labels[chosen]).tolist() == [5] * 10
    assert set(details["support"]["1-shot, seed 1"]) <= set(chosen)


def test_a_probe_beats_five_shots(digits: Dataset, tmp_path: Path) -> None:
    cfg = compose(["transfer=digits", "transfer.protocol=probe", "transfer.l2s=[1.0,1024.0]"]).transfer
    rows, details = transfer_rows(cfg, digits, subject(), tmp_path)
    five, _ = transfer_rows(compose(["transfer=digits"]).transfer, digits, subject(), tmp_path)
    assert [row["protocol"] for row in rows] == ["linear_probe"] * 3
    assert rows[0]["value"] > max(row["value"] for row in five if row["features"] == "pretrained")
    assert set(details["l2"].values()) <= {1.0, 1024.0}


@pytest.mark.parametrize("protocol, refused", [("fewshot", True), ("probe", True), ("finetune", False)])
def test_a_tested_class_without_training_images_is_refused_before_features(
    protocol: str, refused: bool, digits: Dataset, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fine-tuning trains on the validation split too."""
    train, test = digits.splits["train"], digits.splits["test"]
    counts = [0 if number == 5 else count for number, count in enumerate(train.class_counts)]
    splits = {"train": replace(train, class_counts=counts), "val": train, "test": test}
    cfg = compose(["transfer=digits", f"transfer.protocol={protocol}"]).transfer

    class ReachedError(Exception): ...

    def reached(*_: object) -> None:
        raise ReachedError

    monkeypatch.setattr(evaluate, "features_of", reached)
    monkeypatch.setattr(evaluate, "finetune_rows", reached)
    with pytest.raises(DatasetError if refused else ReachedError, match="tested but have no" if refused else None):
        transfer_rows(cfg, replace(digits, splits=splits), subject(), tmp_path)
    only = {"train": splits["train"], "test": test}
    with pytest.raises(DatasetError, match="1 classes are tested but have no training image: 5 "):
        transfer_rows(cfg, replace(digits, splits=only), subject(), tmp_path)


def test_a_target_that_shares_images_is_refused(digits: Dataset, tiny: Dataset) -> None:
    refuse_shared(tiny, digits, 16, 1, "refuse")
    with pytest.raises(DatasetError, match=r"digits shares images .* in train, .* in test"):
        refuse_shared(digits, digits, 16, 1, "refuse")
    refuse_shared(digits, digits, 16, 1, "train")  # its test images are in no split that training saw
    kept = next((cache_root() / "digests").glob("digits-train-*.bin"))
    whole = kept.read_bytes()
    for damaged in (whole[:8], b"", whole[:-8] + bytes(8)):  # images that are shared would pass
        kept.write_bytes(damaged)
        with pytest.raises(DatasetError, match=r"digits shares images .* in train, .* in test"):
            refuse_shared(digits, digits, 16, 1, "refuse")
        assert kept.read_bytes() == whole


def test_shared_images_are_found_by_pixels_where_their_origins_differ(tiny: Dataset, tmp_path: Path) -> None:
    """The same pictures, packed again from files: of a glyph the origin is an outline, of a file its bytes."""
    from PIL import Image

    from harness.data.manifest import open_dataset
    from harness.data.pack import pack
    from harness.data.pixels import Pixels

    pixels = Pixels(tiny, "train", 16, 1)
    for number in range(20):
        folder = tmp_path / "files" / f"class{number % 2}"
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(pixels[number][0]).save(folder / f"{number}.png")
    words = ["data=folder", f"data.path={tmp_path / 'files'}", "data.name=copies", "data.channels=1"]
    words += ["data.image_size=16", "data.val_samples='0'", "data.test_samples=50%"]
    pack(compose(words).data, tmp_path, workers=1, progress=False)
    copies = open_dataset(tmp_path / "copies")
    assert not np.isin(copies.index("test")["origin"], tiny.index("train")["origin"]).any()
    with pytest.raises(DatasetError, match="10 of 10 in test"):
        refuse_shared(tiny, copies, 16, 1, "train")


def test_shared_class_names_are_told(digits: Dataset, tiny: Dataset, tmp_path: Path) -> None:
    assert shared_classes(tiny, digits) == list("0123456789")
    content = evaluate_target(compose(["transfer=digits"]).transfer, subject(), tiny, tmp_path)
    assert content["target"]["shared_class_names"] == list("0123456789")


@pytest.mark.parametrize(
    "words, message",
    [
        (["transfer.protocol=few"], "fewshot"),
        (["transfer.metrics=[top2]"], "top2"),
        (["transfer.metrics=[real]"], "real_labels"),
        (["transfer.metrics=[top1,top5,top1]"], "top1 is there twice"),
        (["transfer.l2=0"], "above 0"),
        (["transfer.shots=[0]"], "shots"),
        (["transfer.shots=[99999999999999999999]"], "shots: 99999999999999999999 is over 9,223,372,036,854,775,807"),
        (["transfer.shared_images=yes"], "refuse, train"),
    ],
)
def test_what_cannot_be_done_is_said_first(words: list[str], message: str, tiny: Dataset, roots: Path) -> None:
    cfg: TransferConfig = compose(["transfer=digits", *words]).transfer
    with pytest.raises(ConfigError, match=message):
        evaluate_target(cfg, subject(), tiny, roots)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"l2": float("nan")}, "transfer.l2: nan is not above 0"),
        ({"bias": float("inf")}, "transfer.bias: inf is not"),
        ({"bias": -1e200}, "transfer.bias: 1e.200 is over 1,000,000"),
        ({"shared_images": "all"}, "transfer.shared_images=all. Known: refuse, train"),
        ({"support_seeds": [10**23]}, "transfer.support_seeds: 1.* is over"),
        ({"image_size": 100_000}, "transfer.image_size: 100000 is over 4,096"),
        ({"l2s": []}, "transfer.l2s: needs a value"),
        ({"shots": [5, 5]}, "a value is there twice"),
        ({"support_seeds": [-1]}, "transfer.support_seeds: -1 is not at least 0"),
        ({"image_size": 0}, "transfer.image_size: 0 is not at least 1"),
    ],
)
def test_numbers_that_no_result_could_come_of(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_transfer(replace(compose(["transfer=digits"]).transfer, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"learning_rates": []}, "learning_rates: needs a value"),
        ({"learning_rates": [float("nan")]}, "nan is not above 0"),
        ({"seeds": []}, "finetune.seeds: needs a value"),
        ({"seeds": [0, 0]}, "a value is there twice"),
        ({"steps": 0}, "finetune.steps: 0 is not at least 1"),
        ({"steps": 10, "warmup_steps": 50}, "warmup_steps=50: fewer than steps"),
        ({"batch_size": 0}, "transfer.finetune.batch_size: 0 is not at least 1"),
        ({"clip_norm": -1.0}, "transfer.finetune.clip_norm: -1.0 is not above 0"),
        ({"momentum": 2.0}, "transfer.finetune.momentum=2.0"),
        ({"dropout": -0.1}, "transfer.finetune.dropout=-0.1"),
        ({"polyak": float("nan")}, "transfer.finetune.polyak=nan"),
        ({"min_crop_area": 3.0}, "transfer.finetune.min_crop_area=3.0"),
        ({"image_sizes": {"vit_h14": 0}}, "transfer.finetune.image_sizes.vit_h14: 0 is not"),
        ({"image_sizes": {"vit_h15": 378}}, "image_sizes.vit_h15: no model is called so. Did you mean vit_h14"),
        ({"image_size": 100_000}, "transfer.finetune.image_size: 100000 is over 4,096"),
        ({"batch_size": 10**12}, "transfer.finetune.batch_size: 1.* is over"),
        ({"seeds": [10**23]}, "transfer.finetune.seeds: 1.* is over"),
        ({"dev_split": "abc"}, "transfer.finetune.dev_split=abc: .*not a number of images"),
        ({"dev_split": "0"}, "transfer.finetune.dev_split=0: .*no image at all"),
        ({"dev_split": "60%"}, "transfer.finetune.dev_split=60%: more than half"),
        ({"dev_split": "nan%"}, "transfer.finetune.dev_split=nan%: .*not a number of images"),
    ],
)
def test_fine_tuning_that_cannot_be_done(changes: dict[str, object], message: str) -> None:
    cfg = compose(["transfer=digits"]).transfer
    assert cfg.finetune is not None
    with pytest.raises(ConfigError, match=message):
        check_transfer(replace(cfg, protocol="finetune", finetune=replace(cfg.finetune, **changes)))  # type: ignore[arg-type]


def test_a_dev_split_that_leaves_nothing_to_train_on_is_refused(digits: Dataset) -> None:
    with pytest.raises(ConfigError, match="dev_split=100%: more than half"):
        dev_window(digits, "100%")
    with pytest.raises(ConfigError, match=r"dev_split=0.01%: .*no image at all"):
        dev_window(digits, "0.01%")


def test_an_image_of_two_pretraining_splits_is_one_shared_image(tiny: Dataset) -> None:
    """Its own set shares every image once, though some are in training and validation."""
    with pytest.raises(DatasetError, match=r"600 of 600 in train, 200 of 200 in val"):
        refuse_shared(tiny, tiny, 16, 1, "refuse")


def test_labels_and_features_stay_together(digits: Dataset, network: nn.Module, setting: Setting) -> None:
    found: Features = extract(network, digits, "train", setting)
    assert found.features.dtype == np.float32
    assert found.labels.dtype == np.int64
    assert len(found.features) == len(found.labels) == digits.splits["train"].samples
