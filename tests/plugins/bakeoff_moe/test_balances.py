"""Balances by hand; and that nothing around a layer counts them twice, keeps them, or lets padding in."""

import math
from functools import partial

import pytest
import torch
from bakeoff.interfaces import LayerContext, Routing, Sequence
from bakeoff.model import LanguageModel
from bakeoff.parts.attention.mixer import Attention
from bakeoff.parts.blocks.parallel import Parallel
from bakeoff.parts.blocks.pre_norm import PreNorm
from bakeoff.parts.causal import Causal
from bakeoff.parts.decoder import Decoder
from bakeoff.parts.feed_forwards.mlp import MLP
from bakeoff.train.sums import StepSums
from bakeoff_moe import (
    DeviceBalance,
    ExpertLoad,
    GShard,
    Importance,
    LoadBalance,
    MixtureOfExperts,
    NoisyTopK,
    RouterZLoss,
    SequenceBalance,
    Switch,
    TopK,
)
from torch.utils.checkpoint import checkpoint

NOWHERE = Sequence(torch.zeros(2, 3, dtype=torch.long))


def routed(logits, k):
    """Routing by softmax(logits) of the k best."""
    probabilities = logits.softmax(-1)
    weights, experts = probabilities.topk(k)
    return Routing(experts, weights, logits, probabilities)


def value(balance, routing, real=None, sequence=NOWHERE):
    return balance.loss(balance.sums(routing, real, sequence)).item()


def collapsed(*best, n=8, tokens=6):
    return torch.tensor([[*best, *[-30.0] * (n - len(best))]] * tokens)


@pytest.mark.parametrize(
    ("logits", "k", "loss"),
    [
        (torch.zeros(6, 4), 2, 1.0),
        (collapsed(30.0, 30.0, n=4), 2, 2.0),
        (collapsed(30.0, 29.0), 1, 5.848469),  # 8 sigmoid(1)
    ],
)
def test_load_balance_divides_k_out(logits, k, loss):
    assert value(LoadBalance(coefficient=1.0), routed(logits, k)) == pytest.approx(loss, abs=1e-5)
    assert value(LoadBalance(coefficient=0.25), routed(logits, k)) == pytest.approx(loss / 4, abs=1e-5)


def test_load_balance_counts_choices_that_found_no_room():
    full = routed(collapsed(30.0, 29.0), 1)
    dropped = full._replace(experts=torch.full_like(full.experts, 8), wanted=full.experts)
    assert value(LoadBalance(coefficient=1.0), dropped) == pytest.approx(5.848469, abs=1e-5)


@pytest.mark.parametrize("n", [4, 8])
def test_z_loss_of_zero_logits_is_the_squared_logarithm(n):
    assert value(RouterZLoss(coefficient=1.0), routed(torch.zeros(6, n), 1)) == pytest.approx(math.log(n) ** 2)
    assert value(RouterZLoss(coefficient=1.0), routed(torch.full((6, n), 2.0), 1)) == pytest.approx(
        (2 + math.log(n)) ** 2
    )


def test_device_balance_sees_groups_only():
    """Choices 3, 1 | 0, 2 of 6; probabilities add up to 0.5, 0.1 | 0.3, 0.1: 2 (4/6 0.6 + 2/6 0.4) = 16/15."""
    probabilities = torch.tensor([[0.5, 0.1, 0.3, 0.1]] * 6)
    routing = Routing(torch.tensor([[0], [0], [0], [1], [3], [3]]), torch.ones(6, 1), probabilities=probabilities)
    assert value(DeviceBalance(groups=2, coefficient=1.0), routing) == pytest.approx(16 / 15)
    assert value(DeviceBalance(groups=1, coefficient=1.0), routing) == pytest.approx(1.0)
    assert value(DeviceBalance(groups=4, coefficient=1.0), routing) == pytest.approx(
        value(LoadBalance(coefficient=1.0), routing)
    )


def test_device_groups_divide_the_experts():
    with pytest.raises(ValueError, match="groups is 3; it must divide n_experts, 8"):
        DeviceBalance(groups=3).check(8)


def test_sequence_balance_is_the_mean_over_rows():
    """One row to one expert (2 of 2), one row even (1); all tokens together would be even."""
    probabilities = torch.tensor([[1.0, 0.0]] * 3 + [[0.5, 0.5]] * 3)
    routing = Routing(torch.tensor([[0, 1]] * 6), torch.ones(6, 2), probabilities=probabilities)
    one = routing._replace(experts=torch.tensor([[0, 2]] * 3 + [[0, 1]] * 3))
    assert value(SequenceBalance(coefficient=1.0), one) == pytest.approx((2.0 + 1.0) / 2)
    padded = torch.tensor([True, False, True, False, False, False])
    assert value(SequenceBalance(coefficient=1.0), one, padded) == pytest.approx(2.0)


BALANCES = [LoadBalance(coefficient=0.5), RouterZLoss(coefficient=0.1), SequenceBalance(coefficient=0.3)]
VOCABULARY, T = 20, 8


def model(router=TopK, block=PreNorm, depth=3, balance=BALANCES):
    """A small one, all of whose layers are mixtures of 4 experts."""
    mixture = partial(MixtureOfExperts, n_experts=4, expert=partial(MLP, width=8), router=router, balance=list(balance))
    layer = partial(block, mixer=partial(Attention, n_heads=2), feed_forward=mixture)
    backbone = partial(Decoder, depth=depth, pattern=["layer"], blocks={"layer": layer})
    made = LanguageModel(d_model=16, vocab_size=VOCABULARY, max_length=32, backbone=backbone)
    return made.initialise(0).double()


def batch(rows, seed=0):
    return {"tokens": torch.randint(VOCABULARY, (rows, T + 1), generator=torch.Generator().manual_seed(seed))}


def gradients(made, total):
    made.zero_grad()
    total.backward()
    return [parameter.grad.clone() for parameter in made.parameters() if parameter.grad is not None]


def total_of(terms):
    return sum(value / weight for value, weight in terms.values())


@pytest.mark.parametrize("block", [PreNorm, Parallel])
def test_recomputation_counts_nothing_twice(block):
    made, objective = model(block=block), Causal()
    plain, statistics = objective(made, batch(4))
    before = gradients(made, total_of(plain))
    for layer in made.backbone.blocks:
        layer.forward = partial(checkpoint, layer.forward, use_reentrant=False)
    again, told = objective(made, batch(4))
    after = gradients(made, total_of(again))
    assert set(plain) == {"loss", "load_balance", "router_z_loss", "sequence_balance"}
    for name, (term, _) in plain.items():
        torch.testing.assert_close(again[name][0], term, rtol=1e-12, atol=0)
    for name, total in statistics.items():
        torch.testing.assert_close(told[name], total, rtol=1e-12, atol=1e-12)
    for one, other in zip(before, after, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-10, atol=1e-14)


def test_four_micro_batches_are_their_mean():
    made, objective = model(), Causal()
    parts = [batch(1, seed) for seed in range(4)]
    alone = [objective(made, part)[0] for part in parts]
    wanted = gradients(made, sum(total_of(terms) for terms in alone) / 4)
    made.zero_grad()
    sums = StepSums(nominal=32.0)
    for part in parts:
        sums.enter(*objective(made, part)).backward()
    parameters = list(made.parameters())
    totals = sums.finish(parameters)
    for name in alone[0]:
        mean = sum((terms[name][0] / terms[name][1]).item() for terms in alone) / 4
        assert (totals[f"sum.{name}"] / totals[f"weight.{name}"]).item() == pytest.approx(mean, rel=1e-12)
    for got, want in zip((p.grad for p in parameters if p.grad is not None), wanted, strict=True):
        torch.testing.assert_close(got, want, rtol=1e-10, atol=1e-14)


@pytest.mark.parametrize("block", [PreNorm, Parallel])
def test_nothing_is_kept_of_earlier_forwards(block):
    made, objective = model(block=block), Causal()
    first, _ = objective(made, batch(2))
    made.eval()
    with torch.no_grad():
        for seed in range(10):
            terms, _ = objective(made, batch(2, seed))
            assert set(terms) == {"loss"}
    made.train()
    again, _ = objective(made, batch(2))
    assert all(torch.equal(again[name][0], term) for name, (term, _) in first.items())


def test_the_loss_of_layers_is_the_mean_of_their_losses():
    made = model()
    tokens = batch(2)["tokens"]
    aux = made.backbone(Sequence(tokens)).aux
    each = []
    for number, layer in enumerate(made.backbone.blocks):
        start = f"{number}.feed_forward."
        own = {key.removeprefix(start): value for key, value in aux.items() if key.startswith(start)}
        chosen, p = own["load_balance.chosen"], own["load_balance.probabilities"]
        by_hand = 0.5 * 4 * (chosen / chosen.sum() * (p / p.sum())).sum()
        torch.testing.assert_close(layer.feed_forward.finish_aux(own)[0]["load_balance"], by_hand)
        each.append(by_hand)
    torch.testing.assert_close(made.backbone.layer_losses(aux)["load_balance"], sum(each) / 3)


@pytest.mark.parametrize("left", [True, False])
@pytest.mark.parametrize(
    ("router", "more"),
    [
        (TopK, []),
        (partial(Switch, capacity_factor=1.0), []),
        (partial(GShard, capacity_factor=1.0), []),
        (NoisyTopK, [Importance(), ExpertLoad()]),
    ],
    ids=["top_k", "switch", "gshard", "noisy_top_k"],
)
def test_padding_is_neither_routed_nor_counted(monkeypatch, router, more, left):
    monkeypatch.setattr(torch, "rand_like", partial(torch.full_like, fill_value=0.5))
    monkeypatch.setattr(torch, "randn_like", partial(torch.full_like, fill_value=0.3))
    made = model(router, balance=[*BALANCES, *more], depth=2)
    tokens, pads = batch(3)["tokens"], torch.full((3, 6), 7)
    padded = torch.cat([pads, tokens] if left else [tokens, pads], 1)
    real = torch.arange(padded.shape[1]).expand_as(padded) >= 6 if left else torch.arange(15).expand(3, 15) < 9
    alone, among = made.backbone(Sequence(tokens)), made.backbone(Sequence(padded, real=real))
    torch.testing.assert_close(among.y[real].view_as(alone.y), alone.y, rtol=1e-10, atol=1e-12)
    assert alone.aux.keys() == among.aux.keys()
    for name, total in alone.aux.items():
        torch.testing.assert_close(among.aux[name], total, rtol=1e-6, atol=1e-9)
    for name, loss in made.backbone.layer_losses(alone.aux).items():
        torch.testing.assert_close(made.backbone.layer_losses(among.aux)[name], loss, rtol=1e-6, atol=1e-12)
    if router not in (TopK, NoisyTopK):
        assert alone.aux["0.feed_forward.lost"] > 0


def test_a_balance_that_the_router_gives_nothing_for_is_refused():
    context = LayerContext(d_model=16, vocab_size=9, max_length=9)
    with pytest.raises(ValueError, match="balance expert_load reads inclusion, which TopK does not give"):
        MixtureOfExperts(context, n_experts=4, balance=[ExpertLoad()])
