"""Position embeddings at another resolution, by the authors' rule.

Source: google-research/vision_transformer, `checkpoint.py` (interpolate_posembed), and big_vision, `models/vit.py`
(resample_posemb): the class token's embedding is kept apart, the others are a grid and go through
`scipy.ndimage.zoom(order=1)`, which is bilinear with the corners of both grids on one another.
"""

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from harness.errors import HarnessError

Grid = tuple[int, int]


def resize_position_embedding(embedding: Tensor, old: Grid, new: Grid, prefix_tokens: int = 1) -> Tensor:
    """(1, prefix + rows x columns, D) for a grid of `new` (rows, columns); itself where the grids are equal.

    Args:
        prefix_tokens: embeddings in front that belong to no patch, such as the class token's; they are kept.
    Raises HarnessError where the embedding is not of the old grid.
    """
    if embedding.shape[1] != prefix_tokens + old[0] * old[1]:
        raise HarnessError(
            f"position embedding of {embedding.shape[1]} tokens: {prefix_tokens} and a grid of {old[0]} x {old[1]} "
            f"would be {prefix_tokens + old[0] * old[1]}"
        )
    if old == new:
        return embedding
    prefix, patches = embedding[:, :prefix_tokens], embedding[:, prefix_tokens:]
    image = patches.reshape(1, *old, -1).permute(0, 3, 1, 2)
    zoomed = F.interpolate(image.double(), size=new, mode="bilinear", align_corners=True).to(embedding.dtype)
    return torch.cat([prefix, zoomed.permute(0, 2, 3, 1).reshape(1, new[0] * new[1], -1)], dim=1)


def square_grid(tokens: int, what: str) -> Grid:
    """The side of a square grid. Raises HarnessError naming the checkpoint where the tokens make no square."""
    side = math.isqrt(tokens)
    if side * side != tokens:
        raise HarnessError(f"{what}: its position embedding has {tokens} patches, which is no square grid")
    return side, side
