"""The optimiser of a recipe."""

import torch
from torch import nn

from harness.config import RecipeConfig


def build_optimizer(model: nn.Module, recipe: RecipeConfig) -> torch.optim.Optimizer:
    """The recipe's optimiser; weight decay is on matrices and convolution kernels only.

    Decay is decoupled with adamw, and added to the gradient (L2) with adam and sgd. Tensors with fewer than two
    dimensions, position embeddings and class tokens are not decayed (big_vision's rule: `.*/kernel$`).
    """
    decayed: list[nn.Parameter] = []
    plain: list[nn.Parameter] = []
    for name, parameter in model.named_parameters():
        if parameter.requires_grad:
            is_kernel = parameter.ndim >= 2 and not name.endswith(("pos_embed", "cls_token"))
            (decayed if is_kernel else plain).append(parameter)
    groups = [{"params": decayed, "weight_decay": recipe.weight_decay}, {"params": plain, "weight_decay": 0.0}]
    if recipe.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=recipe.learning_rate, momentum=recipe.beta1, fused=True)
    adam = torch.optim.Adam if recipe.optimizer == "adam" else torch.optim.AdamW
    return adam(groups, lr=recipe.learning_rate, betas=(recipe.beta1, recipe.beta2), fused=True)


def set_learning_rate(optimizer: torch.optim.Optimizer, rate: float) -> None:
    """Use `rate` for the next step."""
    for group in optimizer.param_groups:
        group["lr"] = rate
