"""What must hold on the device: the laws of a mixer, its bf16 form beside float32, the grouped product of experts."""

from __future__ import annotations

import copy
import time
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from bakeoff.interfaces.context import LayerContext
from bakeoff.interfaces.init import initialise
from bakeoff.interfaces.sequence import Sequence
from bakeoff.parts.kernels import Choice, choices
from bakeoff.parts.needs import gather
from bakeoff.registry import find
from bakeoff.testing.build import built
from bakeoff.testing.candidate import Candidate as Tested
from bakeoff.testing.checking import examples_of, judged
from bakeoff.testing.law import laws_for
from torch import Tensor, nn

from benchmarks.gpu.cases import Case

#: Seconds after which no further law begins.
LAW_SECONDS = 35.0
#: What bf16 may differ by from float32, relative to the largest, and by how much more with kernels than without.
TOLERANCE, MORE = 0.05, 2.0


class Failed(Exception):
    """A check that does not hold; the message says which."""


def laws(case: Case, device: str) -> dict[str, Any]:
    """Runs the laws of a mixer on the device for a while; raises `Failed` if one is broken."""
    name, _, number = case.candidate.partition(" ")
    make, until = find(name, "mixer"), time.monotonic() + LAW_SECONDS
    tested = Tested(make, "mixer", examples_of(make)[int(number)], device=device)
    passed, broken, left = 0, [], []
    for law in laws_for("mixer", None, slow=False):
        if time.monotonic() > until:
            left.append(law.name)
            continue
        (finding,) = judged(tested, [law])
        passed += finding.status == "passed"
        broken += [f"{law.name}: {finding.reason}"] if finding.status == "failed" else []
    if broken:
        raise Failed("; ".join(broken))
    return {"passed": passed, "not_reached": left}


def bf16(case: Case, device: str) -> dict[str, Any]:
    """How far the mixer's output and gradients in bf16 are from float32 without kernels; raises `Failed` if too far.

    The class's first example, at d 256 on one row of two documents and one of a single one.
    """
    make = find(case.candidate, "mixer")
    place = torch.device(device)
    context = _context()
    part = built(make, examples_of(make)[0], context)
    holder = _initialised(part).to(place)
    found = {
        "float32": _run(_plain(holder), place, torch.float32),
        "plain": _run(_plain(holder), place, torch.bfloat16),
        "chosen": _run(holder, place, torch.bfloat16),
    }
    apart = {form: _apart(found["float32"], found[form]) for form in ("plain", "chosen")}
    for name, error in apart["chosen"].items():
        if not error <= max(TOLERANCE, MORE * apart["plain"][name]):
            raise Failed(
                f"{name} differs by {error:.3g} from float32 (plain torch in bf16: {apart['plain'][name]:.3g})"
            )
    worst = {f"worst_{form}": max(errors.values()) for form, errors in apart.items()}
    return {**worst, "kernels": choices(holder, place)}


def _context() -> LayerContext:
    return LayerContext(d_model=256, vocab_size=512, max_length=512, depth=2, n_heads=4, n_kv_heads=4, head_width=64)


def _initialised(part: nn.Module) -> nn.Module:
    holder = nn.Module()
    holder.part = part
    initialise(holder, seed=0, depth=2)
    return holder


def _plain(holder: nn.Module) -> nn.Module:
    """The same parameters, computed by plain torch."""
    plain = copy.deepcopy(holder)
    for module in plain.modules():
        for name, value in list(vars(module).items()):
            if isinstance(value, Choice):
                setattr(module, name, replace(value, kernels=None))
    return plain


def _run(holder: nn.Module, place: torch.device, dtype: torch.dtype) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(2, 320, 256, generator=generator).to(place).requires_grad_()
    documents = torch.zeros(2, 320, dtype=torch.long)
    documents[0, 130:] = 1
    tokens = torch.zeros(2, 320, dtype=torch.long, device=place)
    sequence = Sequence(tokens, documents=documents.to(place), memory={"embedding": x})
    with torch.autocast(place.type, torch.bfloat16, enabled=dtype == torch.bfloat16):
        y = holder.part(x, sequence.prepare(gather(holder))).y
    weights = torch.randn(y.shape, generator=generator).to(place)
    (y * weights).sum().backward()
    grads = {f"gradient of {name}": p.grad for name, p in holder.named_parameters() if p.grad is not None}
    result = {"output": y.detach().float(), "gradient of x": x.grad, **grads}
    holder.zero_grad()
    return {name: value.clone() for name, value in result.items() if value is not None}


def _apart(wanted: dict[str, Tensor], got: dict[str, Tensor]) -> dict[str, float]:
    return {name: float((got[name] - value).norm() / value.norm().clamp(min=1e-6)) for name, value in wanted.items()}


def product(case: Case, device: str) -> dict[str, Any]:
    """The experts' grouped kernel, forward and backward, beside a product a group; raises `Failed` if they differ."""
    from bakeoff_moe.grouped_product import Groups, grouped_product, has_kernel

    from benchmarks.gpu.measuring import timed

    place = torch.device(device)
    E, D, F, M = (8, 1024, 1408, 32768) if place.type == "cuda" else (4, 32, 48, 128)
    counts = [0, *[M // E] * (E - 2), M // E + 3]  # a group without rows, and rows of no group
    x = torch.randn(M, D, device=place, dtype=torch.bfloat16, requires_grad=True)
    weight = (torch.randn(E, F, D, device=place) * D**-0.5).to(torch.bfloat16).requires_grad_()
    kernel = has_kernel(x, weight, torch.bfloat16)
    ends = torch.tensor(counts, device=place).cumsum(0).int()

    def both(groups: Groups) -> list[Tensor]:
        y = grouped_product(x, weight, groups)
        return [y.detach(), *torch.autograd.grad(y.square().sum(), [x, weight])]

    by_host, by_device = Groups(ends, counts), Groups(ends, None if kernel else counts)
    for name, one, other in zip(("y", "dx", "dw"), both(by_host), both(by_device), strict=True):
        error = float((one.float() - other.float()).norm() / one.float().norm())
        if not error <= 0.01:
            raise Failed(f"the grouped kernel's {name} differs by {error:.3g} from a product a group")
    seconds = {told: min(timed(partial(both, g), place)[1]) for told, g in (("loop", by_host), ("kernel", by_device))}
    work = 6 * sum(counts) * D * F
    rates = {f"{told}_flops": work / spent for told, spent in seconds.items() if told == "loop" or kernel}
    return {"kernel_is_there": kernel, **rates}
