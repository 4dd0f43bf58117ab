"""Experts that no token went to, on several ranks."""

import socket
from functools import partial

import pytest
import torch
import torch.multiprocessing as mp
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


def rank(number, port, folder):
    """Two steps on two tokens; writes what each left."""
    torch.set_num_threads(1)
    distributed.init_process_group("gloo", f"tcp://127.0.0.1:{port}", rank=number, world_size=2)
    for name, router in ROUTERS.items():
        made = model(router)
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
            torch.save({"chosen": chosen, **gradients}, folder / f"{name}-{step}-{number}.pt")
            optimizer.step()
    distributed.destroy_process_group()


@pytest.mark.slow
@pytest.mark.timeout(200)
def test_steps_of_two_ranks_with_two_tokens_each_and_eight_experts(tmp_path):
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    context = mp.get_context("spawn")
    ranks = [context.Process(target=rank, args=(number, port, tmp_path)) for number in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(90)
    waiting = [process for process in ranks if process.is_alive()]
    for process in waiting:
        process.kill()
    assert not waiting, "a rank waits for ever"
    assert [process.exitcode for process in ranks] == [0, 0]
    for name in ROUTERS:
        for step in range(2):
            one, other = (torch.load(tmp_path / f"{name}-{step}-{number}.pt") for number in range(2))
            chosen = one.pop("chosen")
            assert torch.equal(chosen, other.pop("chosen"))
            idle = chosen == 0
            assert 4 <= idle.sum() < E
            for key, gradient in one.items():
                assert torch.equal(gradient, other[key])
                assert not gradient[idle].any()
                assert gradient.any()
