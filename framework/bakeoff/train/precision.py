"""Types of numbers as Lightning's Trainer is told of them."""

from __future__ import annotations

from typing import Any, Literal

import torch
from lightning.pytorch.plugins.precision import Precision
from torch import nn

from bakeoff.interfaces.backbone import Backbone
from bakeoff.model.casting import cast
from bakeoff.parts.linear import Linear

#: What sizes of a product have to be multiples of, in float8.
MULTIPLE = 16


class TrueBfloat16(Precision):
    """Parameters, gradients and activations in bfloat16, but for what parts keep in float32."""

    precision: Literal["bf16-true"] = "bf16-true"

    def convert_module(self, module: nn.Module) -> nn.Module:
        """In place."""
        return cast(module, torch.bfloat16)


def own_precision(precision: Any) -> Precision | None:
    """The plugin for a `trainer.precision` that is not left to Lightning."""
    return TrueBfloat16() if str(precision) == "bf16-true" else None


def multiply_in_float8(backbone: Backbone, *, emulate: bool = False) -> list[str]:
    """Swap the linear layers of all blocks for ones that multiply in float8, in place; returns their names.

    Scales are one a tensor, found anew at each step (Micikevicius et al., 2022, arXiv:2209.05433). Layers with a size
    that is no multiple of 16, and those that are more than a product, stay as they are. Names and parameters stay.

    `emulate`: by products in a wider type, on any device.
    """
    from torchao.float8 import Float8LinearConfig, convert_to_float8_training

    named = {name: layer for name, layer in backbone.layers.named_modules() if _suits(layer)}
    roles = {name: layer.roles for name, layer in named.items() if isinstance(layer, Linear)}
    convert_to_float8_training(
        backbone.layers,
        module_filter_fn=lambda layer, name: name in named,
        config=Float8LinearConfig(emulate=emulate, pad_inner_dim=True),
    )
    for name, kinds in roles.items():
        backbone.layers.get_submodule(name).roles = kinds  # type: ignore[assignment]
    return list(named)


def _suits(layer: nn.Module) -> bool:
    if not isinstance(layer, nn.Linear) or type(layer) not in (nn.Linear, Linear):
        return False
    return not (layer.in_features % MULTIPLE or layer.out_features % MULTIPLE)
