"""S4 and S4D as mixers: initialisation, roles, state, sizes, and a published shape."""

from pathlib import Path

import bakeoff
import pytest
import torch
from bakeoff.interfaces import LayerContext, Sequence
from bakeoff.interfaces.init import initialise, roles
from bakeoff.interfaces.state import nbytes
from bakeoff_ssm import S4, S4D
from bakeoff_ssm.hippo import DIAGONALS, legs_low_rank
from torch import nn

RECIPES = Path(__file__).parents[3] / "recipes" / "models"


def context(d_model=12):
    return LayerContext(d_model=d_model, vocab_size=50, max_length=128)


def run(mixer, x, state=None):
    return mixer(x, Sequence(torch.zeros(x.shape[:2], dtype=torch.long)), state)


def test_initial_rates_and_steps_survive_a_whole_model():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.layers = nn.ModuleList([S4(context(256)), S4D(context(256)), S4(context(256), form="diagonal")])
            self.readout = nn.Linear(256, 5)

    with torch.device("meta"):
        model = Model()
    model.to_empty(device="cpu")
    initialise(model, seed=3, depth=2)
    low_rank, lin, legs = (layer.system for layer in model.layers)
    for system, name in ((low_rank, "legs"), (lin, "lin"), (legs, "legs")):
        steps = system.log_dt.double().exp()
        assert ((steps >= 1e-3 * (1 - 1e-5)) & (steps <= 0.1 * (1 + 1e-5))).all()
        assert steps.log10().mean().item() == pytest.approx(-2, abs=0.1)
        assert system.C.pow(2).sum(-1).mean().item() == pytest.approx(1, rel=0.1)
        rates = DIAGONALS[name](64)
        torch.testing.assert_close(-system.log_decay.detach().exp(), rates.real.float().expand(256, -1))
        torch.testing.assert_close(system.frequency.detach(), rates.imag.float().expand(256, -1))
    _, P, B = legs_low_rank(64)
    for parameter, value in ((low_rank.P, P), (low_rank.B, B)):
        torch.testing.assert_close(parameter.detach(), torch.view_as_real(value).float().expand(256, -1, -1))
    assert all((layer.D == 1).all() for layer in model.layers)


@pytest.mark.parametrize("cls", [S4, S4D])
def test_only_the_mixing_of_channels_decays(cls):
    mixer = cls(context())
    found = roles(mixer)
    assert {name for name, role in found.items() if role != "vector"} == {"output.weight", "gate.weight"}
    assert found["output.weight"] == "output"


@pytest.mark.parametrize("cls", [S4, S4D])
def test_state_bytes_do_not_grow_and_the_state_stays_float32(cls):
    mixer = cls(context(), state_size=8)
    initialise(mixer, seed=0)
    mixer = mixer.to(torch.bfloat16)
    state = mixer.empty_state(2, 1000, torch.bfloat16)
    assert nbytes(state) == 2 * 12 * 8 * 4
    y, after = run(mixer, torch.randn(2, 20, 12, dtype=torch.bfloat16), state)[:2]
    assert y.dtype == torch.bfloat16
    assert after.s.dtype == torch.float32
    assert nbytes(after) == nbytes(state)


@pytest.mark.parametrize("cls", [S4, S4D])
def test_transforms_equal_chunks_in_float32(cls):
    mixer, x = cls(context()), torch.randn(2, 300, 12)
    initialise(mixer, seed=0)
    whole, chunks = run(mixer, x).y, run(mixer, x, mixer.empty_state(2, 300)).y
    torch.testing.assert_close(whole, chunks, atol=2e-5, rtol=1e-4)


def test_the_language_model_of_wikitext_103_has_249_million_parameters():
    """The published one has adaptive embeddings (widths 1024, 256, 64, 16; the same for input and output)."""
    recipe = bakeoff.recipe(RECIPES / "s4_wikitext103.yaml")
    with torch.device("meta"):
        model = recipe.build("model", vocab_size=1)
    shared = sum(p.numel() for p in model.parameters()) - model.backbone.embedding.numel()
    words = {1024: 20_000, 256: 20_000, 64: 160_000, 16: 67_735}
    adaptive = sum(width * count + width * 1024 for width, count in words.items())
    assert shared + adaptive == pytest.approx(249e6, abs=1e6)


@pytest.mark.parametrize("cls", [S4, S4D])
def test_no_tokens_leave_the_state_as_it_is(cls):
    mixer = cls(context(), state_size=8)
    initialise(mixer, seed=0)
    state = run(mixer, torch.randn(2, 5, 12), mixer.empty_state(2, 9)).state
    y, after = run(mixer, torch.randn(2, 0, 12), state)[:2]
    assert y.shape == run(mixer, torch.randn(2, 0, 12)).y.shape == (2, 0, 12)
    assert torch.equal(after.s, state.s)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: S4(context(), state_size=7), "state_size is 7"),
        (lambda: S4D(context(), state_size=0), "state_size is 0"),
        (lambda: S4(context(), form="dense"), "form is 'dense'"),
        (lambda: S4D(context(), initial="zero"), "initial is 'zero'"),
        (lambda: S4D(context(), dt_min=0.2, dt_max=0.1), "dt from 0.2 to 0.1"),
    ],
)
def test_sizes_that_do_not_fit_are_refused(build, message):
    with pytest.raises(ValueError, match=message):
        build()
