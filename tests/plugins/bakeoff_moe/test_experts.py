"""Stacked experts against one feed-forward after another; products by groups, and what is sorted for them."""

from functools import partial

import pytest
import torch
from bakeoff.interfaces import Capabilities, FeedForward, LayerContext, Result, Sequence, init
from bakeoff.interfaces.init import initialise, roles
from bakeoff.parts.feed_forwards.gated_mlp import GatedMLP
from bakeoff.parts.feed_forwards.mlp import MLP
from bakeoff.train.optimizers import parameter_groups
from bakeoff_linear import RWKVChannelMix
from bakeoff_moe import MixtureOfExperts, TopK
from bakeoff_moe.dispatch import combine, gather, sort_by_expert
from bakeoff_moe.experts import Experts
from bakeoff_moe.grouped_product import Groups, grouped_product, grouped_product_naive
from torch import nn

CONTEXT = LayerContext(d_model=6, vocab_size=11, max_length=16)
NOWHERE = Sequence(torch.zeros(1, 1, dtype=torch.long))


class Scaled(FeedForward):
    """A feed-forward with a vector of its own beside its linear layers."""

    capabilities = Capabilities(documents=True, padding=True, state=True, constant_state=True, token_local=True)

    def __init__(self, context):
        super().__init__(context)
        self.inner = MLP(context, width=8)
        self.scale = nn.Parameter(torch.empty(context.d_model))

    def reset_parameters(self):
        init.fill(self.scale, init.uniform(0.5, 1.5))

    def forward(self, x, sequence, state=None):
        return Result(self.inner(x * self.scale, sequence).y, state)

    def flops(self, queries, keys):
        return self.inner.flops(queries, keys)


MAKES = {
    "gated_mlp": partial(GatedMLP, width=8),
    "with biases": partial(MLP, width=8, bias=True),
    "with a vector": Scaled,
}


def filled(make, n=4):
    experts = Experts(CONTEXT, n_experts=n, expert=make, active=2)
    initialise(experts, seed=0)
    for parameter in experts.parameters():
        nn.init.normal_(parameter, generator=torch.Generator().manual_seed(parameter.numel()))
    return experts.double()


def groups(*counts):
    return Groups(torch.tensor(counts).cumsum(0).to(torch.int32), list(counts))


@pytest.mark.parametrize("make", MAKES.values(), ids=MAKES)
@pytest.mark.parametrize("counts", [(2, 3, 0, 4), (0, 0, 9, 0)], ids=str)
def test_each_row_passes_its_own_expert(make, counts):
    experts = filled(make)
    rows = torch.randn(9, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    one = make(CONTEXT).double()
    want = []
    for e, piece in enumerate(rows.split(counts)):
        own = {name: value[e] for name, value in experts.named_parameters()}
        want.append(torch.func.functional_call(one, own, (piece[None], NOWHERE)).y[0])
    leaves = [rows, *experts.parameters()]
    got = experts(rows, groups(*counts), NOWHERE)
    torch.testing.assert_close(got, torch.cat(want))
    gradients = (torch.autograd.grad(y.sin().sum(), leaves) for y in (got, torch.cat(want)))
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs)
    with torch.no_grad():
        torch.testing.assert_close(experts(rows, groups(*counts), NOWHERE), torch.cat(want))


def test_each_expert_is_drawn_like_the_feed_forward_alone():
    experts = Experts(CONTEXT.child(d_model=64), n_experts=3, expert=partial(MLP, width=100, bias=True), active=1)
    initialise(experts, seed=0, depth=2)
    for e in range(3):
        assert experts.up.weight[e].std().item() == pytest.approx(64**-0.5, rel=0.05)
        assert experts.down.weight[e].std().item() == pytest.approx(100**-0.5 / 2, rel=0.05)
    assert not torch.equal(experts.up.weight[0], experts.up.weight[1])
    assert not experts.up.bias.any()
    kinds = roles(experts)
    assert (kinds["up.weight"], kinds["down.weight"], kinds["up.bias"]) == ("hidden", "output", "vector")
    decayed, spared = parameter_groups(experts)
    assert [p.ndim for p in decayed["params"]] == [3, 3]
    assert [p.ndim for p in spared["params"]] == [2, 2]


def test_a_vector_of_the_feed_forward_is_drawn_by_its_own_rule():
    experts = Experts(CONTEXT, n_experts=3, expert=Scaled, active=1)
    initialise(experts, seed=0)
    assert experts.scale.shape == (3, 6)
    assert ((experts.scale > 0.5) & (experts.scale < 1.5)).all()
    assert roles(experts)["scale"] == "vector"


def test_what_looks_at_other_tokens_is_no_expert():
    with pytest.raises(ValueError, match=r"RWKVChannelMix cannot be an expert.*token_local"):
        Experts(CONTEXT, n_experts=2, expert=RWKVChannelMix, active=1)
    with pytest.raises(ValueError, match="MixtureOfExperts cannot be an expert"):
        Experts(CONTEXT, n_experts=2, expert=partial(MixtureOfExperts, n_experts=2), active=1)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"n_experts": 0}, "n_experts is 0; it must be at least 1"),
        ({"n_experts": 2, "router": partial(TopK, k=3)}, "k is 3, n_experts 2"),
        ({"n_experts": 2, "router": partial(TopK, k=1)}, "k is 1, renormalise true"),
        ({"n_experts": 2, "shared_gate": True}, "no shared expert to gate"),
    ],
)
def test_sizes_that_do_not_fit(arguments, message):
    with pytest.raises(ValueError, match=message):
        MixtureOfExperts(CONTEXT, **arguments)


def test_products_by_groups_equal_those_row_by_row_and_leave_zeros_beyond():
    x = torch.randn(8, 5, dtype=torch.float64, requires_grad=True)
    weight = torch.randn(3, 4, 5, dtype=torch.float64, requires_grad=True)
    some = groups(3, 0, 2)
    ways = [way(x, weight, some) for way in (grouped_product, grouped_product_naive)]
    torch.testing.assert_close(*ways)
    assert not ways[0][5:].any()
    gradients = [torch.autograd.grad(y.cos().sum(), [x, weight]) for y in ways]
    for mine, theirs in zip(*gradients, strict=True):
        torch.testing.assert_close(mine, theirs)
    assert not gradients[0][1][1].any()


def test_rows_that_a_faster_library_multiplies():
    x, weight = torch.randn(600, 256, requires_grad=True), torch.randn(2, 160, 256, requires_grad=True)
    counts = groups(500, 100)
    y, want = grouped_product(x, weight, counts), torch.cat([x[:500] @ weight[0].t(), x[500:] @ weight[1].t()])
    torch.testing.assert_close(y, want, rtol=1e-4, atol=1e-4)
    for mine, theirs in zip(
        torch.autograd.grad(y.sum(), [x, weight]), torch.autograd.grad(want.sum(), [x, weight]), strict=True
    ):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-3)


@pytest.mark.parametrize(("on_host", "compact", "rows_read"), [(True, False, 3), (False, True, 3), (False, False, 6)])
def test_choices_that_are_not_taken_are_left_out(on_host, compact, rows_read):
    experts = torch.tensor([[2, 0], [3, 2], [3, 3]])  # 3: not taken
    order = sort_by_expert(experts, 3, on_host=on_host, compact=compact)
    assert order.groups.ends.tolist() == [1, 1, 3]
    assert order.tokens[:3].tolist() == [0, 0, 1]
    assert len(order.tokens) == rows_read
    x = torch.tensor([[1.0], [10.0], [100.0]], requires_grad=True)
    rows = gather(x, order)
    weights = torch.tensor([[0.5, 2.0], [7.0, 3.0], [7.0, 7.0]], requires_grad=True)
    scaled = rows * torch.tensor([1.0, 1.0, 1.0, *[float("inf")] * 3])[: len(rows), None].nan_to_num(posinf=0)
    y = combine(scaled, weights, order, 3, experts)
    assert y.flatten().tolist() == [2.5, 30.0, 0.0]
    dx, dw = torch.autograd.grad(y.sum(), [x, weights])
    assert dx.flatten().tolist() == [2.5, 3.0, 0.0]
    assert dw.tolist() == [[1.0, 1.0], [0.0, 10.0], [0.0, 0.0]]


def test_decoding_reads_the_experts_that_were_chosen_and_no_others():
    mixture = MixtureOfExperts(CONTEXT, n_experts=4, expert=partial(MLP, width=8), router=partial(TopK, k=2)).eval()
    initialise(mixture, seed=0)
    x = torch.randn(1, 1, 6)
    sequence = Sequence(torch.zeros(1, 1, dtype=torch.long))
    with torch.no_grad():
        want = mixture(x, sequence, ()).y
        chosen = mixture.router(x, sequence).experts.flatten().tolist()
        for e in set(range(4)) - set(chosen):
            for parameter in mixture.experts.parameters():
                parameter[e] = float("nan")
        torch.testing.assert_close(mixture(x, sequence, ()).y, want)
    assert mixture.experts.idle() == 2 * 2 * 6 * 8


@pytest.mark.parametrize(("freeze", "still"), [("router", "router"), ("experts", "experts"), (None, None)])
def test_what_fine_tuning_leaves_as_it_is(freeze, still):
    mixture = MixtureOfExperts(CONTEXT, n_experts=2, expert=partial(MLP, width=8), freeze=freeze)
    frozen = {name.partition(".")[0] for name, p in mixture.named_parameters() if not p.requires_grad}
    assert frozen == ({still} if still else set())
