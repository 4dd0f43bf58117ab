"""Two steps of two ranks, each with two tokens, on more experts than that."""

from functools import partial
from pathlib import Path

import torch
from bakeoff.model import LanguageModel
from bakeoff.parts.attention.mixer import Attention
from bakeoff.parts.blocks.pre_norm import PreNorm
from bakeoff.parts.causal import Causal
from bakeoff.parts.decoder import Decoder
from bakeoff.parts.feed_forwards.mlp import MLP
from bakeoff_moe import LoadBalance, MixtureOfExperts, Switch, TopK
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

E = 8
ROUTERS = {"top_k": partial(TopK, k=1, renormalise=False), "switch": partial(Switch, capacity_factor=1.0)}


class Objective(nn.Module):
    """The forward that is wrapped: a loss of a batch."""

    def __init__(self, model):
        super().__init__()
        self.model, self.objective = model, Causal()

    def forward(self, tokens):
        terms, statistics = self.objective(self.model, {"tokens": tokens})
        return sum(value / weight for value, weight in terms.values()), statistics


def model(router):
    mixture = partial(
        MixtureOfExperts, n_experts=E, expert=partial(MLP, width=4), router=router, balance=[LoadBalance()]
    )
    layer = partial(PreNorm, mixer=partial(Attention, n_heads=2), feed_forward=mixture)
    backbone = partial(Decoder, depth=1, pattern=["layer"], blocks={"layer": layer})
    return LanguageModel(d_model=8, vocab_size=11, max_length=8, backbone=backbone).initialise(0)


def steps(router, folder):
    """Two steps on two tokens; writes what each left."""
    number = distributed.get_rank()
    made = model(ROUTERS[router])
    wrapped = DistributedDataParallel(Objective(made))
    optimizer = torch.optim.SGD(made.parameters(), lr=0.1)
    for step in range(2):  # the second one would wait for gradients that the first did not bring
        optimizer.zero_grad()
        loss, statistics = wrapped(torch.tensor([[3 * number + step, 5 + number, 1]]))
        loss.backward()
        chosen = statistics["aux.0.feed_forward.choices"].clone()
        distributed.all_reduce(chosen)
        experts = made.backbone.blocks[0].feed_forward.experts
        gradients = {key: parameter.grad for key, parameter in experts.named_parameters()}
        torch.save({"chosen": chosen, **gradients}, Path(folder, f"{router}-{step}-{number}.pt"))
        optimizer.step()
