"""Low-rank adapters on the products of a model: where they stand, what they add, and what is left without them."""

import copy

import pytest
import torch
from bakeoff.interfaces import LayerContext, Result, init
from bakeoff.interfaces.feed_forward import FeedForward
from bakeoff.model import LanguageModel
from bakeoff.model.recompute import recompute
from bakeoff.parts.adapters import Adapters, adapter_parameters, has_adapters, merged, without
from bakeoff.parts.linear import Linear
from bakeoff.registry import find
from bakeoff.testing.build import resolved
from bakeoff.testing.candidate import Candidate
from bakeoff.testing.laws.cost import count
from torch import nn
from torch.nn import functional as F

MIXTURE = {
    "use": "mixture_of_experts",
    "n_experts": 4,
    "expert": {"use": "gated_mlp", "width": 8},
    "router": {"use": "bias_balanced", "k": 2},
}
ATTENTION = {"use": "attention", "n_heads": 2}


def built(mixer=ATTENTION, feed_forward=None, **more):
    block = {"use": "pre_norm", "mixer": mixer, "feed_forward": feed_forward or {"use": "mlp", "width": 24}}
    backbone = {"use": "decoder", "depth": 2, "pattern": ["layer"], "blocks": {"layer": block}}
    return LanguageModel(d_model=16, vocab_size=11, max_length=32, backbone=resolved(backbone), **more)


def tuned(model, **section):
    """With adapters, their factors random."""
    return filled(model.initialise(0), **section)


def filled(model, **section):
    Adapters(**section).add_to(model)
    for name, parameter in adapter_parameters(model).items():
        nn.init.normal_(parameter, std=0.3, generator=init.generator(0, name))
    return model


@pytest.fixture
def tokens():
    return torch.randint(11, (2, 9), generator=torch.Generator().manual_seed(1))


def test_by_hand():
    """W = [[1, 2], [3, 4]], s B A = 0.5 [1, 2]^T [1, -1]: W' = [[1.5, 1.5], [4, 3]]."""
    layer = nn.ModuleDict({"only": Linear(2, 2, bias=True)})
    Adapters(rank=1, scale=0.5, on=["only"]).add_to(layer)
    values = {
        "only.weight": [[1.0, 2.0], [3.0, 4.0]],
        "only.bias": [10.0, 20.0],
        "only.adapter.up.weight": [[1.0], [2.0]],
        "only.adapter.down.weight": [[1.0, -1.0]],
    }
    layer.load_state_dict({name: torch.tensor(value) for name, value in values.items()})
    assert layer["only"](torch.tensor([1.0, 2.0])).tolist() == [14.5, 30.0]
    assert layer["only"].weight.tolist() == [[1.5, 1.5], [4.0, 3.0]]
    assert merged(layer)["only.weight"].tolist() == [[1.5, 1.5], [4.0, 3.0]]
    assert merged(layer).keys() == {"only.weight", "only.bias"}


def test_a_model_begins_as_without_and_keeps_its_names(tokens):
    plain, model = built().initialise(3), built()
    Adapters(rank=2).add_to(model)
    model.initialise(3)
    added = adapter_parameters(model)
    assert model.state_dict().keys() - plain.state_dict().keys() == added.keys()
    for name, tensor in plain.state_dict().items():
        assert torch.equal(model.state_dict()[name], tensor), name
    assert torch.equal(model.logits(tokens)[0], plain.logits(tokens)[0])
    assert all(bool((p == 0).all()) == name.endswith("up.weight") for name, p in added.items())


def test_a_is_drawn_as_a_hidden_weight_also_on_the_meta_device():
    """Deviation 1 / sqrt(d_in), over 2 x 4 x 64 x 64 numbers; of blocks and experts each by its own width."""
    mixers = {"use": "rg_lru", "width": 64, "n_heads": 4}
    made = []
    for device in ("cpu", "meta"):
        with torch.device(device):
            model = built(mixers, {**MIXTURE, "expert": {"use": "mlp", "width": 64}})
            Adapters(rank=64).add_to(model)
        made.append(adapter_parameters(model.initialise(0)))
    for name, parameter in made[0].items():
        assert torch.equal(parameter, made[1][name]), name
        if name.endswith("down.weight"):
            assert float(parameter.detach().std()) * parameter.shape[-1] ** 0.5 == pytest.approx(1, abs=0.1), name


def test_only_products_of_the_backbone_are_adapted_by_default():
    model = tuned(built(tied_embedding=False))
    layers = {name.partition(".adapter.")[0].removeprefix("backbone.blocks.") for name in adapter_parameters(model)}
    parts = ["mixer.query", "mixer.key", "mixer.value", "mixer.output", "feed_forward.up", "feed_forward.down"]
    assert layers == {f"{layer}.{part}" for layer in (0, 1) for part in parts}


def test_roles_and_patterns_choose_together():
    model = tuned(built(), on=["*.mixer.*", "backbone.blocks.1.*"], roles=["output"])
    layers = {name.partition(".adapter.")[0].removeprefix("backbone.blocks.") for name in adapter_parameters(model)}
    assert layers == {"0.mixer.output", "1.mixer.output", "1.feed_forward.down"}


def test_weights_that_are_no_linear_layers_are_adapted_by_their_names():
    model = tuned(built({"use": "slstm", "n_heads": 2}, MIXTURE), rank=3)
    shapes = {name: tuple(parameter.shape) for name, parameter in adapter_parameters(model).items()}
    block = "backbone.blocks.0"
    assert shapes[f"{block}.mixer.recurrent_adapter.up.weight"] == (2, 32, 3)
    assert shapes[f"{block}.mixer.recurrent_adapter.down.weight"] == (2, 3, 8)
    assert shapes[f"{block}.feed_forward.experts.gate.adapter.up.weight"] == (4, 8, 3)
    assert shapes[f"{block}.feed_forward.experts.down.adapter.down.weight"] == (4, 3, 8)


REFUSED = {
    "head.projection": r"head.projection shares its weight with backbone.embed, .*model.tied_embedding",
    "backbone.embed": "backbone.embed is no learned product: its role is embedding",
    "*_norm": "backbone.blocks.0.mixer_norm is no learned product: its role is vector",
    "*.mixr.query": r"no name matches '\*.mixr.query'; the nearest are backbone.blocks.\*.mixer.query",
    "backbone.blocks.1.mixer": r"did you mean 'backbone.blocks.1.mixer.\*'",
}


@pytest.mark.parametrize("pattern", REFUSED)
def test_what_no_pattern_may_choose(pattern):
    with pytest.raises(ValueError, match=REFUSED[pattern]):
        Adapters(on=["backbone.*", pattern]).add_to(built())


def test_an_untied_head_is_adapted_on_demand(tokens):
    """Its weight is read and not called."""
    model = tuned(built(tied_embedding=False), on=["head.*"])
    plain = built(tied_embedding=False)
    plain.load_state_dict(merged(model))
    losses = [one.head(one.backbone(sequence(tokens)).y, tokens)[0] for one in (model, plain)]
    torch.testing.assert_close(*losses)
    assert abs(losses[0] - bare(model, tokens)) > 1e-3


def bare(model, tokens):
    with without(model):
        return model.head(model.backbone(sequence(tokens)).y, tokens)[0]


def sequence(tokens):
    from bakeoff.interfaces import Sequence

    return Sequence(tokens)


def test_what_a_part_has_frozen_stays_so():
    model = built(feed_forward={**MIXTURE, "freeze": "router"})
    with pytest.raises(ValueError, match=r"router.scores is frozen by the part that it belongs to"):
        Adapters(on=["*.router.*"]).add_to(model)
    Adapters().add_to(model)
    assert not any(".router." in name for name in adapter_parameters(model))


class Direct(FeedForward):
    """x W with a matrix of its own."""

    capabilities = find("mlp").capabilities
    roles = {"matrix": "output"}  # noqa: RUF012

    def __init__(self, context: LayerContext):
        super().__init__(context)
        self.matrix = nn.Parameter(torch.empty(context.d_model, context.d_model))

    def forward(self, x, sequence, state=None):
        return Result(x @ self.matrix, state)

    def flops(self, queries, keys):
        return 2 * queries * self.matrix.numel()


def test_experts_that_are_no_linear_layers_are_refused_by_name():
    mixture = find("mixture_of_experts")(
        LayerContext(d_model=8, vocab_size=8, max_length=8), n_experts=2, expert=Direct
    )
    with pytest.raises(ValueError, match=r"experts.matrix stands in experts that are no linear layers"):
        Adapters(on=["experts.*"]).add_to(mixture)
    Adapters(on=["*"]).add_to(mixture)
    assert {name.partition(".adapter")[0] for name in adapter_parameters(mixture)} == {"router.scores"}


@pytest.mark.parametrize(
    ("section", "told"),
    [
        ({"rank": 0}, "rank is 0; it must be at least 1"),
        ({"dropout": 1.0}, "dropout is 1.0; it must lie in 0 <= dropout < 1"),
        ({"on": []}, "on is empty, so nothing would be adapted"),
        ({"roles": []}, "roles is empty"),
        ({"roles": ["outptu"]}, "roles: of what is chosen nothing has role 'outptu'; there are hidden, output"),
        ({"on": ["*.query"], "roles": ["output"]}, "nothing has role 'output'; there are hidden"),
    ],
)
def test_what_a_section_cannot_say(section, told):
    with pytest.raises(ValueError, match=told):
        Adapters(**section).add_to(built())


def test_a_model_is_adapted_once():
    with pytest.raises(ValueError, match="has adapters already"):
        Adapters().add_to(tuned(built()))


def test_without_adapters_a_model_is_the_one_that_it_began_as(tokens):
    model = tuned(built({"use": "lstm"}, MIXTURE)).eval()
    plain = built({"use": "lstm"}, MIXTURE).initialise(0).eval()
    wanted, own = plain.logits(tokens)[0], model.logits(tokens)[0]
    with without(model):
        assert torch.equal(model.logits(tokens)[0], wanted)
        with without(model):
            assert torch.equal(model.logits(tokens)[0], wanted)
        assert torch.equal(model.logits(tokens)[0], wanted)
        assert has_adapters(model)
    assert torch.equal(model.logits(tokens)[0], own)
    assert not torch.allclose(own, wanted)


def test_adapters_are_back_after_an_error():
    model = tuned(built())
    with pytest.raises(ZeroDivisionError), without(model):
        raise ZeroDivisionError
    assert all(module.switch.on for module in model.modules() if hasattr(module, "switch"))


def test_a_model_that_has_none_says_so():
    model = built()
    assert not has_adapters(model)
    with pytest.raises(ValueError, match="the model has no adapters"), without(model):
        pass


def test_a_copy_has_a_switch_of_its_own(tokens):
    model = tuned(built()).eval()
    other = copy.deepcopy(model)
    wanted = model.logits(tokens)[0]
    with without(model):
        assert torch.equal(other.logits(tokens)[0], wanted)


@pytest.mark.parametrize("mode", ["none", "selective", "full"])
@pytest.mark.parametrize("on", [True, False])
def test_what_backward_does_anew_has_adapters_as_the_forward_had(tokens, mode, on):
    """Whether they are on or off by then."""
    model = tuned(built(tied_embedding=False))
    wanted = slopes(model, tokens, on, on)
    for block in model.backbone.layers:
        recompute(block, mode)
    found = slopes(model, tokens, on, not on)
    for name, slope in wanted.items():
        assert torch.equal(slope, found[name]), name


def slopes(model, tokens, forward, backward):
    """Of the base's parameters, with adapters on or off in each direction."""
    model.zero_grad()
    model.backbone.blocks[0].mixer.query.adapter.switch.on = forward
    loss = model.head(model.backbone(sequence(tokens)).y, tokens)[0]
    model.backbone.blocks[0].mixer.query.adapter.switch.on = backward
    loss.backward()
    model.backbone.blocks[0].mixer.query.adapter.switch.on = True
    return {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}


def test_dropout_is_on_what_enters_the_adapter_in_training_alone():
    layer = nn.ModuleDict({"only": Linear(64, 8)})
    Adapters(rank=2, scale=1.5, dropout=0.5, on=["only"]).add_to(layer)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    state, x = layer.state_dict(), torch.randn(3, 64)
    weight, down, up = (state[f"only.{name}weight"] for name in ("", "adapter.down.", "adapter.up."))
    torch.manual_seed(5)
    dropped = F.dropout(x, 0.5)
    torch.manual_seed(5)
    torch.testing.assert_close(layer["only"](x), x @ weight.t() + 1.5 * dropped @ down.t() @ up.t())
    layer.eval()
    torch.testing.assert_close(layer["only"](x), x @ (weight + 1.5 * up @ down).t())


def test_a_weight_that_is_read_is_added_up_in_its_own_type_under_autocast():
    layer = nn.ModuleDict({"only": Linear(64, 64)})
    Adapters(on=["only"]).add_to(layer)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    wanted = layer["only"].weight
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(layer["only"].weight, wanted)
        assert layer["only"](torch.randn(2, 64)).dtype == torch.bfloat16


def test_merged_weights_are_rounded_once_to_their_own_type():
    layer = nn.ModuleDict({"only": Linear(64, 64)}).bfloat16()
    Adapters(scale=0.3, on=["only"]).add_to(layer)
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    state = layer.state_dict()
    weight, down, up = (state[f"only.{name}weight"].double() for name in ("", "adapter.down.", "adapter.up."))
    assert torch.equal(merged(layer)["only.weight"], (weight + 0.3 * up @ down).bfloat16())


@pytest.mark.parametrize(
    ("kind", "name", "arguments"),
    [
        ("feed_forward", "gated_mlp", {"width": 12}),
        ("mixer", "attention", {"n_heads": 4, "n_kv_heads": 2}),
        ("mixer", "mamba2", {"head_width": 8, "state_size": 8}),
    ],
)
def test_the_work_of_adapters_is_declared(kind, name, arguments):
    """Against the products that a run makes."""
    subject = Candidate(find(name), kind, arguments).subject
    before = subject.module.flops(7, 7)
    filled(subject.root, rank=3, on=["*"])
    added = sum(parameter.numel() for parameter in adapter_parameters(subject.root).values())
    assert subject.module.flops(7, 7) == count(subject, 7, 7) == before + 2 * 7 * added


def test_experts_that_a_token_does_not_go_to_leave_their_adapters_idle():
    """Two of four: of work and parameters, an expert has 3 x (16 + 8) r numbers more, the router (16 + 4) r."""
    mixture = resolved(MIXTURE)(LayerContext(d_model=16, vocab_size=8, max_length=8))
    idle, work = mixture.experts.idle(), mixture.flops(1, 1)
    Adapters(rank=3, on=["*"]).add_to(mixture)
    assert mixture.experts.idle() - idle == 2 * 72 * 3
    assert mixture.flops(1, 1) - work == 2 * (2 * 72 * 3 + 20 * 3)


def test_what_a_router_learns_by_rule_follows_its_adapter():
    """A bias that evens out loads, of a router whose own weights are not trained."""
    mixture = resolved(MIXTURE)(LayerContext(d_model=16, vocab_size=8, max_length=8))
    init.initialise(mixture, seed=0)
    mixture.requires_grad_(False)
    router, uneven = mixture.router, {"load": torch.tensor([0.7, 0.1, 0.1, 0.1])}
    frozen = router.selection_bias.clone()
    router.after_step(uneven)
    assert torch.equal(router.selection_bias, frozen)
    for parameter in mixture.parameters():
        parameter.requires_grad_(True)
    Adapters(on=["router.*"]).add_to(mixture)
    router.scores._parameters["weight"].requires_grad_(False)
    with torch.no_grad():
        router.after_step(uneven)
    assert not torch.equal(router.selection_bias, frozen)


def test_graphs_are_no_more_than_without():
    """One for all lengths but the first, and one more where adapters are switched off."""
    from torch._dynamo.testing import CompileCounter

    counts = []
    for added in (False, True):
        subject = Candidate(find("gated_mlp"), "feed_forward", {"width": 12}).subject
        if added:
            filled(subject.root, on=["*"])
        torch._dynamo.reset()
        counter = CompileCounter()
        compiled = torch.compile(subject.module, backend=counter)
        for T in (5, 8, 13):
            batch = subject.batch(2, T)
            made = subject.sequence(batch)
            torch.testing.assert_close(compiled(batch.x, made).y, subject.run(batch).y)
        counts.append(counter.frame_count)
    with without(subject.root):
        torch.testing.assert_close(compiled(batch.x, made).y, subject.run(batch).y)
    assert counts[0] == counts[1] == counter.frame_count - 1
    torch._dynamo.reset()
