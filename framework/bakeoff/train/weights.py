"""Training that begins from the weights of a finished run, in the place of drawn values."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from bakeoff.data.preparing import hash_folder
from bakeoff.errors import UserError
from bakeoff.interfaces.tokenizer import Tokenizer
from bakeoff.parts.adapters import adapter_parameters
from bakeoff.parts.files import expanded, file_hash, read_sealed
from bakeoff.parts.tensor_files import load_plain
from bakeoff.parts.weights import disagreements
from bakeoff.recipe import Recipe
from bakeoff.recipe.node import shorten
from bakeoff.train.folder import RunFolder
from bakeoff.train.records import check_files, read_recipe
from bakeoff.train.resume import differences

if TYPE_CHECKING:
    from torch import Tensor

    from bakeoff.train.assembly import Assembly


class Source:
    """A finished run that another one begins from.

    Attributes
    ----------
    place : its folder. identity : the word that no other run has, None where it was given none.
    digest : SHA-256 of its weights file.

    Raises `UserError` where the folder holds no finished run; `said` stands before each message, and `made_by` is the
    command, but for its folder, that makes the run which may be meant.
    """

    def __init__(self, path: Path | str, said: str = "", made_by: str | None = None):
        self.place, self.said = RunFolder(expanded(path)), said
        folder = self.place.path
        if not folder.is_dir():
            first = f", or make it first: bakeoff {made_by} --folder {folder}" if made_by else ""
            raise UserError(f"{said}{folder}: there is no such folder; name that of a finished run{first}")
        read_recipe(self.place)
        if not self.place.summary.exists():
            raise UserError(f"{said}the run in {folder} is not finished; finish it: bakeoff fit --resume {folder}")
        self.identity: str | None = read_sealed(self.place.meta).get("id")
        self.hashes: dict[str, str] = read_sealed(self.place.summary)["files"]

    @property
    def digest(self) -> str:
        return self.hashes[self.place.weights.name]

    def described(self) -> dict[str, Any]:
        """What a run that begins here writes down."""
        return {"path": str(self.place.path), "id": self.identity, "sha256": self.digest}

    def read(self) -> dict[str, Tensor]:
        """The weights by name, on the CPU; `UserError` naming the file if it is not what the run has written."""
        weights = self.place.weights
        held = load_plain(weights)
        check_files(self.place, self.hashes, {weights.name: file_hash(weights)})
        return held

    def check_tokenizer(self, recipe: Recipe, tokenizer: Tokenizer, *, trained: bool) -> None:
        """Raise `UserError` saying what differs if `tokenizer`, the recipe's, gives other ids than the source's.

        Where it has not `trained` yet, and would, its class and arguments are compared and not what it has learnt.
        """
        theirs = shorten(read_recipe(self.place)["data"]["tokenizer"])
        ours = recipe.full["data"]["tokenizer"]
        told = differences(theirs, ours, "data.tokenizer")
        if tokenizer.learns and not trained:
            same = not told
        else:
            learnt = read_sealed(self.place.meta)["files"][self.place.tokenizer.name]
            same = theirs["use"] == ours["use"] and learnt == _hash(tokenizer)
        if not same:
            unlike = "; ".join(told) or "it has learnt from other texts"
            raise UserError(
                f"data.tokenizer{recipe.place('data.tokenizer')}: is not that of {self.place.path}, whose weights know "
                f"other ids ({unlike}); write data.tokenizer as {self.place.recipe} has it, with the same data.corpus "
                "and data.tokenizer_bytes where it learns"
            )


def source_of(recipe: Recipe) -> Source | None:
    """The run whose weights a recipe begins from, if it says so; `UserError` where there is none."""
    path = recipe.tree["weights"]
    if path is None:
        return None
    below, converter = recipe.extended_by("weights"), recipe.build("converter")
    made_by = f"fit {below}" if below else None
    if converter is not None and converter.of_runs:
        made_by = f"convert RUN --recipe {recipe.path or 'RECIPE'}"
    return Source(path, f"weights{recipe.place('weights')}: ", made_by=made_by)


def begin(assembly: Assembly) -> Source | None:
    """Fill the model with the weights that its recipe begins from, if it says so; returns their run.

    Adapters of the recipe's that the run has none of stay as they are drawn.
    Raises `UserError` naming the weights that differ, with both shapes, and for another tokenizer than theirs.
    """
    recipe, model = assembly.recipe, assembly.model
    source = source_of(recipe)
    if source is None:
        return None
    source.check_tokenizer(recipe, assembly.data.tokenizer, trained=True)
    weights, wanted = source.read(), model.state_dict()
    added = adapter_parameters(model).keys()
    if added.isdisjoint(weights):
        wanted = {name: tensor for name, tensor in wanted.items() if name not in added}
    told = disagreements(weights, wanted)
    if told:
        raise UserError(
            f"{source.said}{source.place.path} holds a model that is not the recipe's:\n  "
            + "\n  ".join(told)
            + f"\nwrite model as {source.place.recipe} has it, or make a run that fits with a converter of runs: "
            f"bakeoff convert {source.place.path} --recipe RECIPE --folder FOLDER"
        )
    if not model.backbone.embedding.is_meta:  # else it is filled where it is laid out
        model.load_state_dict({**model.state_dict(), **weights})
    return source


def _hash(tokenizer: Tokenizer) -> str:
    with tempfile.TemporaryDirectory() as folder:
        tokenizer.save(Path(folder))
        return hash_folder(Path(folder))
