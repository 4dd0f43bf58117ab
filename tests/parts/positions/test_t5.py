from copy import deepcopy

import pytest
import torch
from bakeoff.errors import UserError
from bakeoff.interfaces import LayerContext, Past, Sequence
from bakeoff.interfaces.init import initialise, roles
from bakeoff.parts.attention.mixer import Attention
from bakeoff.parts.needs import gather
from bakeoff.parts.positions.t5 import T5Position, one_sided_buckets, two_sided_buckets
from torch import nn

CONTEXT = {"d_model": 32, "vocab_size": 8, "max_length": 64}


def position(n_heads=2, **known):
    context = LayerContext(**CONTEXT, n_heads=n_heads, **known)
    made = T5Position(context)
    initialise(nn.ModuleList(context.parts.values()), seed=0)
    return made


def bias_of(position, T, B=1, rolling=False, **what):
    return position.bias(Sequence(torch.zeros(B, T, dtype=torch.long), **what).prepare(position.needs()), rolling)


def test_buckets_of_the_past():
    expected = {0: 0, 1: 1, 7: 7, 8: 8, 9: 9, 16: 16, 20: 17, 32: 21, 64: 26, 100: 30, 128: 31, 200: 31, -1: 0, -50: 0}
    assert one_sided_buckets(-torch.tensor(list(expected)), 32, 128).tolist() == list(expected.values())


def test_buckets_of_both_sides():
    expected = {-1: 1, -7: 7, -8: 8, -16: 10, -32: 12, -64: 14, -100: 15, 0: 0}
    expected |= {1: 17, 7: 23, 8: 24, 16: 26, 32: 28, 64: 30, 100: 31}
    assert two_sided_buckets(torch.tensor(list(expected)), 32, 128).tolist() == list(expected.values())


@pytest.mark.parametrize(("buckets", "distance"), [(32, 128), (8, 20), (4, 128)])
def test_buckets_are_those_of_transformers(buckets, distance):
    modeling = pytest.importorskip("transformers.models.t5.modeling_t5")
    theirs = modeling.T5Attention._relative_position_bucket
    ahead = torch.arange(-300, 301)
    assert torch.equal(
        one_sided_buckets(ahead, buckets, distance),
        theirs(ahead, bidirectional=False, num_buckets=buckets, max_distance=distance),
    )
    if buckets > 4:
        assert torch.equal(
            two_sided_buckets(ahead, buckets, distance),
            theirs(ahead, bidirectional=True, num_buckets=buckets, max_distance=distance),
        )


def test_causal_and_bidirectional_buckets_by_visibility():
    t5 = position()
    table = t5.table.module.values.weight
    assert torch.equal(bias_of(t5, 3)[0, :, 2, 0], table[2])
    both = bias_of(t5, 3, visibility="bidirectional")
    assert torch.equal(both[0, :, 0, 2], table[16 + 2])
    assert torch.equal(both[0, :, 2, 0], table[2])


def test_no_prefix_is_causal_and_all_prefix_is_bidirectional():
    t5 = position()
    lower = torch.ones(20, 20, dtype=torch.bool).tril()
    none, whole = (torch.full((1, 20), length) for length in (0, 20))
    assert torch.equal(bias_of(t5, 20, visibility="prefix", prefix=none)[..., lower], bias_of(t5, 20)[..., lower])
    assert torch.equal(bias_of(t5, 20, visibility="prefix", prefix=whole), bias_of(t5, 20, visibility="bidirectional"))


def test_a_bias_is_the_same_wherever_the_sequence_begins():
    t5 = position()
    assert torch.equal(bias_of(t5, 40, positions=1000 + torch.arange(40)[None]), bias_of(t5, 40))


def test_a_single_token_sees_growing_and_rolling_caches():
    t5 = position(window=4)
    table = t5.table.module.values.weight
    with torch.no_grad():
        past = Past(1, 16)
        past = past.advance(Sequence(torch.zeros(1, 5, dtype=torch.long), past=past))
        assert torch.equal(bias_of(t5, 1, past=past)[0, :, 0], table[[5, 4, 3, 2, 1, 0]].T)
        assert torch.equal(bias_of(t5, 1, past=past, rolling=True)[0, :, 0], table[[1, 0, 3, 2]].T)


def test_layers_share_one_table_and_all_of_them_train_it():
    context = LayerContext(**CONTEXT, depth=2)
    layers = [Attention(context.child(layer=i), n_heads=2, scale=1.0, position=T5Position) for i in range(2)]
    model = nn.ModuleDict({"layers": nn.ModuleList(layers), "shared": nn.ModuleDict(context.parts)})
    initialise(model, seed=0)
    names = [name for name in roles(model) if name.startswith("shared.")]
    assert len(names) == 1
    assert roles(model)[names[0]] == "embedding"
    assert not any("shared" in name or "table" in name for name, _ in model["layers"].named_parameters())
    sequence = Sequence(torch.zeros(1, 6, dtype=torch.long)).prepare(gather(model))
    x = torch.randn(1, 6, 32)
    table = model.get_parameter(names[0])

    def gradient(*chosen):
        y = x
        for layer in chosen:
            y = y + layer(y, sequence).y
        return torch.autograd.grad(y.square().sum(), table, retain_graph=True)[0]

    assert gradient(layers[0]).abs().sum() > 0
    assert gradient(layers[1]).abs().sum() > 0
    assert not torch.allclose(gradient(*layers), gradient(layers[0]))


def test_a_copy_of_a_model_has_a_table_of_its_own():
    context = LayerContext(**CONTEXT)
    mixer = Attention(context, n_heads=2, position=T5Position)
    model = nn.ModuleList([mixer, *context.parts.values()])
    initialise(model, seed=0)
    other = deepcopy(model)
    with torch.no_grad():
        other[1].values.weight.zero_()
    x, tokens = torch.randn(1, 6, 32), torch.zeros(1, 6, dtype=torch.long)
    plain = Attention(LayerContext(**CONTEXT), n_heads=2)
    plain.load_state_dict(mixer.state_dict())
    y, z, without = (m(x, Sequence(tokens).prepare(gather(m))).y for m in (mixer, other[0], plain))
    torch.testing.assert_close(z, without)
    assert (y - z).abs().max() > 1e-4


def test_attention_is_t5s():
    modeling = pytest.importorskip("transformers.models.t5.modeling_t5")
    from transformers import T5Config

    config = T5Config(d_model=32, d_kv=8, num_heads=4, dropout_rate=0.0, is_decoder=True)
    theirs = modeling.T5Attention(config, has_relative_attention_bias=True, layer_idx=0)
    context = LayerContext(**CONTEXT)
    ours = Attention(context, n_heads=4, scale=1.0, position=T5Position)
    table = next(iter(context.parts.values()))
    with torch.no_grad():
        for own, other in (("query", "q"), ("key", "k"), ("value", "v"), ("output", "o")):
            getattr(ours, own).weight.copy_(getattr(theirs, other).weight.normal_(0, 0.2))
        table.values.weight.copy_(theirs.relative_attention_bias.weight.normal_())
    x = torch.randn(2, 40, 32)
    mask = torch.full((1, 1, 40, 40), float("-inf")).triu(1)
    expected = theirs(x, mask=mask)[0]
    actual = ours(x, Sequence(torch.zeros(2, 40, dtype=torch.long)).prepare(gather(ours))).y
    torch.testing.assert_close(actual, expected, atol=2e-5, rtol=1e-4)
    actual.square().sum().backward()
    expected.square().sum().backward()
    torch.testing.assert_close(
        table.values.weight.grad, theirs.relative_attention_bias.weight.grad, atol=1e-3, rtol=1e-3
    )


@pytest.mark.parametrize(("buckets", "distance"), [(3, 128), (2, 128), (7, 128), (32, 16)])
def test_impossible_buckets_are_refused(buckets, distance):
    with pytest.raises(UserError, match=rf"{buckets}.*{distance}"):
        T5Position(LayerContext(**CONTEXT, n_heads=2), buckets=buckets, max_distance=distance)


def test_t5_on_embeddings_is_refused():
    with pytest.raises(UserError, match="mixer"):
        T5Position(LayerContext(**CONTEXT))
