"""Patterns, wiring, states and what a decoder refuses; a mixer of a few lines stands in for all."""

import pytest
import torch
from bakeoff.interfaces import Capabilities, LayerContext, Result, SequenceMixer
from bakeoff.interfaces.init import roles
from bakeoff.model import LanguageModel
from bakeoff.parts.blocks.parallel import Parallel
from bakeoff.parts.blocks.post_norm import PostNorm
from bakeoff.parts.blocks.pre_norm import PreNorm
from bakeoff.parts.blocks.sandwich_norm import SandwichNorm
from bakeoff.parts.decoder import Decoder, layer_names
from bakeoff.parts.feed_forwards.mlp import MLP
from bakeoff.parts.linear import Linear
from bakeoff.parts.norms import LayerNorm, RMSNorm


class RunningSum(SequenceMixer):
    """y_t = W sum over s <= t of x_s."""

    capabilities = Capabilities(state=True, constant_state=True)

    def __init__(self, context):
        super().__init__(context)
        self.output = Linear(context.d_model, context.d_model, role="output")

    def empty_state(self, batch, max_length, dtype=torch.float32, device=None):
        return {"sum": torch.zeros(batch, 1, self.output.in_features, dtype=dtype, device=device)}

    def forward(self, x, sequence, state=None):
        total = x.cumsum(1) + (0 if state is None else state["sum"])
        return Result(self.output(total), None if state is None else {"sum": total[:, -1:]})

    def flops(self, queries, keys):
        return 2 * queries * self.output.weight.numel()


def block(kind=PreNorm, **arguments):
    arguments = {"mixer": RunningSum, "feed_forward": MLP} | arguments
    return lambda context: kind(context, **arguments)


def model(kind=PreNorm, depth=2, tied=True, **arguments):
    def backbone(context):
        return Decoder(context, depth=depth, pattern=["layer"], blocks={"layer": block(kind)}, **arguments)

    made = LanguageModel(d_model=8, vocab_size=11, max_length=16, backbone=backbone, tied_embedding=tied).double()
    return made.initialise(seed=0)


@pytest.mark.parametrize(
    ("pattern", "depth", "names"),
    [
        (["a"], 3, "aaa"),
        (["a", "a", "b"], 7, "aabaaba"),
        ({"first": ["b", "b"], "repeat": ["a"]}, 4, "bbaa"),
        ({"repeat": ["a", "b"]}, 3, "aba"),
    ],
)
def test_pattern(pattern, depth, names):
    assert "".join(layer_names(pattern, depth, {"a": 0, "b": 0})) == names


@pytest.mark.parametrize(
    ("pattern", "message"),
    [
        (["attentoin"], "did you mean 'attention'"),
        ([], "empty"),
        ({"frist": ["attention"]}, "frist"),
        ({"first": ["attention"] * 3, "repeat": ["attention"]}, "3 layers, depth is 2"),
    ],
)
def test_wrong_patterns(pattern, message):
    with pytest.raises(ValueError, match=message):
        layer_names(pattern, 2, {"attention": 0, "mlp": 0})


@pytest.mark.parametrize("kind", [PreNorm, PostNorm, SandwichNorm, Parallel])
def test_state_continues_where_it_ends(kind):
    lm = model(kind)
    tokens = torch.randint(11, (2, 9))
    whole, none = lm.logits(tokens)
    assert none is None
    for sizes in ([9], [1] * 9, [4, 5], [2, 6, 1]):
        with torch.no_grad():
            state, pieces = lm.empty_state(2), []
            for piece in tokens.split(sizes, 1):
                logits, state = lm.logits(piece, state)
                pieces.append(logits)
        torch.testing.assert_close(torch.cat(pieces, 1), whole, rtol=1e-12, atol=1e-12)


def test_wiring_by_hand():
    context = LayerContext(d_model=4, vocab_size=5, max_length=8)
    x = torch.randn(1, 3, 4)
    from bakeoff.interfaces import Sequence
    from bakeoff.interfaces.init import initialise

    sequence = Sequence(torch.zeros(1, 3, dtype=torch.long))

    def made(kind, **arguments):
        part = block(kind, **arguments)(context)
        initialise(part, seed=0)
        return part, lambda v: part.mixer(v, sequence).y, lambda v: part.feed_forward(v, sequence).y

    part, mix, feed = made(PreNorm)
    y = x + mix(part.mixer_norm(x))
    torch.testing.assert_close(part(x, sequence).y, y + feed(part.feed_forward_norm(y)))
    part, mix, feed = made(PostNorm)
    y = part.mixer_norm(x + mix(x))
    torch.testing.assert_close(part(x, sequence).y, part.feed_forward_norm(y + feed(y)))
    part, mix, feed = made(SandwichNorm)
    y = x + part.mixer_output_norm(mix(part.mixer_norm(x)))
    torch.testing.assert_close(part(x, sequence).y, y + part.feed_forward_output_norm(feed(part.feed_forward_norm(y))))
    part, mix, feed = made(Parallel)
    torch.testing.assert_close(part(x, sequence).y, x + mix(part.norm(x)) + feed(part.norm(x)))
    part, mix, feed = made(Parallel, shared_norm=False)
    torch.testing.assert_close(part(x, sequence).y, x + mix(part.norm(x)) + feed(part.feed_forward_norm(x)))
    part, mix, _ = made(PreNorm, feed_forward=None)
    torch.testing.assert_close(part(x, sequence).y, x + mix(part.mixer_norm(x)))


def test_each_layer_has_its_own_parameters():
    lm = model(depth=3)
    assert len({id(layer.mixer.output.weight) for layer in lm.backbone.layers}) == 3
    a, b = (layer.mixer.output.weight for layer in lm.backbone.layers[:2])
    assert not torch.equal(a, b)


def test_tied_embedding_is_one_parameter_that_costs_the_same():
    tied, untied = model(), model(tied=False)
    assert tied.head.projection.weight is tied.backbone.embedding
    count = [sum(p.numel() for p in m.parameters()) for m in (tied, untied)]
    assert count[1] - count[0] == 11 * 8
    assert tied.flops(4, 4) == untied.flops(4, 4)
    assert "head.projection.weight" not in roles(tied)


def test_tie_survives_the_meta_device():
    with torch.device("meta"):
        lm = LanguageModel(
            d_model=8, vocab_size=11, max_length=16,
            backbone=lambda c: Decoder(c, depth=2, pattern=["layer"], blocks={"layer": block()}),
        )  # fmt: skip
    lm.initialise(seed=0)
    assert lm.head.projection.weight is lm.backbone.embedding
    here = LanguageModel(
        d_model=8, vocab_size=11, max_length=16,
        backbone=lambda c: Decoder(c, depth=2, pattern=["layer"], blocks={"layer": block()}),
    ).initialise(seed=0)  # fmt: skip
    for (name, a), (_, b) in zip(lm.named_parameters(), here.named_parameters(), strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=0, msg=name)


def test_embedding_scale_and_final_norm():
    plain, scaled = model(norm=None), model(norm=None, embedding_scale=3.0)
    tokens = torch.randint(11, (1, 4))
    from bakeoff.interfaces import Sequence

    for lm in (plain, scaled):
        for layer in lm.backbone.layers:
            layer.mixer.output.weight.data.zero_()
            layer.feed_forward.down.weight.data.zero_()
    a, b = (lm.backbone(Sequence(tokens)).y for lm in (plain, scaled))
    torch.testing.assert_close(b, 3 * a)
    normed = model(norm=RMSNorm).backbone(Sequence(tokens)).y
    torch.testing.assert_close(normed.square().mean(-1), torch.ones(1, 4).double(), rtol=1e-2, atol=0)


def test_a_position_for_attention_is_refused_here():
    from bakeoff.parts.positions.rope import RoPE

    with pytest.raises(ValueError, match=r"model\.position: RoPE acts on attention"):
        model(position=lambda context: RoPE(context.child(n_heads=2, head_width=4)))


def test_a_block_of_nothing_is_refused():
    with pytest.raises(ValueError, match="both are null"):
        PreNorm(LayerContext(d_model=4, vocab_size=5, max_length=8), mixer=None, feed_forward=None)


def test_post_norm_takes_other_norms():
    part = block(PostNorm, norm=LayerNorm)(LayerContext(d_model=4, vocab_size=5, max_length=8))
    assert isinstance(part.mixer_norm, LayerNorm)


def test_dropout_acts_in_training_only():
    part = block(dropout=0.5)(LayerContext(d_model=4, vocab_size=5, max_length=8))
    from bakeoff.interfaces import Sequence
    from bakeoff.interfaces.init import initialise

    initialise(part, seed=0)
    x, sequence = torch.randn(1, 3, 4), Sequence(torch.zeros(1, 3, dtype=torch.long))
    assert not torch.equal(part(x, sequence).y, part(x, sequence).y)
    part.eval()
    assert torch.equal(part(x, sequence).y, part(x, sequence).y)


@pytest.mark.parametrize("dropout", [-0.1, 1.0])
def test_dropout_is_a_share(dropout):
    with pytest.raises(ValueError, match="0 <= dropout < 1"):
        block(dropout=dropout)(LayerContext(d_model=4, vocab_size=5, max_length=8))
