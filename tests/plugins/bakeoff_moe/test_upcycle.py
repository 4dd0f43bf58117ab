"""A mixture made of a dense model computes what the dense model computes."""

import bakeoff
import pytest
import torch
from bakeoff.errors import UserError
from bakeoff.interfaces import Sequence
from bakeoff.parts.linear import Linear
from bakeoff_moe import Upcycle
from bakeoff_moe.inner_width import inner_width

V, WIDTH, E = 61, 24, 4
DENSE = {"use": "gated_mlp", "width": WIDTH, "bias": True}


def model(feed_forward, seed=0, **changes):
    """Two layers under a vocabulary of 61; dots in paths are written as double underscores."""
    layer = {"use": "pre_norm", "mixer": {"use": "attention", "n_heads": 2}, "feed_forward": feed_forward}
    values = {
        "model": {"d_model": 16, "depth": 2, "pattern": ["layer"], "blocks": {"layer": layer}},
        "data": {"corpus": {"use": "python_source"}, "tokenizer": {"use": "byte"}, "length": 16, "batch_tokens": 16},
        "trainer": {"max_steps": 1},
    }
    made = bakeoff.recipe(values, {path.replace("__", "."): value for path, value in changes.items()})
    return made.build("model", vocab_size=V).initialise(seed).eval()


def mixture(expert=DENSE, router=None, **more):
    return {"use": "mixture_of_experts", "n_experts": E, "expert": expert, "router": router or {"use": "top_k"}, **more}


@pytest.fixture(scope="module")
def dense():
    """A dense model with biases and gains that are not what they begin as."""
    made = model(DENSE, seed=1)
    draw = torch.Generator().manual_seed(0)
    for parameter in made.parameters():
        parameter.data += 0.1 * torch.empty_like(parameter).normal_(generator=draw)
    return made


def upcycled(dense, feed_forward=None, seed=5, changes=None, **arguments):
    made = model(feed_forward or mixture(), seed=2, **(changes or {}))
    made.load_state_dict(Upcycle(**arguments).from_run(dense, made, seed))
    return made


def tokens(rows=3, length=11):
    return torch.randint(V, (rows, length), generator=torch.Generator().manual_seed(1))


def same(one, other):
    with torch.no_grad():
        a, b = one.logits(tokens())[0], other.logits(tokens())[0]
    assert a.abs().max() > 0.5
    assert (a - b).abs().max() < 1e-6 * max(1.0, float(a.abs().max()))


ROUTERS = [{"use": "top_k"}, {"use": "top_k", "k": 3, "softmax": "after", "bias": True}]


@pytest.mark.parametrize("router", ROUTERS)
def test_with_weights_that_sum_to_one_nothing_changes(dense, router):
    made = upcycled(dense, mixture(router=router))
    for layer in made.backbone.layers:
        layer.feed_forward.router.scores.weight.data.normal_(0, 3, generator=torch.Generator().manual_seed(3))
    same(dense, made)


def test_otherwise_it_is_the_sum_of_the_weights_times_as_much(dense):
    made = upcycled(dense, mixture(router={"use": "top_k", "k": 2, "renormalise": False}))
    x = torch.randn(2, 5, 16, generator=torch.Generator().manual_seed(0))
    sequence = Sequence(torch.zeros(2, 5, dtype=torch.long))
    for mine, theirs in zip(made.backbone.layers, dense.backbone.layers, strict=True):
        with torch.no_grad():
            scores = x @ mine.feed_forward.router.scores.weight.T
            gates = scores.softmax(-1).topk(2).values.sum(-1, keepdim=True)
            expected = gates * theirs.feed_forward(x, sequence).y
            assert gates.max() < 0.99
            torch.testing.assert_close(mine.feed_forward(x, sequence).y, expected, rtol=1e-5, atol=1e-6)


def test_experts_are_copies_routers_are_drawn_and_the_rest_is_the_runs(dense):
    drawn, made = model(mixture(), seed=2).state_dict(), upcycled(dense).state_dict()
    theirs = dense.state_dict()
    for name, tensor in made.items():
        if ".experts." in name:
            copied = theirs[name.replace(".experts.", ".")]
            assert all(torch.equal(expert, copied) for expert in tensor), name
        elif ".router." in name:
            assert torch.equal(tensor, drawn[name]), name
        else:
            assert torch.equal(tensor, theirs[name]), name


def test_layers_that_stay_dense_are_copied(dense):
    block = {"use": "pre_norm", "mixer": {"use": "attention", "n_heads": 2}, "feed_forward": DENSE}
    pattern = {"first": ["dense"], "repeat": ["layer"]}
    made = upcycled(dense, changes={"model__blocks__dense": block, "model__pattern": pattern})
    assert "backbone.blocks.0.feed_forward.up.weight" in made.state_dict()
    assert "backbone.blocks.1.feed_forward.experts.up.weight" in made.state_dict()
    same(dense, made)


def test_a_mixture_is_copied_into_the_same_mixture(dense):
    first = upcycled(dense)
    again = upcycled(first, noise=1.0, redrawn=1.0)
    for name, tensor in first.state_dict().items():
        assert torch.equal(again.state_dict()[name], tensor), name


def experts(made, name, layer=0):
    return made.state_dict()[f"backbone.blocks.{layer}.feed_forward.experts.{name}"]


def test_noise_is_relative_to_each_weights_deviation(dense):
    noisy = upcycled(dense, noise=0.1)
    for name in ("gate.weight", "up.weight", "down.weight"):
        old = dense.state_dict()[f"backbone.blocks.0.feed_forward.{name}"]
        noise = (experts(noisy, name) - old) / old.std()
        assert float(noise.std()) == pytest.approx(0.1, rel=0.1)
        assert abs(float(noise.mean())) < 0.01
        assert not torch.equal(noise[0], noise[1])
    assert not torch.equal(experts(noisy, "up.weight"), experts(noisy, "up.weight", 1))


def test_the_same_parts_of_an_expert_are_redrawn_in_all_of_its_weights(dense):
    made = upcycled(dense, redrawn=0.25)
    state, names = dense.state_dict(), ("gate.weight", "up.weight", "down.weight")
    old = {name: state[f"backbone.blocks.0.feed_forward.{name}"] for name in names}
    chosen = []
    for e in range(E):
        changed = {name: experts(made, name)[e] != tensor for name, tensor in old.items()}
        rows = changed["up.weight"].all(1)
        assert int(rows.sum()) == WIDTH // 4
        assert torch.equal(rows, changed["up.weight"].any(1))
        assert torch.equal(rows, changed["gate.weight"].all(1))
        assert torch.equal(rows, changed["down.weight"].all(0))
        assert torch.equal(rows, changed["down.weight"].any(0))
        assert torch.equal(rows, experts(made, "up.bias")[e] != state["backbone.blocks.0.feed_forward.up.bias"])
        assert torch.equal(experts(made, "down.bias")[e], state["backbone.blocks.0.feed_forward.down.bias"])
        chosen.append(rows)
    assert not all(torch.equal(chosen[0], other) for other in chosen[1:])


def test_what_is_redrawn_has_mean_and_deviation_of_what_stood_there():
    wide = {"use": "mlp", "width": 2048}
    dense = model(wide, seed=1)
    up = dense.backbone.layers[0].feed_forward.up.weight.detach()
    up.add_(3.0).mul_(0.5)
    made = upcycled(dense, mixture(wide), redrawn=1.0)
    new = experts(made, "up.weight")
    assert not (new == up).any()
    assert float(new.mean()) == pytest.approx(float(up.mean()), abs=0.01)
    assert float(new.std()) == pytest.approx(float(up.std()), rel=0.02)


def test_the_seed_decides_what_is_drawn(dense):
    one, same_seed, other = (upcycled(dense, seed=seed, noise=0.1, redrawn=0.5).state_dict() for seed in (5, 5, 6))
    assert all(torch.equal(tensor, same_seed[name]) for name, tensor in one.items())
    assert not torch.equal(*(each["backbone.blocks.0.feed_forward.experts.up.weight"] for each in (one, other)))


@pytest.mark.parametrize(("split", "k"), [(2, 2), (2, 4), (4, 4)])
def test_pieces_whose_whole_is_chosen_compute_what_it_computes(dense, split, k):
    fine = mixture({**DENSE, "width": WIDTH // split}, {"use": "top_k", "k": k, "bias": True})
    made = upcycled(dense, {**fine, "n_experts": 8}, split=split)
    same(dense, made)
    scores = made.backbone.layers[0].feed_forward.router.scores.weight
    assert torch.equal(scores[0], scores[split - 1])
    assert not torch.equal(scores[0], scores[split])


@pytest.mark.parametrize(
    ("feed_forward", "arguments", "said"),
    [
        (mixture({**DENSE, "width": 32}), {}, r"feed_forward.experts.up.weight: \(24, 16\) there, \(32, 16\) here"),
        (mixture({**DENSE, "bias": False}), {}, r"feed_forward.experts.up.bias: \(24,\) there, none here"),
        (mixture({"use": "mlp", "width": WIDTH}), {}, r"GatedMLP \(activation silu\) in the run, .* MLP"),
        (mixture({**DENSE, "activation": "gelu"}), {}, r"activation silu\) in the run, .* \(activation gelu\)"),
        (mixture(shared=DENSE), {}, "set shared: null"),
        (mixture(router={"use": "top_k", "k": 3}), {"split": 2}, "k is 3, no multiple of split, 2"),
        (mixture(), {"split": 5}, "n_experts is 4, no multiple of split, 5"),
        (mixture(router={"use": "switch"}), {"split": 2}, "split takes the router top_k, and .* has Switch"),
        (mixture(), {"split": 2}, r"experts.up.weight: \(12, 16\) there, \(24, 16\) here[\s\S]* divided by split, 2"),
    ],
)
def test_what_does_not_agree_is_named(dense, feed_forward, arguments, said):
    with pytest.raises(UserError, match=said):
        upcycled(dense, feed_forward, **arguments)


def test_another_width_and_a_layer_without_feed_forward_are_named(dense):
    with pytest.raises(UserError, match=r"backbone.embed.weight: \(61, 16\) there, \(61, 32\) here"):
        upcycled(dense, changes={"model__d_model": 32})
    with pytest.raises(UserError, match=r"blocks.0.feed_forward is a mixture, and the run has no feed-forward there"):
        upcycled(model(None))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [({"noise": -1.0}, "noise is -1.0"), ({"redrawn": 1.5}, "redrawn is 1.5"), ({"split": 0}, "split is 0")],
)
def test_arguments_out_of_range(arguments, said):
    with pytest.raises(UserError, match=said):
        Upcycle(**arguments)


class TwoWidths(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = Linear(4, 8), Linear(6, 4, role="output")


class AlsoAGain(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.up, self.down = Linear(4, 8), Linear(8, 4, role="output")
        self.gain = torch.nn.Parameter(torch.ones(8))


@pytest.mark.parametrize("feed_forward", [TwoWidths, AlsoAGain])
def test_a_feed_forward_of_another_make_cannot_be_divided(feed_forward):
    with pytest.raises(UserError, match="has no one inner width"):
        inner_width(feed_forward())
