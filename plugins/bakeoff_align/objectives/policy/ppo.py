"""Proximal policy optimisation with a learned value of every token."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from bakeoff.errors import UserError
from bakeoff.interfaces.component import Reference
from bakeoff.interfaces.context import LayerContext
from bakeoff.interfaces.init import initialise
from bakeoff.interfaces.objective import Model, Terms
from bakeoff.interfaces.reward import Reward
from torch import Tensor

from bakeoff_align.log_probabilities import Told, mean, summed, told
from bakeoff_align.objectives.policy.advantages import generalised_advantages, whitened
from bakeoff_align.objectives.policy.answering import at_targets
from bakeoff_align.objectives.policy.answers import Rows, last_real
from bakeoff_align.objectives.policy.clipping import clipped_value_loss
from bakeoff_align.objectives.policy.kl import Coefficient, k1
from bakeoff_align.objectives.policy.policy_gradient import PolicyGradient, Pull
from bakeoff_align.objectives.policy.value_head import Unit, ValueHead


class PPO(PolicyGradient):
    """Each token is an action: it costs its KL, the last one of an answer earns the reward, and a value head, trained
    with the model on its hidden states, says what was to be expected.

    The last one is the last that was drawn, be it an end or where the answer was cut; after it nothing is expected.

    Parameters
    ----------
    reward : judges whole answers. group : answers to each prompt. max_new_tokens : of an answer; one that has not ended
        by then is judged as it stands.
    passes : how often a collection is gone through. updates : into how many optimizer steps a pass is cut.
    clip_low, clip_high : a ratio of a token's probabilities below 1 - low or above 1 + high pulls no further.
    clip_value : a value that is farther than this from what it was at collecting is pulled no further.
    value_coefficient : of the value's loss.
    standardise_values : the value head tells how many deviations of the first collection's answers a value is above
        their mean, so that it expects the mean before it has learnt anything, and rewards may be of any size; else it
        tells the value itself. `clip_value` is in the same units.
    gamma, lam : of the generalised advantages (Schulman et al. 2016, arXiv:1506.02438).
    whiten_rewards : bring the tokens' rewards of a collection to variance 1.
    whiten_advantages : bring the tokens' advantages of a collection to mean 0 and variance 1.
    beta : what a nat of KL to the reference (k1) costs; 0: no reference is kept.
    target_kl : nats of KL an answer that `beta` is steered to after each collection (Ziegler et al. 2019,
        arXiv:1909.08593); null: it is fixed.
    """

    reference = Reference(
        "Schulman et al.", 2017, "Proximal Policy Optimization Algorithms", "https://arxiv.org/abs/1707.06347"
    )

    by_token = (*PolicyGradient.by_token, "values", "advantages", "returns")

    def __init__(
        self,
        *,
        reward: Reward,
        max_new_tokens: int,
        group: int = 1,
        passes: int = 4,
        updates: int = 1,
        clip_low: float = 0.2,
        clip_high: float = 0.2,
        clip_value: float = 0.2,
        value_coefficient: float = 0.1,
        standardise_values: bool = True,
        gamma: float = 1.0,
        lam: float = 0.95,
        whiten_rewards: bool = False,
        whiten_advantages: bool = True,
        beta: float = 0.05,
        target_kl: float | None = None,
    ):
        super().__init__(
            reward=reward,
            max_new_tokens=max_new_tokens,
            group=group,
            passes=passes,
            updates=updates,
            clip_low=clip_low,
            clip_high=clip_high,
            beta=beta,
        )
        _check(clip_value, value_coefficient, gamma, lam, beta, target_kl)
        self.clip_value, self.value_coefficient = clip_value, value_coefficient
        self.gamma, self.lam = gamma, lam
        self.whiten_rewards, self.whiten_advantages = whiten_rewards, whiten_advantages
        self.coefficient = Coefficient(beta, target=target_kl)
        self.unit = Unit(learns=standardise_values)
        if beta > 0:
            self.by_answer = (*self.by_answer, "beta")
        self.value: ValueHead

    @classmethod
    def examples(cls) -> list[dict[str, Any]]:
        """As it is, and with every option."""
        given = {"reward": {"use": "length_reward", "target": 2}, "max_new_tokens": 3}
        options = {"group": 3, "gamma": 0.9, "whiten_rewards": True, "whiten_advantages": False, "target_kl": 2.0}
        return [given, {**given, **options}, {**given, "beta": 0.0, "standardise_values": False}]

    def attach(self, model: Model, seed: int) -> None:
        """Make the value head, and keep the model as it stands, where `beta` asks for it."""
        super().attach(model, seed)
        embedding = model.backbone.embedding
        vocab_size, d_model = embedding.shape
        with embedding.device:
            self.value = ValueHead(LayerContext(d_model=d_model, vocab_size=vocab_size, max_length=1))
        initialise(self.value, seed=seed)

    def look(self, model: Model, batch: Mapping[str, Tensor | None]) -> Rows:
        """`old`, `reference` where there is one, and `values`, in the value head's units."""
        said = told(model, batch)
        found = {"old": said.log_probabilities, "values": self.value(said.hidden) * (said.shifted.weights > 0)}
        if self.before is not None:
            found["reference"] = self.before.log_probabilities(model, batch)
        return found

    def credit(self, rows: Rows) -> Rows:
        """`advantages`, and `returns` in the value head's units, (N, L), and `beta` (N,), what KL cost; then steer what
        it costs."""
        mask = rows["weights"] > 0
        rewards = torch.where(last_real(mask), rows["reward"][:, None], 0)
        found: Rows = {}
        if self.before is not None:
            far, beta = k1(rows["old"], rows["reference"]), float(self.coefficient.value)
            found["beta"] = torch.full_like(rows["reward"], beta)
            rewards = rewards - beta * far
            self.coefficient.steer(float(summed(far, rows["weights"]).mean()))
        if self.whiten_rewards:
            rewards = whitened(rewards, mask, shift=False)
        self.unit.learn(summed(rewards, rows["weights"]), rows["length"] > 0)
        values = self.unit.of_rewards(rows["values"]) * mask
        advantages = generalised_advantages(rewards, values, mask, gamma=self.gamma, lam=self.lam)
        returns = self.unit.of_values(advantages + values) * mask
        if self.whiten_advantages:
            advantages = whitened(advantages, mask)
        return {**found, "advantages": advantages, "returns": returns}

    def pull(self, said: Told, rows: Rows) -> Pull:
        """Terms "loss" and "value", both means over tokens: their weight is the number of tokens."""
        mask = said.shifted.weights > 0
        log_ratio = said.log_probabilities - at_targets(rows, "old")
        losses, statistics = self.clipped(log_ratio, at_targets(rows, "advantages"), mask)
        before, returns = at_targets(rows, "values"), at_targets(rows, "returns")
        off = clipped_value_loss(self.value(said.hidden), before, returns, clip=self.clip_value)
        count = mask.float().sum()
        terms: Terms = {"loss": ((losses * mask).sum(), count)}
        terms["value"] = (self.value_coefficient * (off * mask).sum(), count)
        if "beta" in rows:
            statistics["mean.beta"] = mean(rows["beta"].sum(), (rows["length"] > 0).sum())
        return Pull(terms, statistics, losses.detach(), mask)


def _check(
    clip_value: float, value_coefficient: float, gamma: float, lam: float, beta: float, target_kl: float | None
) -> None:
    for name, value in {"clip_value": clip_value, "value_coefficient": value_coefficient}.items():
        if not value > 0:
            raise UserError(f"{name} is {value}; it must be above 0")
    for name, value in {"gamma": gamma, "lam": lam}.items():
        if not 0 <= value <= 1:
            raise UserError(f"{name} is {value}; it must lie in 0 <= {name} <= 1")
    if target_kl is not None and not (target_kl > 0 and beta > 0):
        raise UserError(f"target_kl is {target_kl} and beta {beta}; both must be above 0, or target_kl null")
