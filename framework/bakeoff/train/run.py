"""A run that stands in a folder: `run = load_run(path); run.model; run.tokenizer`."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Items
from functools import cached_property
from pathlib import Path
from typing import Any

import torch

from bakeoff.data import Data
from bakeoff.errors import RegistryError, UserError
from bakeoff.interfaces.dialogue import Turn
from bakeoff.interfaces.template import Template
from bakeoff.interfaces.tokenizer import Tokenizer
from bakeoff.model import LanguageModel
from bakeoff.model.generate import generate
from bakeoff.model.looking import Lookup, reads_neighbours
from bakeoff.parts.files import expanded, file_hash, read_sealed
from bakeoff.parts.tensor_files import load_plain
from bakeoff.recipe import Recipe
from bakeoff.recipe import recipe as read_recipe_file
from bakeoff.recipe.building import factory
from bakeoff.recipe.node import short_name
from bakeoff.registry import entry, find
from bakeoff.train.curve import Curve, Row, read_curve
from bakeoff.train.folder import RunFolder
from bakeoff.train.layers import Layers
from bakeoff.train.means import Means
from bakeoff.train.records import check_files, read_recipe, recorded
from bakeoff.train.saving import damage, load_checkpoint, steps

#: Foreign classes that a recipe's model may name without `trust`.
HARMLESS = ("torch.nn.",)


class Run:
    """A trained model with its tokenizer, recipe and numbers.

    Attributes
    ----------
    folder : where it stands.
    model : in evaluation mode.
    metrics : the numbers of its end: loss, bits_per_byte, steps, tokens, seconds, flops, parameters, …
    """

    def __init__(
        self, folder: Path, recipe: Recipe, model: LanguageModel, tokenizer: Tokenizer, metrics: dict[str, Any]
    ):
        self.folder, self.recipe, self.metrics = folder, recipe, metrics
        self.model, self.tokenizer = model.eval(), tokenizer

    @property
    def curve(self) -> list[Row]:
        """The rows of the learning curve: step, tokens, flops, seconds, loss, lr, grad_norm, bits_per_byte, …"""
        return read_curve(RunFolder(self.folder).curve)

    @property
    def layers(self) -> list[dict[str, Any]]:
        """What the layers told of themselves at the steps of the curve: step, layer, name, index, value."""
        return Layers(RunFolder(self.folder).layers).read()

    @property
    def means(self) -> list[dict[str, Any]]:
        """What the objective told beside its loss at the steps of the curve: step, name, value."""
        return Means(RunFolder(self.folder).means).read()

    @cached_property
    def data(self) -> Data:
        """The run's data, prepared when first asked for."""
        return self.recipe.build("data").prepare(progress=False)

    @cached_property
    def lookup(self) -> Lookup | None:
        """What the recipe retrieves from, where a part of the model reads it; opened, or made, when first asked for."""
        if self.recipe.tree["data"].get("retrieval") is None or not reads_neighbours(self.model):
            return None
        try:
            return self.data.lookup()
        except UserError as error:
            raise UserError(
                f"what the model of {self.folder} looks things up in cannot be opened: {error}; to generate without "
                "it, pass lookup=None (--no-lookup)"
            ) from error

    def generate(self, prompts: Any, **options: Any) -> list[str]:
        """New text for each prompt, by the recipe's sampler and `lookup` unless others are given.

        See `bakeoff.model.generate`.
        """
        if "lookup" not in options:
            options["lookup"] = self.lookup
        options.setdefault("sampler", self.recipe.build("sampler"))
        options.setdefault("seed", self.recipe.seed_of("sampling"))
        return generate(self.model, self.tokenizer, prompts, **options)

    def answer(self, questions: Iterable[str | Items[Turn]], **options: Any) -> list[str]:
        """What the model answers to each question, or to a conversation so far, under the template of the run's data.

        Options as in `generate`; `UserError` where the data have no template.
        """
        node = self.recipe.tree["data"].get("template")
        if node is None:
            raise UserError(f"{self.folder} was trained without data.template: prompt it with text (generate)")
        template: Template = factory(node, "template")
        turns = [[Turn("user", each)] if isinstance(each, str) else each for each in questions]
        return self.generate([template.prompt(each, self.tokenizer) for each in turns], **options)

    def __repr__(self) -> str:
        return f"Run({str(self.folder)!r})"


def load_run(path: Path | str, *, trust: bool = False, device: torch.device | str = "cpu") -> Run:
    """The run in a folder; its final weights, or those of its newest checkpoint while it is unfinished.

    Nothing that the run carries is executed: weights are read as plain tensors, and only parts of installed packages
    are built. A run whose recipe imports scripts, or names classes that no package registers, opens only with
    `trust=True`.

    Raises `UserError` naming the file and the fault if the folder is damaged, or the package that is missing.
    """
    place = RunFolder(expanded(path))
    if not place.path.is_dir():
        raise UserError(f"{place.path} is no run: there is no such folder")
    values = read_recipe(place)
    if not trust:
        refuse_untrusted(place)
    meta = read_sealed(place.meta)
    _check_installed(meta)
    check_files(place, meta["files"], recorded(place))
    tokenizer = _tokenizer(values, place)
    recipe = read_recipe_file(place.recipe)
    model = _reduced(recipe).build("model", vocab_size=tokenizer.vocab_size, max_length=meta["max_length"])
    metrics = read_sealed(place.summary) if place.summary.exists() else {}
    _fill(model, place, metrics.pop("files", None), meta.get("id"))
    return Run(place.path, recipe, model.to(device), tokenizer, metrics)


def _reduced(recipe: Recipe) -> Recipe:
    """The recipe without what only training needs, whose packages may be missing here."""
    plain = {"trainer": {}, "optimizer": {"use": "torch.optim.AdamW", "lr": 1e-3}, "schedule": {"use": "constant"}}
    return recipe.override(plain)


def refuse_untrusted(place: RunFolder) -> None:
    """Raise `UserError` if building what the run's recipe names would execute more than installed parts."""
    values = read_recipe(place)
    scripts = [item["path"] if isinstance(item, Mapping) else str(item) for item in values.get("imports") or []]
    foreign = sorted(set(_foreign({key: values.get(key) for key in ("model", "data", "objective", "sampler")})))
    what = [f"runs the script {script}" for script in scripts] + [f"imports {name}" for name in foreign]
    if what:
        raise UserError(
            f"opening {place.path} {', '.join(what)}: code that no installed package of parts registers. "
            "Read it, and if you trust it pass trust=True (--trust)"
        )


def _foreign(value: Any) -> Iterable[str]:
    """Class paths in a saved recipe that belong to no registered component."""
    if isinstance(value, list):
        for item in value:
            yield from _foreign(item)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            if key in ("class_path", "use") and isinstance(item, str) and "." in short_name(item):
                if not item.startswith(HARMLESS):
                    yield item
            else:
                yield from _foreign(item)


def _check_installed(meta: Mapping[str, Any]) -> None:
    missing = {}
    for name, owner in meta["components"].items():
        try:
            entry(name)
        except RegistryError:
            if not owner["package"].startswith("script "):
                missing[owner["package"]] = (name, owner["version"])
    if missing:
        parts = ", ".join(f"{name} of package {package} {version}" for package, (name, version) in missing.items())
        lines = " ".join(f"{package}=={version}" for package, (_, version) in missing.items())
        raise UserError(f"this run needs {parts}, which is not installed: pip install {lines}")


def _tokenizer(values: Mapping[str, Any], place: RunFolder) -> Tokenizer:
    node = values["data"]["tokenizer"]
    try:
        return find(short_name(node.get("class_path") or node["use"]), "tokenizer").load(place.tokenizer)  # type: ignore[attr-defined]
    except UserError:
        raise
    except Exception as error:
        raise UserError(f"{place.tokenizer} is damaged: {type(error).__name__}: {error}") from error


def _fill(model: LanguageModel, place: RunFolder, hashes: Mapping[str, str] | None, identity: str | None) -> None:
    """Load the weights, exactly: those that the summary's hashes speak of, else those of the newest checkpoint."""
    if hashes is not None:
        path, state = place.weights, load_plain(place.weights)
        check_files(place, hashes, {name: file_hash(place.path / name) for name in hashes})
    else:
        sound = [path for _, path in steps(place.checkpoints) if damage(path) is None]
        if not sound:
            raise UserError(f"{place.path} has no weights yet: neither {place.summary.name} nor a sound checkpoint")
        path, held = sound[-1], load_checkpoint(sound[-1], identity)
        for kept in held["callbacks"].values():
            Curve(place.curve).check(kept.get("curve"))
            Layers(place.layers).check(kept.get("layers"))
            Means(place.means).check(kept.get("means"))
        whole = held["state_dict"]
        state = {name.removeprefix("model."): v for name, v in whole.items() if name.startswith("model.")}
    try:
        model.load_state_dict(state, strict=True)
    except (RuntimeError, TypeError, AttributeError) as error:
        raise UserError(f"{path} does not fit the run's recipe: {' '.join(str(error).split())[:400]}") from error
