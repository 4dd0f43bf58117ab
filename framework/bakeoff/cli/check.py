"""`bakeoff check R`: all that can be known of a recipe or a comparison before it runs."""

from __future__ import annotations

import argparse
import multiprocessing
import sys
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING, Any

from bakeoff.interfaces.command import Command

if TYPE_CHECKING:
    from bakeoff.recipe import Recipe

#: Causality, any split, documents, padding.
LAWS = (1, 2, 3, 4)
#: Parameters of a model that is built in memory for them.
SMALL = 20_000_000


class Check(Command):
    """Check schema, capabilities, the laws on the recipe's own layers, and the memory that training takes."""

    help = "schema, capabilities, laws and memory of a recipe or comparison"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """The recipe or comparison, and overrides."""
        parser.add_argument("recipe", help="a recipe or comparison, or bakeoff:NAME for one that is shipped")
        parser.add_argument("overrides", nargs="*", metavar="PATH=VALUE", help="values set by path")

    def run(self, arguments: argparse.Namespace) -> int:
        """Print one line a check; the first that does not hold is an error."""
        from bakeoff.recipe import comparison, is_comparison, recipe

        if is_comparison(arguments.recipe):
            compared = comparison(arguments.recipe, arguments.overrides)
            print(f"{compared.name}: a comparison of {len(compared.arms)} arms, {len(compared.seeds)} seeds each")
            recipes = compared.arms
        else:
            one = recipe(arguments.recipe, arguments.overrides).check()
            recipes = {one.name: one}
        hashes = {name: each.hash() for name, each in recipes.items()}
        import torch

        from bakeoff.recipe.demands import refuse_foresight
        from bakeoff.train.devices import check_devices

        torch.set_num_threads(1)  # the layers under test are small, and memory is planned beside them
        models = {name: _allocated(each, each.demands()) for name, each in recipes.items()}
        planned = _beside([partial(memory, each) for each in recipes.values()])
        known: dict[Any, Any] = {}
        for name, each in recipes.items():
            refuse_foresight(each, models[name])
            check_devices(each, models[name])
            print(f"{name}  {hashes[name]}", flush=True)
            print(f"  schema        ok: {', '.join(each.components())}")
            print("  capabilities  ok")
            print(f"  laws          {laws(name, models[name], known)}")
            print(f"  memory        {next(planned)}", flush=True)
        return 0


def _allocated(recipe: Recipe, model: Any) -> Any:
    """The model in memory if it is small: filling one that stands on the meta device takes torch longer."""
    from bakeoff.recipe.demands import vocabulary

    if sum(parameter.numel() for parameter in model.parameters()) > SMALL:
        return model
    return recipe.build("model", vocab_size=vocabulary(recipe))


def laws(name: str, model: Any, known: dict[Any, Any]) -> str:
    """Which laws the layers of a model keep; `known` holds findings of layers that were checked before.

    Raises `UserError` if one is broken.
    """
    from bakeoff.errors import UserError
    from bakeoff.testing import check_model

    report = check_model(model, laws=LAWS, known=known)
    if not report.ok:
        raise UserError(f"{name}: {report}")
    kept = sorted({f"{finding.number} {finding.law}" for finding in report.findings if finding.status == "passed"})
    unclaimed = sorted({finding.law for finding in report.findings if finding.status == "not claimed"})
    return f"ok: {', '.join(kept)}" + (f"; not claimed: {', '.join(unclaimed)}" if unclaimed else "")


def memory(recipe: Recipe) -> str:
    """What a training step takes on each device, or why that is not known."""
    from bakeoff.compare.words import size
    from bakeoff.evaluate.planning import plan_recipe

    planned = plan_recipe(recipe)
    if planned.memory is None:
        return "; ".join(planned.notes)
    parts = ["parameters", "gradients", "optimizer", "activations", *(["states"] if planned.memory.states else [])]
    shares = ", ".join(f"{part} {size(getattr(planned.memory, part))}" for part in parts)
    anew = "" if planned.recompute == "none" else f", recompute {planned.recompute}"
    return f"{size(planned.memory.peak)} in training, {planned.rows} rows at a time{anew} ({shares})"


def _beside(work: list[Callable[[], str]]) -> Iterator[str]:
    """What each piece of work gives, in order; done in a process beside this one where the system can fork."""
    if "fork" not in multiprocessing.get_all_start_methods() or sys.platform == "darwin":
        return (piece() for piece in work)
    context = multiprocessing.get_context("fork")
    receive, send = context.Pipe(duplex=False)
    process = context.Process(target=_send, args=(work, send), daemon=True)
    process.start()
    send.close()
    return (_received(receive) for _ in work)


def _send(work: list[Callable[[], str]], to: Any) -> None:
    for piece in work:
        try:
            to.send(piece())
        except Exception as error:
            to.send(error)


def _received(receive: Any) -> str:
    found = receive.recv()
    if isinstance(found, Exception):
        raise found
    return found
