"""Weights that a converter makes into a run of ours: published ones, which are written again too, and another run's."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from bakeoff.errors import UserError
from bakeoff.interfaces.converter import Converter
from bakeoff.parts.adapters import has_adapters
from bakeoff.parts.files import file_hash, write_sealed
from bakeoff.parts.tensor_files import save_whole, write_safetensors
from bakeoff.recipe import Recipe
from bakeoff.recipe.demands import outlined, vocabulary
from bakeoff.registry import names
from bakeoff.train.folder import RunFolder
from bakeoff.train.records import identify, meta_of, recorded, write_recipe, write_summary
from bakeoff.train.run import Run, load_run
from bakeoff.train.weights import Source

if TYPE_CHECKING:
    from torch import Tensor

    from bakeoff.data import Data
    from bakeoff.model import LanguageModel

FILE = "model.safetensors"


def import_weights(recipe: Recipe, source: Path | str, folder: Path | str, *, trust: bool = False) -> Run:
    """A run in `folder` whose weights the recipe's `converter` makes of others.

    `source` is a safetensors file, or a folder of them, that somebody published; or, for a converter `of_runs`, the
    folder of a finished run, which opens as in `load_run`. The recipe says the model. Its tokenizer is that of the run,
    or one that is not trained here, such as `pretrained_tokenizer` with the file that was published beside the weights.

    Raises `UserError` for weights that are missing, left over, of another shape or not finite, and a folder in use.
    """
    recipe = recipe.check().override({"weights": None}, "default")  # those are what is being made
    converter, place = _converter(recipe), RunFolder(Path(folder))
    if place.holds_work() or place.weights.exists():
        raise UserError(f"{place.path} holds a run already; give another folder")
    outlined(recipe, vocabulary(recipe))
    data = recipe.build("data")
    if converter.of_runs:
        model, origin = _from_run(recipe, converter, data, Path(source), trust)
    else:
        model, origin = _from_published(recipe, converter, data, Path(source))
    broken = [name for name, tensor in model.state_dict().items() if not tensor.isfinite().all()]
    if broken:
        raise UserError(f"{source}: values of {broken[0]} are not finite")
    write_recipe(place, recipe)
    data.tokenizer.save(place.tokenizer)
    meta = meta_of(recipe, data, max_length=model.context.max_length, fingerprint=None)
    write_sealed(place.meta, {"id": identify(place), **meta, **origin, "files": recorded(place)})
    save_whole(model.state_dict(), place.weights)
    metrics = {"parameters": sum(parameter.numel() for parameter in model.parameters())}
    write_summary(place, metrics)
    return Run(place.path, recipe, model, data.tokenizer, metrics)


def _from_published(
    recipe: Recipe, converter: Converter, data: Data, source: Path
) -> tuple[LanguageModel, dict[str, Any]]:
    """The model of published weights, and what `meta.json` says of them."""
    files = _files(source)
    if data.tokenizer.learns:
        name = recipe.tree["data"]["tokenizer"]["use"]
        raise UserError(
            f"data.tokenizer{recipe.place('data.tokenizer')}: {name} would learn other ids than the weights were made "
            "with; use {use: pretrained_tokenizer, path: FILE} with the tokenizer.json that belongs to them"
        )
    model = recipe.build("model", vocab_size=data.vocab_size)
    model.load_state_dict(converter.to_ours(_read(files), model))
    return model, {"imported": {path.name: file_hash(path) for path in files}}


def _from_run(
    recipe: Recipe, converter: Converter, data: Data, source: Path, trust: bool
) -> tuple[LanguageModel, dict[str, Any]]:
    """The model that a run's weights are made into, and what `meta.json` says of the run; `data` gets its tokenizer."""
    given = Source(source)
    given.check_tokenizer(recipe, data.tokenizer, trained=False)
    run = load_run(source, trust=trust)
    data.tokenizer = run.tokenizer
    seed = recipe.seed_of("initialisation")
    model = recipe.build("model", vocab_size=data.vocab_size).initialise(seed)
    model.load_state_dict(converter.from_run(run.model, model, seed))
    return model, {"converted": given.described()}


def export_weights(run: Run, folder: Path | str, *, own_names: bool = False) -> Path:
    """Write a run's weights as `model.safetensors` under the names of its recipe's `converter`; returns the file.

    With `own_names` they keep those that they have here, which needs no converter. A weight that the model shares, such
    as a tied embedding, is written once. Raises `UserError` where adapters are to be merged first.
    """
    if has_adapters(run.model) and not own_names:
        raise UserError(
            f"{run.folder} has adapters, which no published layout holds; merge them first, by a recipe without "
            f"adapters: and with converter: {{use: merged_adapters}}: bakeoff convert {run.folder} --recipe RECIPE "
            "--folder FOLDER"
        )
    seen: set[int] = set()
    weights: dict[str, Tensor] = {}
    named = run.model.state_dict() if own_names else _converter(run.recipe).to_theirs(run.model)
    for name, tensor in named.items():
        if tensor.data_ptr() not in seen:
            weights[name] = tensor
        seen.add(tensor.data_ptr())
    path = Path(folder) / FILE
    write_safetensors(weights, path)
    return path


def _converter(recipe: Recipe) -> Converter:
    converter = recipe.build("converter")
    if converter is None:
        known = ", ".join(f"{{use: {each.name}, …}}" for each in names("converter"))
        raise UserError(
            f"{recipe.name} does not say which weight of the others is which of its own; give it `converter:`, one of "
            f"{known}, as bakeoff:models/gpt2.yaml does"
        )
    return converter


def _files(source: Path) -> list[Path]:
    """The safetensors files that `source` is or holds."""
    files = sorted(source.glob("*.safetensors")) if source.is_dir() else [source]
    if not source.exists():
        raise UserError(f"{source}: there is no such file or folder")
    if RunFolder(source).recipe.exists():
        raise UserError(
            f"{source} is a run of ours; the recipe's converter reads published weights, so use one of runs"
        )
    if not files or any(path.suffix != ".safetensors" for path in files):
        held = "holds no *.safetensors" if source.is_dir() else "is no *.safetensors"
        raise UserError(f"{source} {held}; other formats may run code when they are read: convert them first")
    return files


def _read(files: list[Path]) -> dict[str, Any]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    weights: dict[str, Tensor] = {}
    for path in files:
        try:
            held = load_file(path)
        except (SafetensorError, OSError) as error:
            raise UserError(f"{path} is damaged: {error}") from error
        twice = set(weights) & set(held)
        if twice:
            raise UserError(f"{path} holds {min(twice)}, which another file of the folder holds too")
        weights |= held
    return weights
