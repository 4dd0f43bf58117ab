"""The schema of `trainer:`: our own keys, and the signature of Lightning's Trainer, read without importing it."""

from __future__ import annotations

import ast
import datetime
import importlib.util
import typing
from collections.abc import Iterable
from functools import lru_cache
from pathlib import Path
from typing import Any

from bakeoff.errors import RecipeError
from bakeoff.recipe.signature import REQUIRED, Parameter, Signature

#: Arguments of Lightning's Trainer that the recipe decides elsewhere -> where.
DECIDED_ELSEWHERE = {
    "max_epochs": "a run is counted in steps: set trainer.max_steps",
    "min_epochs": "a run is counted in steps: set trainer.max_steps",
    "min_steps": "a run is as long as trainer.max_steps says",
    "accumulate_grad_batches": "it follows from data.batch_tokens and data.micro_batch",
    "val_check_interval": "set validation.every_steps, which counts optimizer steps",
    "check_val_every_n_epoch": "set validation.every_steps, which counts optimizer steps",
    "limit_val_batches": "set validation.tokens",
    "limit_train_batches": "set trainer.max_steps",
    "limit_test_batches": "there is no test loop; `bakeoff evaluate` measures",
    "limit_predict_batches": "there is no prediction loop; `bakeoff generate` writes text",
    "overfit_batches": "use a corpus with little text and a small trainer.max_steps",
    "fast_dev_run": "set trainer.max_steps to a few",
    "use_distributed_sampler": "samples are spread over ranks by data",
    "reload_dataloaders_every_n_epochs": "data is endless and never loaded anew",
    "enable_checkpointing": "set checkpoint.every_steps",
    "default_root_dir": "each run has its own folder: bakeoff fit --folder",
    "barebones": "the loop is kept light as it is",
}

#: What `trainer:` holds beside the arguments of Lightning's Trainer.
OWN = {
    "stateful": Parameter("stateful", bool, False),
    "recompute": Parameter("recompute", typing.Literal["none", "selective", "full"], "none"),
    "fp8": Parameter("fp8", bool, False),
}


class _Named(type):
    """The type of stand-ins for classes of Lightning: a class is one of them if a base of it bears the name."""

    def __subclasscheck__(cls, other: type) -> bool:
        return any(b.__name__ == cls.__name__ and b.__module__.startswith("lightning") for b in other.__mro__)


class _Names(dict[str, Any]):
    """Names of annotations; one that is not known is a class of Lightning."""

    def __missing__(self, name: str) -> Any:
        if name.startswith("__"):
            raise KeyError(name)
        self[name] = _Named(name, (), {"__module__": "lightning"})
        return self[name]


@lru_cache(maxsize=1)
def trainer_signature() -> Signature:
    """What `trainer:` may hold, with types and defaults; what is decided elsewhere is left out.

    Raises `RecipeError` if Lightning is not installed or its Trainer cannot be read.
    """
    root = _lightning()
    names = _Names({name: getattr(typing, name) for name in ("Any", "Literal", "Optional", "Union")})
    names |= {kind.__name__: kind for kind in (bool, int, float, str, list, dict)}
    names |= {"Iterable": Iterable, "timedelta": datetime.timedelta, "_LITERAL_WARN": typing.Literal["warn"]}
    names["_PATH"] = str
    for node in _parsed(root / "fabric/plugins/precision/precision.py").body:
        target = node.targets[0] if isinstance(node, ast.Assign) else None
        if isinstance(node, ast.Assign) and isinstance(target, ast.Name) and target.id.startswith("_PRECISION"):
            names[target.id] = _evaluated(node.value, names)
    found = {}
    arguments = _constructor(root / "pytorch/trainer/trainer.py", "Trainer")
    for argument, default in zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True):
        annotation = Any if argument.annotation is None else _evaluated(argument.annotation, names)
        value = REQUIRED if default is None else ast.literal_eval(default)
        found[argument.arg] = Parameter(argument.arg, annotation, value)
    return Signature({name: p for name, p in found.items() if name not in DECIDED_ELSEWHERE} | OWN)


def _lightning() -> Path:
    spec = importlib.util.find_spec("lightning")
    if spec is None or not spec.submodule_search_locations:
        raise RecipeError("trainer: lightning is not installed; install it with: pip install lightning")
    return Path(next(iter(spec.submodule_search_locations)))


def _parsed(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def _constructor(path: Path, name: str) -> ast.arguments:
    for node in _parsed(path).body:
        if isinstance(node, ast.ClassDef) and node.name == name:
            for inner in node.body:
                if isinstance(inner, ast.FunctionDef) and inner.name == "__init__":
                    return inner.args
    raise RecipeError(f"trainer: this release of lightning keeps no class {name} in {path}")


def _evaluated(node: ast.expr, names: _Names) -> Any:
    return eval(compile(ast.Expression(node), "annotation", "eval"), {"__builtins__": {}}, names)
