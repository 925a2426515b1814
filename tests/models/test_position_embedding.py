"""Position embeddings against the function that the authors call."""

import numpy as np
import pytest
import torch
from scipy.ndimage import zoom

from harness.errors import HarnessError
from harness.models.position_embedding import resize_position_embedding, square_grid


@pytest.mark.parametrize("old, new", [((4, 4), (6, 6)), ((14, 14), (24, 24)), ((6, 6), (3, 3)), ((3, 5), (7, 4))])
@pytest.mark.parametrize("prefix", [0, 1, 2])
def test_resizing_is_the_authors_zoom(old: tuple[int, int], new: tuple[int, int], prefix: int) -> None:
    embedding = np.random.default_rng(0).normal(size=(1, prefix + old[0] * old[1], 8)).astype(np.float32)
    found = resize_position_embedding(torch.from_numpy(embedding), old, new, prefix)
    grid = embedding[0, prefix:].reshape(*old, 8)
    expected = zoom(grid, (new[0] / old[0], new[1] / old[1], 1), order=1).reshape(-1, 8)
    np.testing.assert_allclose(found[0, prefix:].numpy(), expected, atol=1e-6)
    np.testing.assert_array_equal(found[0, :prefix].numpy(), embedding[0, :prefix])
    corners = found[0, prefix:].reshape(*new, 8)[[0, 0, -1, -1], [0, -1, 0, -1]]
    np.testing.assert_allclose(corners, grid[[0, 0, -1, -1], [0, -1, 0, -1]], atol=1e-6)


def test_equal_grids_change_nothing() -> None:
    embedding = torch.randn(1, 17, 8)
    assert resize_position_embedding(embedding, (4, 4), (4, 4)) is embedding


def test_what_fits_no_grid_is_told() -> None:
    with pytest.raises(HarnessError, match="17 tokens"):
        resize_position_embedding(torch.zeros(1, 17, 8), (4, 4), (2, 2), prefix_tokens=0)
    with pytest.raises(HarnessError, match=r"weights.npz: .* 15 patches"):
        square_grid(15, "weights.npz")
