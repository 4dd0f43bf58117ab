"""Law 10: where tensor parallelism is claimed, several ranks equal one."""

from __future__ import annotations

import copy
import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import distributed, nn

from bakeoff.errors import CapabilityError
from bakeoff.interfaces.cut import held
from bakeoff.interfaces.part import Part
from bakeoff.registry import find
from bakeoff.testing.candidate import Candidate, Ready
from bakeoff.testing.host import model
from bakeoff.testing.law import SEQUENCE_KINDS, Broken, NotApplicable, NotClaimed, Raised, law
from bakeoff.testing.ranks import RanksFailed, shared_ranks

_CASES = Path(__file__).parent.with_name("cases_of_parallel.py")
_CLAIM = "tensor_parallel"
#: Numbers of ranks that are tried, and those for which a refusal is read.
_RANKS = (2, 4)
_DEGREES = range(2, 8)


@law(10, "parallel", *SEQUENCE_KINDS, "attention_op", "position", "router", "head", claims=(_CLAIM,))
def parallel(candidate: Candidate) -> None:
    """Two and four ranks that share out the parameters equal one process: outputs, gradients, states, first values.

    A plan that cannot be refuses by name of both numbers; who plans, claims.
    """
    if candidate.kind == "head":
        root = candidate.filled()
        part: Any = root.part
    else:
        root, part = candidate.subject.root, candidate.subject.module  # type: ignore[assignment]
    refused = {degree: refusal(root, degree) for degree in _DEGREES}
    if not part.capabilities.tensor_parallel:
        _plans_nothing(part)
        raise NotClaimed(_CLAIM)
    for degree, reason in refused.items():
        numbers = set(re.findall(r"\d+", reason or ""))
        if reason is not None and (str(degree) not in numbers or len(numbers) < 2):
            raise Broken(f"a plan for {degree} ranks is refused, but not by both numbers: {reason}")
    if all(refused[ranks] is not None for ranks in _RANKS):
        raise NotApplicable(f"neither 2 nor 4 ranks can share it out: {refused[2]}")
    if not any(list(cuts(root, ranks)) for ranks in _RANKS if refused[ranks] is None):
        raise Broken(f"claims `{_CLAIM}`, but its `parallel_plan` shares nothing out")
    able = [ranks for ranks in _RANKS if refused[ranks] is None]
    on_ranks(candidate, _CASES, _cases(candidate, part), able)


def cuts(root: nn.Module, ranks: int) -> Iterator[str]:
    """Parameters and buffers that the plans of a part, and of those within, share out; `ValueError` if they cannot."""
    for prefix, owner in root.named_modules():
        for path, cut in owner.parallel_plan(ranks).items() if isinstance(owner, Part) else ():
            place, _, name = path.rpartition(".")
            try:
                tensor = held(owner.get_submodule(place), name)
            except AttributeError:
                raise Broken(f"`parallel_plan` names {path}, but no parameter or buffer is called so") from None
            cut.ranges(tensor.shape[cut.dim], ranks, 0)
            yield f"{prefix}.{path}"


def refusal(root: nn.Module, ranks: int) -> str | None:
    """Why so many ranks cannot share a part out, or None."""
    try:
        list(cuts(root, ranks))
    except ValueError as error:
        return str(error)
    return None


def _plans_nothing(part: Part) -> None:
    """A part disclaims what it has a plan for only where something within cannot be shared out."""
    inner = [module for module in part.modules() if isinstance(module, Part) and module is not part]
    if all(module.capabilities.tensor_parallel for module in inner):
        planned = [ranks for ranks in _RANKS if refusal(part, ranks) is None and list(cuts(part, ranks))]
        if planned:
            raise Broken(f"has a `parallel_plan` for {planned[0]} ranks, but does not claim `{_CLAIM}`")


def on_ranks(candidate: Candidate, cases: Path, names: list[str], numbers: Iterable[int], **more: Any) -> None:
    """Call functions of a file on each number of ranks; `Broken` with the reason of the first that fails."""
    if not (distributed.is_available() and distributed.is_gloo_available()):
        raise NotApplicable("torch has no gloo here, by which ranks would speak")
    given = {"component": _home(candidate), "kind": candidate.kind, "seed": candidate.seed}
    given |= {"arguments": _plain(candidate.arguments), **more}
    for n in numbers:
        for name in names:
            try:
                shared_ranks(n).run(cases, name, **given)
            except RanksFailed as failure:
                reason = next(iter(failure.reasons.values())).strip().splitlines()[-1]
                raise Broken(f"{n} ranks: {reason.removeprefix(f'{Broken.__module__}.Broken: ')}") from None


def _cases(candidate: Candidate, part: Part) -> list[str]:
    """A part that reads what earlier layers show, which is of a share too, is tested below one that shows it."""
    if part.kind in ("head", "backbone"):
        return ["head_equals_one" if part.kind == "head" else "model_equals_one"]
    if not candidate.subject.reads:
        return ["part_equals_one"]
    alone = copy.copy(candidate.subject)
    alone.reads = []
    found = ["part_equals_one"] if _runs(lambda: alone.run(alone.batch(1, 2))) else []
    found += ["model_equals_one"] if runs_in_a_model(candidate) else []
    if not found:
        raise NotApplicable("it reads what no layer of its own shows: test it in a model of both")
    return found


def runs_in_a_model(candidate: Candidate) -> bool:
    """Whether a model whose layers all have the part finds all that it reads."""
    return _runs(lambda: _model_of(candidate))


def _model_of(candidate: Candidate) -> Any:
    made = model(candidate.kind, candidate.build).initialise(candidate.seed)
    return made.logits(torch.zeros(1, 2, dtype=torch.long))


def _runs(call: Callable[[], Any]) -> bool:
    with torch.no_grad():
        try:
            call()
        except (CapabilityError, Raised):
            return False
    return True


def _home(candidate: Candidate) -> dict[str, Any]:
    """Where ranks find the class; `NotApplicable` where they cannot import it."""
    if isinstance(candidate, Ready):
        raise NotApplicable("it stands in a model: check its class")
    owners = [*_used(candidate.arguments), candidate.make]
    for owner in owners:
        name = getattr(owner, "__qualname__", "<locals>")
        if "<" in name or owner.__module__ == "__main__":
            raise NotApplicable(f"ranks cannot import {name}: let it stand in a module, outside any function")
    modules = [(owner.__module__, getattr(sys.modules[owner.__module__], "__file__", None)) for owner in owners]
    return {"modules": modules, "name": candidate.make.__qualname__, "paths": sys.path}


def _used(arguments: Any) -> Iterator[type]:
    """Classes that arguments name, at every depth."""
    if isinstance(arguments, Mapping):
        if "use" in arguments:
            yield find(arguments["use"])
        for value in arguments.values():
            yield from _used(value)
    elif isinstance(arguments, list):
        for value in arguments:
            yield from _used(value)


def _plain(arguments: Mapping[str, Any]) -> Any:
    try:
        return json.loads(json.dumps(arguments))
    except TypeError:
        raise NotApplicable("its arguments are no plain values, so ranks cannot build it anew") from None
