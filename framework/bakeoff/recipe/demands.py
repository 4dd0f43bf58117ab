"""What a run demands of its parts and of the machine, asked before anything is allocated."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from bakeoff.errors import CapabilityError, RecipeError, UserError
from bakeoff.interfaces.policy import PolicyObjective
from bakeoff.recipe.building import factory
from bakeoff.recipe.precision import precision_faults
from bakeoff.registry import find, name_of, names

if TYPE_CHECKING:
    from bakeoff.recipe.single import Recipe

#: Stands in for the vocabulary where the tokenizer is not trained yet; no capability depends on it.
_VOCABULARY = 512
_WORKERS = ("mixer", "feed_forward")


def check_demands(recipe: Recipe) -> Any:
    """The recipe's model on the meta device, if it can be built and its parts do what the run asks of them.

    Raises `RecipeError` where a part refuses its arguments or the trainer's would not do what they say, and
    `CapabilityError` naming part, demand and alternatives.
    """
    _trainer(recipe)
    model = outlined(recipe, vocabulary(recipe))
    _retrieval(recipe, model)
    _collecting(recipe)
    unmet: list[str] = []
    if recipe.tree["data"].get("isolate_documents", True):
        unmet += _unmet(recipe, model, "documents", "data.isolate_documents")
    if recipe.stateful:
        unmet += [*_stateless_objective(recipe), *_unmet(recipe, model, "constant_state", "trainer.stateful")]
    if unmet:
        raise CapabilityError(_told(unmet))
    return model


def _retrieval(recipe: Recipe, model: Any) -> None:
    """Raise `CapabilityError` where what `data.retrieval` finds and what the model's parts read are not the same."""
    section = recipe.tree["data"].get("retrieval")
    readers = [part for part in model.modules() if getattr(part, "neighbours_of", None) is not None]
    at = f"data.retrieval{recipe.place('data.retrieval')}"
    if section is None:
        if readers:
            path = recipe.path_of(type(readers[0])) or "model"
            raise CapabilityError(
                f"{path}{recipe.place(path)}: {_named(readers[0])} reads the neighbours of chunks, but data.retrieval "
                "is not set: it would never find anything; write data.retrieval: {retriever: {use: flat, embedder: "
                "{use: static}}}, or use another part"
            )
        return
    if not readers:
        raise CapabilityError(
            f"{at}: no part of the model reads what is retrieved; use one that does, such as block `retro` or backbone "
            "`prepend`, or leave data.retrieval out"
        )
    if recipe.stateful:
        raise CapabilityError(
            f"{at}: chunks count from a row's first token, and with trainer.stateful: true rows go on from others; set "
            "trainer.stateful: false, or leave data.retrieval out"
        )
    if not recipe.build("objective").shows_neighbours:
        named = recipe.tree["objective"]["use"]
        raise CapabilityError(f"{at}: objective {named} shows the model no neighbours; use objective causal")
    chunk = recipe.full["data"]["retrieval"]["chunk"]
    for part in readers:
        if part.neighbours_of != chunk:
            path = recipe.path_of(type(part)) or "model"
            raise CapabilityError(
                f"{path}{recipe.place(path)}: {_named(part)} reads neighbours of chunks of {part.neighbours_of} "
                f"tokens, and data.retrieval.chunk is {chunk}; they must be equal: write chunk: "
                "${data.retrieval.chunk}"
            )


def _collecting(recipe: Recipe) -> None:
    """Raise `UserError` where an objective could not learn from what it would collect."""
    objective = recipe.build("objective")
    if isinstance(objective, PolicyObjective):
        objective.check_sampler(recipe.build("sampler"))
        objective.prompts(recipe.build("data").global_batch)


def _named(part: Any) -> str:
    return name_of(type(part)) or type(part).__name__


def foresight(recipe: Recipe, model: Any) -> str | None:
    """Why the model must not be trained to predict next tokens, if the recipe's objective does that; else None."""
    from bakeoff.parts.causal import Causal

    if not isinstance(recipe.build("objective"), Causal) or model.backbone.capabilities.causal:
        return None
    return "its parts disclaim `causal`: in next-token prediction they would see what they are to predict"


def refuse_foresight(recipe: Recipe, model: Any) -> None:
    """Raise `CapabilityError` with the parts that would see what they are to predict."""
    reason = foresight(recipe, model)
    if reason is None:
        return
    blind = {type(m) for m in model.modules() if getattr(m, "kind", None) in _WORKERS and not m.capabilities.causal}
    told = ", ".join(sorted(f"{name_of(cls) or cls.__name__} at {recipe.path_of(cls) or 'model'}" for cls in blind))
    raise CapabilityError(f"{recipe.name}: {reason}: {told or 'the backbone'}; use parts that claim it")


def outlined(recipe: Recipe, vocabulary: int, **links: Any) -> Any:
    """The recipe's model on the meta device; `RecipeError` with the part's path where one refuses its arguments."""
    import torch

    try:
        with torch.device("meta"):
            model = recipe.build("model", vocab_size=vocabulary, **links)
    except RecipeError:  # it names its path
        raise
    except (ValueError, TypeError, RuntimeError, ArithmeticError) as error:
        path = _guilty(recipe, error)
        raise RecipeError(f"{path}{recipe.place(path)}: {str(error).partition(chr(10))[0]}") from error
    for name, parameter in model.named_parameters():
        if not parameter.numel():
            path = recipe.path_of(type(model.get_submodule(name.rpartition(".")[0]))) or "model"
            shape = " x ".join(map(str, parameter.shape))
            raise RecipeError(f"{path}{recipe.place(path)}: parameter {name} would be {shape}; sizes are at least 1")
    return model


def vocabulary(recipe: Recipe) -> int:
    """Rows of the embedding, or what stands in for them where the recipe leaves them to the tokenizer."""
    return recipe.tree["model"].get("vocab_size") or _VOCABULARY


def _unmet(recipe: Recipe, model: Any, capability: str, setting: str) -> Iterator[str]:
    """A line for each class of mixer or feed-forward in the model that lacks a capability that a setting demands."""
    seen: set[type] = set()
    for module in model.modules():
        kind = getattr(module, "kind", None)
        if kind not in _WORKERS or getattr(module.capabilities.training, capability) or type(module) in seen:
            continue
        seen.add(type(module))
        name = name_of(type(module)) or type(module).__name__
        path = recipe.path_of(type(module)) or "model"
        known = claimants(kind, capability)
        claiming = ", ".join(f"{other} with other arguments" if other == name else other for other in known)
        yield (
            f"{path}{recipe.place(path)}: {name} does not claim `{capability}`, which {setting}: true demands; "
            f"use a {kind.replace('_', '-')} that claims it ({claiming}), or set {setting}: false"
        )


def _stateless_objective(recipe: Recipe) -> Iterator[str]:
    """A line if the recipe's objective cannot take a state."""
    if not recipe.build("objective").carries_state:
        carrying = ", ".join(e.name for e in names("objective") if find(e.name, "objective").carries_state)  # type: ignore[attr-defined]
        yield (
            f"objective{recipe.place('objective')}: {recipe.tree['objective']['use']} takes no state, which "
            f"trainer.stateful: true demands; use one with `carries_state` ({carrying}), or set trainer.stateful: false"
        )


def claimants(kind: str, capability: str) -> list[str]:
    """Names of the known components of a kind that claim a capability with one of their examples' arguments."""
    return [
        entry.name
        for entry in names(kind)
        if any(getattr(part.capabilities.training, capability) for part in specimens(entry.name, kind))
    ]


def specimens(name: str, kind: str) -> Iterator[Any]:
    """A small part for each set of arguments that its class names; none of one that cannot be loaded or built alone."""
    from bakeoff.interfaces import LayerContext

    place = LayerContext(d_model=16, vocab_size=16, max_length=16, n_heads=4, n_kv_heads=4, head_width=4, n_experts=4)
    try:
        for arguments in find(name, kind).examples():  # type: ignore[attr-defined]
            yield factory({"use": name, **arguments}, kind)(place)
    except (UserError, ValueError, TypeError):
        return


def _guilty(recipe: Recipe, error: BaseException) -> str:
    """The path of the innermost part in whose constructor the error was raised."""
    path, trace = "model", error.__traceback__
    while trace is not None:
        owner = type(trace.tb_frame.f_locals.get("self"))
        path = recipe.path_of(owner) or path
        trace = trace.tb_next
    return path


def _told(lines: list[str]) -> str:
    return lines[0] if len(lines) == 1 else "unmet demands:\n  " + "\n  ".join(lines)


def _trainer(recipe: Recipe) -> None:
    """Pairs of settings that Lightning would take without a word and not do."""
    found = list(precision_faults(recipe.tree["trainer"], recipe.tree["optimizer"]))
    if recipe.fp8 and recipe.tree["adapters"] is not None:
        found.append("trainer.fp8: true replaces linear layers, which adapters change too; set trainer.fp8: false")
    if found:
        raise RecipeError(_told(found))
