"""What objectives share that compare the answers to a prompt with each other."""

from __future__ import annotations

from abc import abstractmethod

from torch import Tensor

from bakeoff_align.log_probabilities import summed
from bakeoff_align.objectives.policy.advantages import alike
from bakeoff_align.objectives.policy.answers import Rows
from bakeoff_align.objectives.policy.kl import k1
from bakeoff_align.objectives.policy.policy_gradient import PolicyGradient


class Grouped(PolicyGradient):
    """An answer is as good as it is beside the others of its group, by rewards, less their KL where `charged`."""

    fewest = 2
    by_answer = (*PolicyGradient.by_answer, "advantages", "degenerate")

    @property
    def charged(self) -> bool:
        """Whether an answer's KL to the reference is taken from its reward."""
        return self.beta > 0

    @abstractmethod
    def compared(self, groups: Tensor) -> Tensor:
        """Advantages of answers that are judged so, (prompts, group) each."""

    def credit(self, rows: Rows) -> Rows:
        """`advantages` (N,), and `degenerate` (N,): 1 for an answer of a group that is judged alike."""
        judged = rows["reward"]
        if self.charged:
            judged = judged - self.beta * summed(k1(rows["old"], rows["reference"]), rows["weights"])
        groups = judged.view(-1, self.group)
        flat = alike(groups).to(judged)[:, None].expand_as(groups)
        return {"advantages": self.compared(groups).flatten(), "degenerate": flat.flatten()}
