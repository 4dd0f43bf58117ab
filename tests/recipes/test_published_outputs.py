"""Recipes of published families, made small: with weights of `transformers` they give its logits and gradients."""

import bakeoff
import pytest
import torch
from bakeoff.errors import UserError
from safetensors.torch import load_file

from . import published

T = 13
SMALL = {"model.d_model": published.D, "model.depth": published.LAYERS, "model.vocab_size": published.V}


@pytest.fixture(scope="module", params=published.FAMILIES)
def pair(request):
    """Family, converter, our model, and theirs with random weights, which ours holds."""
    family = published.FAMILIES[request.param]
    torch.manual_seed(0)  # their classes draw their first weights from it
    theirs = family.model(family.small).eval()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, tensor in theirs.state_dict().items():
            fan_in = tensor.shape[0 if "c_" in name and family.recipe == "gpt2" else -1]
            scale = 0.3 if tensor.ndim == 1 else family.noise / fan_in**0.5
            tensor.add_(torch.randn(tensor.shape, generator=generator) * scale)
    recipe = bakeoff.recipe(published.MODELS / f"{request.param}.yaml", {**SMALL, **family.changes})
    model = recipe.build("model", vocab_size=published.V).eval()
    converter = recipe.build("converter")
    model.load_state_dict(converter.to_ours(family.names(theirs, theirs.state_dict()), model))
    return family, converter, model, theirs


@pytest.fixture
def tokens():
    return torch.randint(published.V, (2, T), generator=torch.Generator().manual_seed(1))


def close(actual, expected):
    torch.testing.assert_close(actual, expected, atol=2e-5, rtol=1e-4)


def test_logits(pair, tokens):
    *_, model, theirs = pair
    with torch.no_grad():
        expected = theirs(tokens, use_cache=False).logits
        assert expected.std() > 0.1
        close(model.logits(tokens)[0], expected)


def test_logits_token_by_token(pair, tokens):
    *_, model, theirs = pair
    with torch.no_grad():
        expected = theirs(tokens, use_cache=False).logits
        state, steps = model.empty_state(2, T), []
        for length in [4, *[1] * (T - 4)]:
            given = tokens[:, sum(s.shape[1] for s in steps) :][:, :length]
            logits, state = model.logits(given, state)
            steps.append(logits)
        close(torch.cat(steps, 1), expected)


def test_gradients(pair, tokens):
    """All of them: gradients stand in the place of weights, and the converter brings them to their names."""
    family, converter, model, theirs = pair
    weights = torch.randn(2, T, published.V, generator=torch.Generator().manual_seed(2))
    for each in (model, theirs):
        each.zero_grad()
    (theirs(tokens, use_cache=False).logits * weights).sum().backward()
    (model.logits(tokens)[0] * weights).sum().backward()
    kept = {name: parameter.detach().clone() for name, parameter in model.named_parameters()}
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(parameter.grad)
    ours = {name: tensor.clone() for name, tensor in converter.to_theirs(model).items()}
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(kept[name])
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    for name, gradient in family.names(theirs, gradients).items():
        scale = float(gradient.abs().max())
        torch.testing.assert_close(ours[name], gradient, atol=2e-5 * max(scale, 1.0), rtol=1e-4, msg=name)


def test_there_and_back_is_exact(pair):
    family, converter, model, theirs = pair
    back = converter.to_theirs(model)
    for name, tensor in family.names(theirs, theirs.state_dict()).items():
        assert torch.equal(back[name], tensor), name


def test_a_missing_and_a_left_over_weight_are_named(pair):
    family, converter, model, theirs = pair
    weights = family.names(theirs, theirs.state_dict())
    removed = next(name for name in weights if not any(word in name for word in ("embed", "wte", "head")))
    fewer = {name: tensor for name, tensor in weights.items() if name != removed}
    with pytest.raises(UserError, match=removed.replace(".", r"\.")):
        converter.to_ours(fewer, model)
    with pytest.raises(UserError, match=r"extra\.weight"):
        converter.to_ours({**weights, "extra.weight": torch.zeros(1)}, model)


@pytest.mark.parametrize("name", ["mixtral_8x7b", "olmoe_1b_7b", "qwen3_30b_a3b"])
def test_files_that_hold_each_expert_apart_are_read(name, tmp_path):
    family = published.FAMILIES[name]
    theirs = family.model(family.small)
    theirs.save_pretrained(tmp_path)
    files = load_file(tmp_path / "model.safetensors")
    assert sum(".experts.3." in name for name in files) == 3 * published.LAYERS
    recipe = bakeoff.recipe(published.MODELS / f"{name}.yaml", {**SMALL, **family.changes})
    model = recipe.build("model", vocab_size=published.V)
    ours = recipe.build("converter").to_ours(files, model)
    held = {key: tensor for key, tensor in theirs.state_dict().items() if key.endswith("experts.gate_up_proj")}
    for key, tensor in held.items():
        layer = f"backbone.blocks.{key.split('.')[2]}.feed_forward.experts"
        both = torch.cat([ours[f"{layer}.gate.weight"], ours[f"{layer}.up.weight"]], 1)
        assert torch.equal(both, tensor)
        assert torch.equal(ours[f"{layer}.down.weight"], theirs.state_dict()[key.replace("gate_up", "down")])
