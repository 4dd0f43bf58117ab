from functools import partial

import pytest
import torch
from bakeoff.errors import CapabilityError, UserError
from bakeoff.interfaces import LayerContext, Sequence
from bakeoff.model.memory import Live
from bakeoff.model.recompute import recompute
from bakeoff.parts.attention.mixer import Attention
from bakeoff.parts.blocks.pre_norm import PreNorm
from bakeoff.parts.feed_forwards.gated_mlp import GatedMLP
from bakeoff.parts.feed_forwards.mlp import MLP
from bakeoff.parts.needs import gather
from bakeoff.parts.positions.alibi import ALiBi
from bakeoff.parts.positions.rope import RoPE
from bakeoff.registry import find
from bakeoff_blockwise import Blockwise, BlockwiseTransformer

D, T = 16, 37


def part(kind, name, **arguments):
    return lambda context: find(name, kind)(context, **arguments)


def attention(op=None, **options):
    given = {} if op is None else {"op": partial(Blockwise, chunk=op)}
    return partial(Attention, n_heads=4, **{"position": RoPE, **options}, **given)


MIXERS = {
    "attention": attention(),
    "by blocks": attention(op=5),
    "grouped, windowed": attention(op=64, n_kv_heads=2, window=6, sinks=True),
    "soft cap, bias": attention(op=64, soft_cap=3.0, position=ALiBi, output_gate=True),
    "latent": part("mixer", "latent_attention", n_heads=2, latent_width=8, head_width=4, rotary_width=4, position=RoPE),
    "mamba2": part("mixer", "mamba2", head_width=8, state_size=8),
    "gated_delta_net": part("mixer", "gated_delta_net", n_heads=2),
    "rg_lru": part("mixer", "rg_lru"),
}
FEED_FORWARDS = {
    "dense": MLP,
    "gated": GatedMLP,
    "experts": part(
        "feed_forward", "mixture_of_experts", n_experts=4, expert=partial(GatedMLP, width=12),
        router=part("router", "top_k", k=2), balance=[find("load_balance", "balance")(coefficient=0.1)],
    ),
}  # fmt: skip


def both(mixer, feed_forward, chunk, dropout=0.0, width=D):
    """The block and `pre_norm`, with the same numbers in both."""
    context = LayerContext(d_model=width, vocab_size=8, max_length=8192)
    parts = {"mixer": mixer, "feed_forward": feed_forward, "dropout": dropout}
    block, plain = BlockwiseTransformer(context, **parts, chunk=chunk), PreNorm(context, **parts)
    torch.manual_seed(0)
    for module in block.modules():
        for value in (*module.parameters(recurse=False), *module.buffers(recurse=False)):
            if value.is_floating_point():
                value.data.normal_(0, 0.2)
    block, plain = block.double(), plain.double()
    plain.load_state_dict(block.state_dict())
    return block, plain


def run(block, sequence, x, state=None, past=None):
    result = block(x, sequence.prepare(gather(block)), state)
    weights = torch.linspace(-1, 1, result.y.numel(), dtype=x.dtype).view_as(result.y)
    loss = (result.y * weights).sum() + sum(value.double().sum() for value in result.aux.values())
    inputs = [x, *(p for p in block.parameters() if p.requires_grad)]
    return result, torch.autograd.grad(loss, inputs, allow_unused=True, retain_graph=True), loss, inputs


def same(ours, theirs):
    (one, by_one, *_), (other, by_other, *_) = ours, theirs
    torch.testing.assert_close(one.y, other.y, atol=1e-12, rtol=1e-12)
    assert one.aux.keys() == other.aux.keys()
    for key in one.aux:
        torch.testing.assert_close(one.aux[key], other.aux[key], atol=0, rtol=1e-6)  # routers sum in float32
    for a, b in zip(by_one, by_other, strict=True):
        torch.testing.assert_close(a, b, atol=1e-12, rtol=1e-12)


def sequences():
    tokens = torch.zeros(2, T, dtype=torch.long)
    documents = torch.tensor([[0] * 9 + [1] * 28, [0] * 1 + [1] * 20 + [5] * 16])
    real = torch.ones(2, T, dtype=torch.bool)
    real[0, :11], real[1, 30:] = False, False
    return {
        "plain": Sequence(tokens),
        "documents": Sequence(tokens, documents=documents),
        "padding": Sequence(tokens, real=real),
    }


def given(seed=1, width=D, length=T):
    torch.manual_seed(seed)
    return torch.randn(2, length, width, dtype=torch.float64, requires_grad=True)


@pytest.mark.parametrize("chunk", [1, 7, 64, T])
@pytest.mark.parametrize("mixer", MIXERS)
def test_chunks_of_any_size_are_exact(mixer, chunk):
    block, plain = both(MIXERS[mixer], GatedMLP, chunk)
    x = given()
    same(run(block, sequences()["plain"], x), run(plain, sequences()["plain"], x))


@pytest.mark.parametrize("name", ["documents", "padding"])
@pytest.mark.parametrize("mixer", MIXERS)
def test_documents_and_padding(mixer, name):
    block, plain = both(MIXERS[mixer], GatedMLP, 7)
    x, real = given(), sequences()[name].real
    ours, theirs = run(block, sequences()[name], x), run(plain, sequences()[name], x)
    if real is None:
        return same(ours, theirs)
    torch.testing.assert_close(ours[0].y[real], theirs[0].y[real], atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("feed_forward", FEED_FORWARDS)
@pytest.mark.parametrize("chunk", [1, 7, T])
def test_feed_forwards_and_their_sums(feed_forward, chunk):
    block, plain = both(MIXERS["by blocks"], FEED_FORWARDS[feed_forward], chunk)
    x = given()
    ours = run(block, sequences()["plain"], x)
    same(ours, run(plain, sequences()["plain"], x))
    assert bool(ours[0].aux) == (feed_forward == "experts")


@pytest.mark.parametrize("mixer", ["attention", "by blocks", "mamba2"])
def test_a_graph_can_be_differentiated_twice(mixer):
    block, _ = both(MIXERS[mixer], GatedMLP, 7, dropout=0.3)
    _, first, loss, inputs = run(block.train(), sequences()["plain"], given())
    for one, other in zip(first, torch.autograd.grad(loss, inputs), strict=True):
        assert torch.equal(one, other)


def test_gradients_of_a_part_of_the_sequence():
    block, plain = both(MIXERS["by blocks"], GatedMLP, 7)
    x = given()
    found = []
    for each in (block, plain):
        y = each(x, sequences()["plain"].prepare(gather(each))).y
        found.append(torch.autograd.grad(y[:, 3:16].square().sum(), [x, *each.parameters()]))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("mode", ["selective", "full"])
@pytest.mark.parametrize("mixer", ["attention", "by blocks", "rg_lru"])
def test_recomputed_as_a_whole_besides(mixer, mode):
    block, plain = both(MIXERS[mixer], GatedMLP, 7)
    recompute(block, mode)
    x = given()
    same(run(block, sequences()["plain"], x), run(plain, sequences()["plain"], x))


@pytest.mark.parametrize("mixer", ["attention", "by blocks", "grouped, windowed", "mamba2"])
def test_without_gradients(mixer):
    block, plain = both(MIXERS[mixer], GatedMLP, 7)
    with torch.no_grad():
        x = given()
        ours, theirs = (b(x, sequences()["plain"].prepare(gather(b))).y for b in (block, plain))
    torch.testing.assert_close(ours, theirs, atol=1e-12, rtol=1e-12)


def test_dropout_is_drawn_once():
    block, _ = both(MIXERS["by blocks"], GatedMLP, 7, dropout=0.5)
    x, direction = given(), torch.randn(2, T, D, dtype=torch.float64)

    def at(step):
        torch.manual_seed(5)
        return block(x + step * direction, sequences()["plain"].prepare(gather(block))).y.square().sum()

    slope = (torch.autograd.grad(at(0.0), x)[0] * direction).sum()
    torch.testing.assert_close(slope, (at(1e-5) - at(-1e-5)) / 2e-5, rtol=1e-6, atol=0)


@pytest.mark.parametrize("mixer", ["by blocks", "mamba2", "rg_lru", "gated_delta_net"])
@pytest.mark.parametrize("feed_forward", [MLP, GatedMLP])
def test_memory_of_a_long_sequence(mixer, feed_forward):
    """In activations, T x D floats: input, output, gradients of both and all else that is alive at once."""
    length, width = 4096, 64
    mixers = {"by blocks": attention(op=64), "mamba2": part("mixer", "mamba2"), "rg_lru": part("mixer", "rg_lru"),
              "gated_delta_net": part("mixer", "gated_delta_net", n_heads=4)}  # fmt: skip
    block, _ = both(mixers[mixer], feed_forward, 64, width=width)
    block = block.float()
    x = torch.randn(1, length, width, requires_grad=True)
    sequence = Sequence(torch.zeros(1, length, dtype=torch.long)).prepare(gather(block))
    with Live() as live:
        live.note(x)
        y = block(x, sequence).y
        y.backward(torch.ones_like(y))
    assert live.peak <= 12 * length * width * 4


def test_what_is_not_exact_is_refused_by_name():
    choice = part("feed_forward", "mixture_of_experts", n_experts=4, router=part("router", "expert_choice"))
    with pytest.raises(CapabilityError, match=r"feed_forward chunk by chunk.*MixtureOfExperts.*`state`"):
        both(MIXERS["attention"], choice, 4)
    block, _ = both(MIXERS["attention"], MLP, 4)
    sequence = Sequence(torch.zeros(1, 9, dtype=torch.long), visibility="bidirectional")
    with pytest.raises(CapabilityError, match="cannot let tokens see later ones"):
        sequence.prepare(gather(block))


def test_a_chunk_of_nothing_is_one_error():
    with pytest.raises(UserError, match="chunk is 0; it must be at least 1"):
        both(MIXERS["attention"], MLP, 0)


def test_chunks_do_not_share_what_they_keep():
    block, plain = both(MIXERS["by blocks"], GatedMLP, 7)
    first, second = given(1), given(2)
    one = block(first, sequences()["plain"].prepare(gather(block))).y
    other = block(second, sequences()["plain"].prepare(gather(block))).y
    by_one, by_other = torch.autograd.grad(one.sum(), first)[0], torch.autograd.grad(other.sum(), second)[0]
    for x, ours in ((first, by_one), (second, by_other)):
        y = plain(x, sequences()["plain"].prepare(gather(plain))).y
        torch.testing.assert_close(ours, torch.autograd.grad(y.sum(), x)[0], atol=1e-12, rtol=1e-12)
