"""What a step keeps in memory, against what its attention matrices are."""

from dataclasses import replace

from harness.compose import compose
from harness.models.memory import step_bytes


def test_unfused_attention_keeps_its_matrices_and_fused_does_not() -> None:
    config = compose(["model=vit_pocket"]).model
    assert config.vit is not None
    large, larger = (replace(config, image_size=size) for size in (192, 384))
    tokens = [(size // config.vit.patch_size) ** 2 for size in (192, 384)]
    matrices = [4 * config.vit.depth * config.vit.heads * count**2 for count in tokens]  # float32, an image
    kept = {
        path: [step_bytes(model, 10, 1, path)(2) - step_bytes(model, 10, 1, path)(1) for model in (large, larger)]
        for path in ("fused", "unfused")
    }
    assert 3.9 < kept["fused"][1] / kept["fused"][0] < 4.1  # as the pixels
    for fused, unfused, matrix in zip(kept["fused"], kept["unfused"], matrices, strict=True):
        assert 0.9 * matrix < unfused - fused < 1.1 * matrix
