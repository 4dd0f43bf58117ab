"""Objective `bradley_terry`: the better of two answers has the higher reward."""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from bakeoff.errors import UserError
from bakeoff.interfaces import Dialogue, Encoded, Reference, Row, Template, Tokenizer
from torch import Tensor
from torch.nn import functional as F

from bakeoff_align.log_probabilities import mean
from bakeoff_align.objectives.judging.judging import Batch, Judged, Judging, last
from bakeoff_align.objectives.rows import both_rows


class BradleyTerry(Judging):
    """`-log sigma(r_chosen - r_rejected - margin) + centring (r_chosen + r_rejected)^2`; r is the score at the end.

    "nats" is the first part alone: log 2 where both rewards are equal and there is no margin.

    Parameters
    ----------
    centring : coefficient of the squared sum of both rewards, which keeps them about 0 (Eisenstein et al. 2023,
        arXiv:2312.09244).
    margins : the margin is that of the dialogue, where it knows one (Touvron et al. 2023, arXiv:2307.09288); else 0.
    language : coefficient of the language loss of what was chosen.
    """

    reference = Reference(
        "Ouyang et al.",
        2022,
        "Training Language Models to Follow Instructions with Human Feedback",
        "https://arxiv.org/abs/2203.02155",
    )
    rows_each: ClassVar[int] = 2

    def __init__(self, *, centring: float = 0.0, margins: bool = True, language: float = 0.0):
        super().__init__(language=language)
        if centring < 0:
            raise UserError(f"objective.centring is {centring}; it must be 0 or more")
        self.centring, self.margins = centring, margins

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """As it is, and with every option."""
        return [{}, {"centring": 0.1, "margins": False, "language": 0.5}]

    def encode(self, dialogue: Dialogue, template: Template, tokenizer: Tokenizer) -> Encoded:
        """What was chosen and what was rejected; `UserError` where these are not two different answers."""
        better, worse = both_rows(dialogue, template, tokenizer, learner=type(self).__name__)
        return Encoded([better, Row(worse.tokens, [0.0] * len(worse.tokens))], {"margin": dialogue.margin})

    def planned(self, rows: int, length: int) -> dict[str, Tensor]:
        return {"margin": torch.zeros(rows // 2)}

    def judged(self, scores: Tensor, batch: Batch) -> Judged:
        ends = last(batch)
        chosen, rejected = scores.gather(1, ends[:, None])[:, 0].view(-1, 2).unbind(1)
        margin, real = batch["margin"], batch.get("real")
        assert margin is not None
        pairs = torch.ones_like(chosen) if real is None else real[::2].any(1).to(chosen.dtype)
        over = chosen - rejected
        each = -F.logsigmoid(over - margin if self.margins else over)
        places = (torch.arange(scores.shape[1], device=ends.device) == ends[::2, None]) * pairs[:, None]
        rows = torch.stack([places, torch.zeros_like(places)], 1).flatten(0, 1)
        penalty = self.centring * ((chosen + rejected).square() * pairs).sum()
        of_each = {"accuracy": over > 0, "margin": over, "chosen_reward": chosen, "rejected_reward": rejected}
        told = {f"mean.{name}": mean((value * pairs).sum(), pairs.sum()) for name, value in of_each.items()}
        return Judged(each.repeat_interleave(2)[:, None] * rows, rows, penalty, told)
