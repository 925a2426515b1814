"""`python -m harness.models.ship_counts`: count the models of conf/ and write the counts that ship with harness."""

import json
from dataclasses import asdict
from typing import Any

from harness.models.compute import SHIPPED, count_key
from harness.models.counting import count_afresh
from harness.models.named import model_config, model_names

# (classes, channels): ImageNet and the default of `harness flops`, JFT-300M, ImageNet-21k; the glyphs and Fashion-MNIST
PAPER_HEADS = ((1000, 3), (18_291, 3), (21_843, 3))
POCKET_HEADS = ((1000, 3), (547, 1), (182, 1), (10, 1))


def shipped_heads(name: str) -> tuple[tuple[int, int], ...]:
    """(classes, channels) for which a model's counts ship."""
    return POCKET_HEADS if model_config(name).image_size < 64 else PAPER_HEADS


def counts_of(name: str, num_classes: int, channels: int) -> dict[str, dict[str, Any]]:
    """Key and cost of both conventions, counted afresh."""
    cfg = model_config(name)
    counted = count_afresh(cfg, num_classes, channels).values()
    return {count_key(cfg, num_classes, channels, cost.convention): asdict(cost) for cost in counted}


def main() -> None:
    """One line a count, so that a change is a readable diff."""
    counts: dict[str, dict[str, Any]] = {}
    for name in model_names():
        for num_classes, channels in shipped_heads(name):
            counts |= counts_of(name, num_classes, channels)
    lines = [f"{json.dumps(key)}: {json.dumps(cost)}" for key, cost in counts.items()]
    SHIPPED.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
