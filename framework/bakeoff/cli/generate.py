"""`bakeoff generate RUN`: text from a trained model."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence as Items
from typing import TYPE_CHECKING, Any

from bakeoff.errors import UserError
from bakeoff.interfaces.command import Command

if TYPE_CHECKING:
    from bakeoff.interfaces.sampler import Sampler
    from bakeoff.recipe import Recipe


class Generate(Command):
    """Continue prompts with a trained model; prints each prompt and what follows it."""

    help = "text from a trained model"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """The run, the prompts, and how to choose tokens."""
        parser.add_argument("folder", metavar="RUN", help="folder of a run")
        parser.add_argument(
            "--prompt", action="append", help="text to continue, may be repeated (default: what comes in on a pipe)"
        )
        ask = "what a user says, under the template that the run was trained with; may be repeated"
        parser.add_argument("--ask", action="append", metavar="TEXT", help=ask)
        sampler = "greedy, or a name and values such as temperature=0.8 top_k=40 (default: as the recipe says)"
        parser.add_argument("--sampler", nargs="+", default=[], metavar="WORD", help=sampler)
        most = "ids a prompt (default: as many as the model has room for)"
        parser.add_argument("--max-new-tokens", type=int, metavar="N", help=most)
        parser.add_argument("--stop", action="append", default=[], metavar="TEXT", help="end before it; repeatable")
        parser.add_argument("--seed", type=int, help="of sampling (default: the recipe's)")
        nothing = "look nothing up, where the model reads what is retrieved"
        parser.add_argument("--no-lookup", action="store_true", help=nothing)
        parser.add_argument("--stream", action="store_true", help="show text as it comes; for one prompt")
        parser.add_argument("--device", help="such as cpu or cuda (default: a GPU where there is one)")
        parser.add_argument("--trust", action="store_true", help="run the scripts that the run carries")

    def run(self, arguments: argparse.Namespace) -> int:
        """Generate and print."""
        if arguments.ask and arguments.prompt:
            raise UserError("--ask and --prompt: give text to continue, or questions to be answered")
        prompts = arguments.ask or _prompts(arguments.prompt)
        if arguments.stream and len(prompts) > 1:
            raise UserError(f"--stream shows one row; there are {len(prompts)} prompts")
        from bakeoff import load_run

        run = load_run(arguments.folder, trust=arguments.trust, device=device_or_best(arguments.device))
        options: dict[str, Any] = {"max_new_tokens": arguments.max_new_tokens, "stop": arguments.stop}
        if arguments.sampler:
            options["sampler"] = chosen_sampler(run.recipe, arguments.sampler)
        if arguments.seed is not None:
            options["seed"] = arguments.seed
        if arguments.no_lookup:
            options["lookup"] = None
        say, between = (run.answer, "\n") if arguments.ask else (run.generate, "")
        if arguments.stream:
            _write(prompts[0] + between)
            say(prompts, stream=lambda row, text: _write(text), **options)
            _write("\n")
            return 0
        for number, (prompt, text) in enumerate(zip(prompts, say(prompts, **options), strict=True)):
            rule = f"--- {number}\n" if len(prompts) > 1 else ""
            _write(f"{rule}{prompt}{between}{text}\n")
        return 0


def chosen_sampler(recipe: Recipe, words: Items[str]) -> Sampler:
    """The sampler that a name and `key=value` words describe.

    Values alone go to the recipe's sampler, or to `sample` where that is greedy and takes none.
    """
    names = [word for word in words if "=" not in word]
    if len(names) > 1:
        raise UserError(f"--sampler takes one name; there are {', '.join(names)}")
    held = recipe.tree["sampler"]["use"]
    name = names[0] if names else "sample" if held == "greedy" else held
    values = [f"sampler.{word}" for word in words if "=" in word]
    return recipe.override([f"sampler.use={name}", *values], "--sampler").build("sampler")


def device_or_best(name: str | None) -> Any:
    """The named device, else a GPU where there is one, else the CPU."""
    import torch

    if name is None:
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UserError(f"--device {name}: {str(error).splitlines()[0]}") from error
    return device


def _prompts(given: list[str] | None) -> list[str]:
    if given is not None:
        return given
    return [""] if sys.stdin.isatty() else [sys.stdin.read().removesuffix("\n")]


def _write(text: str) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
