"""Every model that is shipped is checked as it stands; made small, it trains, continues and opens again."""

import bakeoff
import pytest
import torch
from bakeoff.train import fit, load_run

from . import published

MODELS = sorted(published.MODELS.glob("*.yaml"))
TEXT = "A rose is a rose is a rose. " * 40


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_a_shipped_model_meets_its_own_demands(path):
    model = bakeoff.recipe(path).demands()
    assert next(model.parameters()).is_meta


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_a_shipped_model_trains_and_opens_with_plain_values(path, tmp_path):
    (tmp_path / "text.txt").write_text(TEXT)
    changes = {
        "data.corpus": {"use": "text_files", "path": str(tmp_path / "text.txt")},
        "data.tokenizer": {"use": "byte"},
        "data.length": 16,
        "data.batch_tokens": 32,
        "data.micro_batch": None,
        "data.cache": str(tmp_path / "cache"),
        "schedule": {"use": "cosine", "warmup": 1},
        "trainer.max_steps": 2,
        "validation": {"every_steps": None, "tokens": 32},
        **made_small(path.stem),
    }
    if bakeoff.recipe(path).tree["data"].get("retrieval"):
        (tmp_path / "other.txt").write_text("A rose is a flower. " * 40)
        changes["data.retrieval.chunk"] = 4
        changes["data.retrieval.corpus"] = {"use": "text_files", "path": str(tmp_path / "other.txt")}
    run = fit(bakeoff.recipe(path, changes), folder=tmp_path / "run", progress=False)
    kept = torch.load(tmp_path / "run" / "checkpoints" / "step-2.ckpt", weights_only=True)
    assert kept["global_step"] == 2
    tokens = torch.arange(16)[None]
    with torch.no_grad():
        assert torch.equal(load_run(tmp_path / "run").model.logits(tokens)[0], run.model.logits(tokens)[0])
    assert run.curve[-1]["flops"] > 0


def made_small(name):
    """Overrides for a recipe at a published shape; none for one that is small already."""
    of = published.SIZES.get(name, (name, {}))[0]
    known = {**{name: family.changes for name, family in published.FAMILIES.items()}, **published.SHAPES}
    if of not in known:
        return {}
    shape = {"model.d_model": published.D, "model.depth": published.LAYERS, "model.vocab_size": None}
    return {**shape, **known[of]}
