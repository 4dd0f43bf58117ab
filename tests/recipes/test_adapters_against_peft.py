"""Adapters on a Llama, as `peft` has them on that of `transformers`: the same numbers, and the same merged weights."""

import bakeoff
import pytest
import torch
from bakeoff.parts.adapters import adapter_parameters, merged, without

from . import published

peft = pytest.importorskip("peft", reason="oracle: pip install peft")
T, RANK, ALPHA = 13, 4, 12
SMALL = {"model.d_model": published.D, "model.depth": published.LAYERS, "model.vocab_size": published.V}
#: Their layers and ours.
LAYERS = {
    "self_attn.q_proj": "mixer.query",
    "self_attn.k_proj": "mixer.key",
    "self_attn.v_proj": "mixer.value",
    "self_attn.o_proj": "mixer.output",
    "mlp.gate_proj": "feed_forward.gate",
    "mlp.up_proj": "feed_forward.up",
    "mlp.down_proj": "feed_forward.down",
}


@pytest.fixture(scope="module")
def pair():
    """Converter, our model without adapters, ours with them, and theirs with adapters of the same random values."""
    torch.manual_seed(0)
    family = published.FAMILIES["llama3_8b"]
    theirs = family.model(family.small).eval()
    section = {"rank": RANK, "scale": ALPHA / RANK}
    recipe = bakeoff.recipe(published.MODELS / "llama3_8b.yaml", {**SMALL, **family.changes, "adapters": section})
    model, converter = recipe.build("model", vocab_size=published.V).eval(), recipe.build("converter")
    plain = recipe.override({"adapters": None}).build("model", vocab_size=published.V)
    held = converter.to_ours(family.names(theirs, theirs.state_dict()), plain)
    config = peft.LoraConfig(r=RANK, lora_alpha=ALPHA, target_modules=[name.split(".")[-1] for name in LAYERS])
    theirs = peft.get_peft_model(theirs, config, autocast_adapter_dtype=False).eval()
    for name, parameter in theirs.named_parameters():
        if "lora" in name:
            torch.nn.init.normal_(parameter, std=0.3)
    with torch.no_grad():
        model.load_state_dict({**model.state_dict(), **held})
        for name, parameter in adapter_parameters(model).items():
            parameter.copy_(theirs.get_parameter(their(name)))
    return converter, plain, model, theirs


def their(name):
    """`backbone.blocks.0.mixer.query.adapter.up.weight` as peft calls it."""
    _, _, layer, path = name.split(".", 3)
    path, _, factor = path.partition(".adapter.")
    (layers,) = [theirs for theirs, ours in LAYERS.items() if ours == path]
    kind = {"down.weight": "lora_A", "up.weight": "lora_B"}[factor]
    return f"base_model.model.model.layers.{layer}.{layers}.{kind}.default.weight"


@pytest.fixture
def tokens():
    return torch.randint(published.V, (2, T), generator=torch.Generator().manual_seed(1))


def close(actual, expected):
    """As far as `test_published_outputs` holds the two libraries together without adapters."""
    torch.testing.assert_close(actual, expected, atol=2e-5 * max(float(expected.abs().max()), 1.0), rtol=1e-4)


def test_logits_with_adapters_and_without(pair, tokens):
    *_, model, theirs = pair
    with torch.no_grad():
        expected = theirs(tokens, use_cache=False).logits
        close(model.logits(tokens)[0], expected)
        with without(model), theirs.disable_adapter():
            base = theirs(tokens, use_cache=False).logits
            close(model.logits(tokens)[0], base)
    assert (expected - base).abs().max() > 0.1


def test_gradients_of_adapters_which_alone_are_trained(pair, tokens):
    *_, model, theirs = pair
    weights = torch.randn(2, T, published.V, generator=torch.Generator().manual_seed(2))
    (theirs(tokens, use_cache=False).logits * weights).sum().backward()
    (model.logits(tokens)[0] * weights).sum().backward()
    trained = {name: parameter for name, parameter in model.named_parameters() if parameter.requires_grad}
    assert {their(name) for name in trained} == {n for n, p in theirs.named_parameters() if p.requires_grad}
    for name, parameter in trained.items():
        close(parameter.grad, theirs.get_parameter(their(name)).grad)


def test_merged_weights(pair):
    """Last, since peft merges in place."""
    converter, plain, model, theirs = pair
    plain.load_state_dict(merged(model))
    ours = converter.to_theirs(plain)
    for name, tensor in theirs.merge_and_unload().state_dict().items():
        torch.testing.assert_close(ours[name], tensor)
