"""Adapters where ranks share out what they stand beside: as one process trains them, and the rest stays."""

from pathlib import Path

import pytest
import torch
from bakeoff.cli.main import main
from bakeoff.parts.adapters import adapter_parameters
from bakeoff.recipe import recipe
from bakeoff.testing.ranks import shared_ranks
from bakeoff.train import fit, load_run

from .launching import Ranks

CASES = Path(__file__).with_name("cases_of_adapters.py")
#: Cut by what comes out, by what is summed over, by heads that are stacked, inside experts; read and called.
PARTS = {
    "attention": ("mixer", {"n_heads": 4, "n_kv_heads": 2}),
    "latent_attention": ("mixer", {"n_heads": 4, "head_width": 4, "rotary_width": 2, "latent_width": 6}),
    "mamba2": ("mixer", {"head_width": 4, "state_size": 8, "chunk": 4}),
    "slstm": ("mixer", {"n_heads": 2, "width": 12}),
    "gated_mlp": ("feed_forward", {"width": 16}),
    "mixture_of_experts": ("feed_forward", {"n_experts": 4, "expert": {"use": "mlp", "width": 16, "bias": True}}),
}
ADAPTERS = "adapters={rank: 3}"
EXPERTS = {
    "use": "mixture_of_experts",
    "n_experts": 4,
    "expert": {"use": "gated_mlp", "width": 16},
    "router": {"use": "top_k", "k": 2},
}


@pytest.mark.parametrize("component", PARTS)
def test_a_share_with_adapters_computes_and_learns_as_the_whole(component):
    kind, arguments = PARTS[component]
    shared_ranks(2).run(CASES, "share_equals_whole", component=component, kind=kind, arguments=arguments)


@pytest.mark.parametrize(("sizes", "word"), [({"tensor": 2}, "tensor"), ({"context": 2}, "context")], ids=str)
def test_dropout_of_a_share_is_refused_before_the_run(made, sizes, word, capsys, tmp_path):
    strategy = f"trainer.strategy={{use: mesh, {word}: 2}}"
    words = [str(made()), "trainer.devices=2", strategy, "adapters={dropout: 0.1}", "data.isolate_documents=false"]
    assert main(["fit", *words, "--folder", str(tmp_path / "run")]) == 2
    assert f"adapters.dropout is 0.1, and a mesh with {word} over 1" in capsys.readouterr().err


@pytest.fixture(scope="module")
def alone(made, tmp_path_factory):
    """`alone(feed_forward)`: path of the recipe, the run that it begins from, and the run of one process."""
    known = {}

    def make(name, feed_forward=None):
        if name not in known:
            path, folder = made(feed_forward), tmp_path_factory.mktemp(name)
            source = fit(recipe(path, {"seed": 7, "trainer.max_steps": 2}), folder=folder / "source", progress=False)
            changes = {"adapters": {"rank": 3}, "weights": str(source.folder)}
            known[name] = path, source, fit(recipe(path, changes), folder=folder / "one", progress=False)
        return known[name]

    return make


def check(run, one, source, close):
    close(run, one)
    for name, tensor in source.model.state_dict().items():
        assert torch.equal(run.model.state_dict()[name], tensor), name
    assert all(float(p.detach().abs().max()) > 0 for p in adapter_parameters(run.model).values())


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("sizes", [{"shard": 2}, {"tensor": 2}, {"shard": 2, "reshard": False}], ids=str)
def test_a_mesh_begins_from_a_run_and_trains_adapters(alone, on_mesh, close, sizes):
    path, source, one = alone("dense")
    check(on_mesh(path, sizes, ADAPTERS, f"weights={source.folder}"), one, source, close)


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("sizes", [{"expert": 2}, {"tensor": 2}], ids=str)
def test_experts_that_ranks_share_out_keep_their_adapters(alone, on_mesh, close, sizes):
    path, source, one = alone("experts", EXPERTS)
    check(on_mesh(path, sizes, ADAPTERS, f"weights={source.folder}"), one, source, close)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_whole_copies_train_adapters(alone, close, tmp_path):
    path, source, one = alone("dense")
    words = ["fit", str(path), "trainer.devices=2", "trainer.strategy=ddp", ADAPTERS, f"weights={source.folder}"]
    ranks = Ranks(2, [*words, "--folder", str(tmp_path / "run")], tmp_path / "logs")
    assert set(ranks.wait()) == {0}, ranks.errors
    check(load_run(tmp_path / "run"), one, source, close)
