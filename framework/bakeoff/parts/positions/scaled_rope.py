"""Rotary position embedding for longer sequences than a model was trained on: all pairs slowed, or the base raised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bakeoff.errors import UserError
from bakeoff.interfaces.component import Reference
from bakeoff.interfaces.context import LayerContext
from bakeoff.parts.positions.rope import RoPE, RotaryTable


def at_least(part: str, least: float, **numbers: float) -> None:
    """Raises `UserError` naming the first of a part's `numbers` that is under `least`."""
    for name, value in numbers.items():
        if not value >= least:
            raise UserError(f"{part}: {name} is {value}; it must be at least {least:g}")


@dataclass(frozen=True)
class LinearTable(RotaryTable):
    """A table whose frequencies are divided by `factor`."""

    factor: float

    def frequencies(self, device: torch.device | None = None) -> Tensor:
        """Radians a token, (width / 2,), float32."""
        return super().frequencies(device) / self.factor


class LinearRoPE(RoPE):
    """Position interpolation: RoPE with positions divided by `factor`.

    A model of `factor` times the length that it was trained on then sees no larger angle than in training.

    Parameters
    ----------
    factor : at least 1. base, fraction, interleaved : as in RoPE.

    Raises `UserError` as RoPE does, and if a number is out of range.
    """

    reference = Reference(
        "Chen et al.", 2023, "Extending Context Window of Large Language Models via Positional Interpolation", "https://arxiv.org/abs/2306.15595"
    )  # fmt: skip

    def __init__(
        self,
        context: LayerContext,
        *,
        factor: float,
        base: float = 10000.0,
        fraction: float = 1.0,
        interleaved: bool = False,
    ):
        super().__init__(context, base=base, fraction=fraction, interleaved=interleaved)
        at_least("LinearRoPE", 1, factor=factor)
        self.table = LinearTable(self.width, base, interleaved, factor)

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Both ways to pair channels, and a part of them."""
        return [{"factor": 4.0}, {"factor": 2.5, "interleaved": True, "fraction": 0.5, "base": 100.0}]


class NTKRoPE(RoPE):
    """NTK-aware scaling: RoPE with the base times `alpha^(width / (width - 2))`, width being the rotated channels.

    The slowest pair turns `alpha` times more slowly, as with interpolation, and the fastest as fast as before.

    Parameters
    ----------
    alpha : at least 1. base, fraction, interleaved : as in RoPE.

    Raises `UserError` as RoPE does, if `alpha` is out of range, and if fewer than two pairs are rotated.
    """

    reference = Reference(
        "bloc97", 2023, "NTK-Aware Scaled RoPE", "https://www.reddit.com/r/LocalLLaMA/comments/14lz7j5/"
    )

    def __init__(
        self,
        context: LayerContext,
        *,
        alpha: float,
        base: float = 10000.0,
        fraction: float = 1.0,
        interleaved: bool = False,
    ):
        super().__init__(context, base=base, fraction=fraction, interleaved=interleaved)
        at_least("NTKRoPE", 1, alpha=alpha)
        self.table = RotaryTable(self.width, raised("NTKRoPE", base, alpha, self.width), interleaved)

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Both ways to pair channels."""
        return [{"alpha": 8.0}, {"alpha": 2.0, "interleaved": True, "base": 100.0}]


class DynamicNTKRoPE(RoPE):
    """NTK-aware scaling by no more than the model's maximum length asks for.

    `alpha` is `factor * length / original_length - (factor - 1)`, where the length is `max_length` of the model, or
    `original_length` where that is larger: up to there, it is plain RoPE. The maximum length stands for the length of
    the sequence that the method was proposed with: a base that grew with the sequence would turn later queries
    otherwise than the keys that are held from before, and a sequence taken at once otherwise than in pieces.

    Parameters
    ----------
    factor : at least 1. original_length : tokens that the model was trained on.
    base, fraction, interleaved : as in RoPE.

    Raises `UserError` as RoPE does, if a number is out of range, and if fewer than two pairs are rotated.
    """

    reference = Reference(
        "emozilla", 2023, "Dynamically Scaled RoPE", "https://www.reddit.com/r/LocalLLaMA/comments/14mrgpr/"
    )

    def __init__(
        self,
        context: LayerContext,
        *,
        factor: float,
        original_length: int,
        base: float = 10000.0,
        fraction: float = 1.0,
        interleaved: bool = False,
    ):
        super().__init__(context, base=base, fraction=fraction, interleaved=interleaved)
        at_least("DynamicNTKRoPE", 1, factor=factor, original_length=original_length)
        alpha = factor * max(context.max_length, original_length) / original_length - (factor - 1)
        self.table = RotaryTable(self.width, raised("DynamicNTKRoPE", base, alpha, self.width), interleaved)

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Both ways to pair channels; a shorter and a longer original length than any model of a test."""
        return [
            {"factor": 2.0, "original_length": 16},
            {"factor": 4.0, "original_length": 1 << 20, "interleaved": True, "base": 100.0},
        ]


def raised(part: str, base: float, alpha: float, width: int) -> float:
    """The base with which the slowest of `width` / 2 pairs turns `alpha` times more slowly; `part` is for the error."""
    if width < 4:
        raise UserError(
            f"{part}: {width} channels of a head are rotated, one pair, which a larger base does not slow; "
            "it must be at least 4: give a larger head_width or fraction, or another encoding, as linear_rope"
        )
    return base * alpha ** (width / (width - 2))
