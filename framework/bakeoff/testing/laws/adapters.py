"""Low-rank adapters on every learned product: kept apart they give, and learn, what merged weights do."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor

from bakeoff.interfaces import init
from bakeoff.parts.adapted_products import adapters_of
from bakeoff.parts.adapters import Adapters, adapter_parameters, merged, without
from bakeoff.testing.batch import Batch, scale
from bakeoff.testing.law import Broken, NotApplicable, sequence_law
from bakeoff.testing.subject import MODES, Subject

_SCALE = 0.7
_LENGTH = 7


@sequence_law(None, "adapters", hosted=False)
def adapters(subject: Subject) -> None:
    """With adapters on every learned product, outputs, sums and gradients are those of the merged weights W + s B A,
    also through the state; switched off, outputs are those of W, bit for bit.

    What multiplies by a parameter other than by calling its layer reads the attribute, anew in each call.
    """
    apart, whole = subject.cast(subject.dtype), subject.cast(subject.dtype)
    try:
        Adapters(rank=2, scale=_SCALE, on=["*"]).add_to(apart.root)
    except ValueError as reason:
        raise NotApplicable(str(reason)) from None
    _fill(apart)
    whole.root.load_state_dict(merged(apart.root))
    for mode in MODES:
        with subject.mode(mode), apart.mode(mode), whole.mode(mode):
            batch = subject.batch(2, _LENGTH)
            _same(mode, _learned(apart, batch), _expected(apart, _learned(whole, batch)), subject.tolerance)
            with without(apart.root):
                if not torch.equal(apart.run(batch).y, subject.run(batch).y):
                    raise Broken(f"{mode}: with its adapters switched off, the output is another than without any")
            if subject.claimed("state", mode):
                _same_through_state(mode, apart, whole, batch)


def _fill(subject: Subject) -> None:
    """Neither factor is zero."""
    for name, parameter in adapter_parameters(subject.root).items():
        drawn = torch.randn(parameter.shape, generator=init.generator(subject.seed, name), dtype=torch.float64)
        parameter.data.copy_(drawn / parameter.shape[-1] ** 0.5)


def _learned(subject: Subject, batch: Batch) -> dict[str, Tensor]:
    """The output, sums, and the gradients of both by x and by every parameter."""
    x = batch.x.clone().requires_grad_()
    parameters = {name: p for name, p in subject.root.named_parameters() if p.requires_grad}
    y, aux, _ = subject.run(replace(batch, x=x))
    values = {"the output": y, **{f"aux {name}": value for name, value in aux.items()}}
    told = [value.double().square().sum() for value in values.values() if value.requires_grad]
    slopes = torch.autograd.grad(torch.stack(told).sum(), [x, *parameters.values()], allow_unused=True)
    found = {"the gradient of x": slopes[0], **dict(zip(parameters, slopes[1:], strict=True))}
    return {name: value.detach() for name, value in {**values, **found}.items() if value is not None}


def _expected(apart: Subject, whole: dict[str, Tensor]) -> dict[str, Tensor]:
    """The same of the part with adapters, by the chain rule from the gradients of the sums."""
    found = dict(whole)
    for prefix, owner in apart.root.named_modules():
        for name, adapter in adapters_of(owner):
            slope = whole.get(f"{prefix}.{name}")
            path = next(path for path, module in owner.named_children() if module is adapter)
            if slope is not None:
                found[f"{prefix}.{path}.up.weight"] = _SCALE * slope @ adapter.down.weight.detach().mT
                found[f"{prefix}.{path}.down.weight"] = _SCALE * adapter.up.weight.detach().mT @ slope
    return found


def _same(mode: str, got: dict[str, Tensor], wanted: dict[str, Tensor], tolerance: float) -> None:
    for name, value in wanted.items():
        told = name.removeprefix("part.")
        if name not in got:
            raise Broken(f"{mode}: {told} has no gradient beside an adapter: read the weight by its attribute")
        distance = float((got[name] - value).abs().max()) if value.numel() else 0.0
        if not distance <= tolerance * scale(value):
            what = told if name.startswith(("the ", "aux ")) else f"the gradient of {told}"
            raise Broken(
                f"{mode}, B=2, T={_LENGTH}: with adapters {what} differs by {distance:.2g} from that of merged weights"
            )


def _same_through_state(mode: str, apart: Subject, whole: Subject, batch: Batch) -> None:
    lengths = [_LENGTH - 3, 1, 2]
    with torch.no_grad():
        place = apart.apart(whole.run_split(batch, lengths).y, apart.run_split(batch, lengths).y)
    if place is not None:
        raise Broken(
            f"{mode}, in calls of {lengths} through the state: with adapters output {place.t} differs by {place.by} "
            "from that of merged weights"
        )
