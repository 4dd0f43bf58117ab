"""Every model that is shipped trains, continues and opens again."""

from pathlib import Path

import bakeoff
import pytest
import torch
from bakeoff.train import fit, load_run

MODELS = sorted((Path(__file__).parents[2] / "recipes" / "models").glob("*.yaml"))


@pytest.mark.parametrize("path", MODELS, ids=lambda path: path.stem)
def test_a_shipped_model_trains_and_opens_with_plain_values(path, texts, tmp_path):
    changes = {
        "data.corpus": {"use": "text_files", "path": str(texts)},
        "data.tokenizer": {"use": "byte"},
        "data.length": 16,
        "data.batch_tokens": 32,
        "schedule": {"use": "cosine", "warmup": 1},
        "trainer.max_steps": 2,
        "validation": {"every_steps": None, "tokens": 32},
    }
    run = fit(bakeoff.recipe(path, changes), folder=tmp_path, progress=False)
    kept = torch.load(tmp_path / "checkpoints" / "step-2.ckpt", weights_only=True)
    assert kept["global_step"] == 2
    tokens = torch.arange(16)[None]
    with torch.no_grad():
        assert torch.equal(load_run(tmp_path).model.logits(tokens)[0], run.model.logits(tokens)[0])
    assert run.curve[-1]["flops"] > 0
