"""Runs of several ranks that train some weights: the rest stay bit for bit, those are as one process trains them."""

import pytest
import torch
from bakeoff.recipe import recipe
from bakeoff.train import fit, load_run

from .launching import Ranks

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]
PART = ["backbone.blocks.1.mixer.*", "*_norm.weight"]


def is_part(name):
    return name.startswith("backbone.blocks.1.mixer.") or name.endswith("_norm.weight")


@pytest.fixture(scope="module")
def alone(made, tmp_path_factory):
    """Path of the recipe, the run of one process, and what it began with."""
    path = made()
    chosen = recipe(path, {"trained": PART})
    run = fit(chosen, folder=tmp_path_factory.mktemp("alone") / "run", progress=False)
    model = chosen.build("model", vocab_size=chosen.build("data").vocab_size)
    return path, run, model.initialise(chosen.seed_of("initialisation")).state_dict()


def check(run, one, begun, close):
    close(run, one)
    for name, tensor in run.model.state_dict().items():
        assert torch.equal(tensor, begun[name]) == (not is_part(name)), name


@pytest.mark.parametrize("sizes", [{"shard": 2}, {"tensor": 2}, {"shard": 2, "reshard": False}], ids=str)
def test_on_a_mesh(alone, on_mesh, close, sizes):
    path, one, begun = alone
    check(on_mesh(path, sizes, f"trained={PART}"), one, begun, close)


def test_of_whole_copies(alone, close, tmp_path):
    path, one, begun = alone
    words = ["fit", str(path), "trainer.devices=2", "trainer.strategy=ddp", f"trained={PART}"]
    ranks = Ranks(2, [*words, "--folder", str(tmp_path / "run")], tmp_path / "logs")
    assert set(ranks.wait()) == {0}, ranks.errors
    check(load_run(tmp_path / "run"), one, begun, close)
