"""`make bench-transfer`: the few-shot grid beside scikit-learn fitted cell by cell, features beside a bare loop.

Grid: shots 1, 5, 10, 25 x 3 seeds x 9 lambdas, every cell scored on the test images. Scikit-learn does in each cell
what its user writes: StandardScaler and constant column, Ridge(alpha), predictions. One thread. How far the top-1 of
the two are apart at most is in the table.
"""

import tempfile
import time
from pathlib import Path
from statistics import median

import numpy as np
import torch
from sklearn.linear_model import Ridge
from sklearn.preprocessing import StandardScaler

from benchmarks.table import machine
from harness.compose import compose
from harness.data.loader import eval_batches
from harness.data.manifest import open_dataset
from harness.data.pack import pack
from harness.models.build import build_model, pre_logits
from harness.train.evaluate import eval_batch_size, to_input
from harness.transfer.features import Setting, extract
from harness.transfer.fewshot import fitted_scores, support_indices

SHOTS, SEEDS, L2S = (1, 5, 10, 25), (0, 1, 2), [2.0**power for power in range(-6, 21, 3)]
# Classes, features, test images: 10,000 as in MNIST, Fashion-MNIST and CIFAR.
SIZES = tuple((classes, width, queries) for queries in (2000, 10_000) for classes in (10, 100) for width in (384, 768))
OUT = Path(__file__).parent / "results" / "transfer.md"


def ours(train: np.ndarray, labels: np.ndarray, test: np.ndarray, truth: np.ndarray) -> list[float]:
    classes, values = np.unique(labels), []
    test = test.astype(np.float64)  # once, as fewshot_grid does
    for shots in SHOTS:
        for seed in SEEDS:
            chosen = support_indices(labels, shots, seed)
            path = fitted_scores(train[chosen], labels[chosen], classes, test, L2S, 100.0)
            values += [float((scores.argmax(1) == truth).mean()) for scores in path]
    return values


def scikit_learn(train: np.ndarray, labels: np.ndarray, test: np.ndarray, truth: np.ndarray) -> list[float]:
    values = []
    for shots in SHOTS:
        for seed in SEEDS:
            for l2 in L2S:
                chosen = support_indices(labels, shots, seed)
                scaler = StandardScaler().fit(train[chosen].astype(np.float64))
                scaler.scale_ = np.sqrt(scaler.var_) + 1e-5
                x = np.c_[scaler.transform(train[chosen].astype(np.float64)), np.full(len(chosen), 100.0)]
                y = 2.0 * (labels[chosen][:, None] == np.unique(labels)) - 1.0
                ridge = Ridge(alpha=l2, fit_intercept=False).fit(x, y)
                q = np.c_[scaler.transform(test.astype(np.float64)), np.full(len(test), 100.0)]
                values.append(float((ridge.predict(q).argmax(1) == truth).mean()))
    return values


def seconds(call, rounds: int):  # type: ignore[no-untyped-def]
    spent = []
    for _ in range(rounds):
        begin = time.process_time()
        result = call()
        spent.append(time.process_time() - begin)
    return median(spent), result


def grid_rows() -> list[str]:
    rng, lines = np.random.default_rng(0), []
    for classes, width, queries in SIZES:
        labels, truth = np.repeat(np.arange(classes), 30), rng.integers(0, classes, queries)
        centres = 0.3 * rng.normal(size=(classes, width))
        train = (centres[labels] + rng.normal(size=(len(labels), width))).astype(np.float32)
        test = (centres[truth] + rng.normal(size=(queries, width))).astype(np.float32)
        one, mine = seconds(lambda: ours(train, labels, test, truth), 3)  # noqa: B023
        other, theirs = seconds(lambda: scikit_learn(train, labels, test, truth), 1)  # noqa: B023
        apart = max(abs(a - b) for a, b in zip(mine, theirs, strict=True))
        lines.append(
            f"| {classes} | {width} | {queries:,} | {one:.2f} | {other:.2f} | {other / one:.1f} | {apart:.4f} |"
        )
        print(lines[-1], flush=True)
    return lines


def feature_ratio(folder: Path) -> tuple[float, float]:
    words = ["data=glyphs", "data.samples=5k", "data.val_samples=100", "data.test_samples=5k", "data.image_size=16"]
    data, config = compose([*words, "model=vit_glyph"]).data, compose(["model=vit_glyph"]).model
    pack(data, folder, workers=2, progress=False)
    target = open_dataset(folder / data.name)
    torch.manual_seed(0)
    model = build_model(config, target.num_classes, 1).eval()
    setting = Setting(16, 1, torch.device("cpu"))

    def bare() -> int:
        with torch.no_grad():
            batches = eval_batches(target, "test", image_size=16, channels=1, batch_size=eval_batch_size(16))
            return sum(len(pre_logits(model, to_input(batch.images, setting.device))) for batch in batches)

    pairs = []
    for number in range(31):
        times = {}
        for name in ("ours", "bare") if number % 2 else ("bare", "ours"):
            begin = time.process_time()
            _ = extract(model, target, "test", setting) if name == "ours" else bare()
            times[name] = time.process_time() - begin
        pairs.append(times)
    samples = target.splits["test"].samples
    return median(p["bare"] / p["ours"] for p in pairs[1:]), samples / median(p["ours"] for p in pairs[1:])


def main() -> None:
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory() as folder:
        ratio, speed = feature_ratio(Path(folder))
    print(f"features: {ratio:.3f} of a bare loop")
    head = "| classes | features | test images | harness, CPU-s | scikit-learn per cell, CPU-s | ratio | top-1 apart |"
    text = [
        "# Transfer: measured beside scikit-learn and a bare loop",
        "",
        machine("torch", "scikit-learn", "numpy"),
        "",
        "## Few-shot grid: 4 shots x 3 seeds x 9 lambdas, each cell scored",
        "",
        head,
        "|--:|--:|--:|--:|--:|--:|--:|",
        *grid_rows(),
        "",
        "## Feature extraction",
        "",
        f"{ratio:.3f} of the rate of a bare forward loop over the same batches (median of 30 interleaved rounds; "
        f"vit_glyph, {speed:,.0f} images a CPU-second).",
    ]
    OUT.write_text("\n".join(text) + "\n")


if __name__ == "__main__":
    main()
