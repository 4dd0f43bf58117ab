"""Rotary position embedding, fast pairs kept and slow ones interpolated (YaRN)."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from bakeoff.errors import UserError
from bakeoff.interfaces.component import Reference
from bakeoff.interfaces.context import LayerContext
from bakeoff.interfaces.sequence import Sequence
from bakeoff.parts.positions.rope import RoPE, RotaryTable
from bakeoff.parts.positions.scaled_rope import at_least


@dataclass(frozen=True)
class YaRNTable(RotaryTable):
    """A table whose pairs up to `first` keep their frequency, those from `last` on have it divided by `factor`, and
    those between go over evenly; cosines and sines are multiplied by `amplitude`."""

    factor: float
    first: float
    last: float
    amplitude: float

    def frequencies(self, device: torch.device | None = None) -> Tensor:
        """Radians a token, (width / 2,), float32."""
        plain = super().frequencies(device)
        pairs = torch.arange(self.width // 2, device=device).float()
        slowed = ((pairs - self.first) / max(self.last - self.first, 1e-3)).clamp(0, 1)
        return plain / self.factor * slowed + plain * (1 - slowed)

    def derive(self, sequence: Sequence) -> tuple[Tensor, Tensor]:
        """From `sequence.positions`."""
        cos, sin = super().derive(sequence)
        return self.amplitude * cos, self.amplitude * sin


class YaRNRoPE(RoPE):
    """YaRN: pairs that turn often within `original_length` tokens are kept, those that do not are interpolated.

    A logit of fully rotated heads is multiplied by the square of `attention_factor`, which stands on cosine and sine.

    Parameters
    ----------
    factor : by how much the slow pairs are slowed, at least 1.
    original_length : tokens that the model was trained on.
    beta_fast, beta_slow : turns within `original_length` from which a pair is kept, and to which it is interpolated.
    rounded : the pairs at which this begins and ends are rounded outwards to whole ones (GPT-OSS: false).
    attention_factor : null: 0.1 ln `factor` + 1.
    base, fraction, interleaved : as in RoPE.

    Raises `UserError` as RoPE does, and if a number is out of range.
    """

    reference = Reference(
        "Peng et al.", 2023, "YaRN: Efficient Context Window Extension of Large Language Models", "https://arxiv.org/abs/2309.00071"
    )  # fmt: skip

    def __init__(
        self,
        context: LayerContext,
        *,
        factor: float,
        original_length: int,
        beta_fast: float = 32.0,
        beta_slow: float = 1.0,
        rounded: bool = True,
        attention_factor: float | None = None,
        base: float = 10000.0,
        fraction: float = 1.0,
        interleaved: bool = False,
    ):
        super().__init__(context, base=base, fraction=fraction, interleaved=interleaved)
        at_least("YaRNRoPE", 1, factor=factor, original_length=original_length)
        if not 0 < beta_slow < beta_fast:
            raise UserError(
                f"YaRNRoPE: beta_slow is {beta_slow} and beta_fast {beta_fast}; both must be over 0, beta_fast larger"
            )
        if attention_factor is not None and attention_factor <= 0:
            raise UserError(f"YaRNRoPE: attention_factor is {attention_factor}; it must be over 0, or null")
        first, last = (pair_that_turns(turns, original_length, base, self.width) for turns in (beta_fast, beta_slow))
        if rounded:
            first, last = math.floor(first), math.ceil(last)
        amplitude = 0.1 * math.log(factor) + 1 if attention_factor is None else attention_factor
        ends = max(first, 0), min(last, self.width - 1)
        self.table = YaRNTable(self.width, base, interleaved, factor, *ends, amplitude)

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """Both ways to pair channels, and every option."""
        options = {"beta_fast": 4.0, "beta_slow": 0.5, "rounded": False, "attention_factor": 0.8}
        return [
            {"factor": 4.0, "original_length": 64},
            {"factor": 2.0, "original_length": 32, "interleaved": True, "fraction": 0.5, "base": 100.0, **options},
        ]


def pair_that_turns(turns: float, length: int, base: float, width: int) -> float:
    """Index, between pairs too, of the pair of `width` channels that turns so many times in `length` tokens."""
    return width * math.log(length / (turns * 2 * math.pi)) / (2 * math.log(base))
