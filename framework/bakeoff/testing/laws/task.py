"""Tasks: figures as declared, the same for the same seed, and a model that is left as it was."""

from __future__ import annotations

import json
import math
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from bakeoff.evaluate import Measured
from bakeoff.evaluate.asking import Asked
from bakeoff.interfaces.task import Answer
from bakeoff.recipe import recipe
from bakeoff.testing.candidate import Candidate
from bakeoff.testing.law import Broken, law

_BETTER, _UNITS = ("more", "less", None), ("share", "bytes", "index", "")


@law(None, "answer", "task")
def answer(candidate: Candidate) -> None:
    """Finite figures, all declared, one to judge by at least; data that JSON keeps as they are; equal seeds, equal
    answers; the model stays as it is."""
    with tempfile.TemporaryDirectory() as folder:
        task = candidate.build()
        measured = _measured(Path(folder), candidate.seed, task.example_model)
        _declared(task)
        asked = Asked("task", task.measure, "task", task.figures)
        before = {name: value.clone() for name, value in measured.model.state_dict().items()}
        measured.model.train()
        drawn = torch.get_rng_state()
        first = asked.answer(measured)
        _figures(task, first)
        _data(first)
        if not measured.model.training or not torch.equal(torch.get_rng_state(), drawn):
            raise Broken("measure changes the model's mode, or draws from the random numbers of others")
        moved = [k for k, v in measured.model.state_dict().items() if not torch.equal(v, before[k])]
        if moved or any(parameter.grad is not None for parameter in measured.model.parameters()):
            raise Broken(f"measure changes the model: {moved[0] if moved else 'it leaves gradients'}")
        again = Asked("task", candidate.build().measure, "task", task.figures).answer(measured)
        if again != first:
            raise Broken(f"asked again with the same seed, it answers {again.figures}, not {first.figures}")


def _declared(task: Any) -> None:
    if not task.figures:
        raise Broken("`figures` names no figure")
    for name, figure in task.figures.items():
        if figure.better not in _BETTER or figure.unit not in _UNITS:
            raise Broken(f"figure '{name}' is {figure}; better is one of {_BETTER}, unit one of {_UNITS}")
        if figure.against is not None and figure.against not in task.figures:
            raise Broken(f"figure '{name}' is drawn against '{figure.against}', which is no figure of the task")


def _figures(task: Any, found: Answer) -> None:
    for label, value in found.figures.items():
        name = label.removeprefix("task.")
        if name not in task.figures:
            raise Broken(f"`figures` does not declare '{name}'")
        if not math.isfinite(value):
            raise Broken(f"figure '{name}' is {value}")
        if task.figures[name].unit == "share" and not 0 <= value <= 1:
            raise Broken(f"figure '{name}' is a share, but is {value}")
    if not any(task.figures[label.removeprefix("task.")].better for label in found.figures):
        raise Broken("no figure by which arms are judged (with `better`) is given")


def _data(found: Answer) -> None:
    try:
        kept = json.loads(json.dumps(found.data, allow_nan=False))
    except (TypeError, ValueError) as error:
        raise Broken(f"data cannot be kept as JSON: {error}") from error
    if kept != found.data:
        raise Broken("data come back otherwise from JSON: give lists for tuples, and text as keys")


def _measured(folder: Path, seed: int, changes: Mapping[str, Any]) -> Measured:
    """A model of a few hundred parameters, untrained, on generated reviews; changed as the task asks."""
    block = {"use": "pre_norm", "mixer": {"use": "attention", "n_heads": 2}, "feed_forward": {"use": "mlp"}}
    made = recipe(
        {
            "model": {"d_model": 16, "depth": 1, "pattern": ["layer"], "blocks": {"layer": block}},
            "data": {
                "corpus": {"use": "reviews", "texts": 200},
                "tokenizer": {"use": "byte"},
                "length": 64,
                "batch_tokens": 256,
                "cache": str(folder),
            },
            "trainer": {"max_steps": 1},
            "seed": seed,
        },
        dict(changes),
    )
    data = made.build("data").prepare(progress=False)
    model = made.build("model", vocab_size=data.vocab_size).initialise(made.seed_of("initialisation"))
    return Measured.of(model, data, made)
