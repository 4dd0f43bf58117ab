"""Recipes of published families, made small: with weights of `transformers` they give its logits and gradients."""

import bakeoff
import pytest
import torch
from bakeoff.errors import UserError

from . import published

T = 13


@pytest.fixture(scope="module", params=published.FAMILIES)
def pair(request):
    """Family, converter, our model, and theirs with random weights, which ours holds."""
    family = published.FAMILIES[request.param]
    torch.manual_seed(0)  # their classes draw their first weights from it
    theirs = family.model(family.small).eval()
    generator = torch.Generator().manual_seed(5)
    with torch.no_grad():
        for name, parameter in theirs.named_parameters():
            fan_in = parameter.shape[0 if "c_" in name and family.recipe == "gpt2" else -1]
            scale = 0.3 if parameter.ndim == 1 else family.noise / fan_in**0.5
            parameter.add_(torch.randn(parameter.shape, generator=generator) * scale)
    changes = {"model.d_model": published.D, "model.depth": published.LAYERS, "model.vocab_size": published.V}
    recipe = bakeoff.recipe(published.MODELS / f"{request.param}.yaml", {**changes, **family.changes})
    model = recipe.build("model", vocab_size=published.V).eval()
    converter = recipe.build("converter")
    model.load_state_dict(converter.to_ours(family.names(theirs.state_dict()), model))
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
    for name, parameter in family.names(dict(theirs.named_parameters())).items():
        scale = float(parameter.grad.abs().max())
        torch.testing.assert_close(ours[name], parameter.grad, atol=2e-5 * max(scale, 1.0), rtol=1e-4, msg=name)


def test_there_and_back_is_exact(pair):
    family, converter, model, theirs = pair
    back = converter.to_theirs(model)
    for name, tensor in family.names(theirs.state_dict()).items():
        assert torch.equal(back[name], tensor), name


def test_a_missing_and_a_left_over_weight_are_named(pair):
    family, converter, model, theirs = pair
    weights = family.names(theirs.state_dict())
    tied = model.tied_embedding
    removed = next(name for name in weights if not (tied and ("embed" in name or "wte" in name)))
    fewer = {name: tensor for name, tensor in weights.items() if name != removed}
    with pytest.raises(UserError, match=removed.replace(".", r"\.")):
        converter.to_ours(fewer, model)
    with pytest.raises(UserError, match=r"extra\.weight"):
        converter.to_ours({**weights, "extra.weight": torch.zeros(1)}, model)
