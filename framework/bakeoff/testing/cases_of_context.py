"""What ranks do for law 10 that share out the tokens of rows: a component beside the same one that has all of them."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from bakeoff.interfaces.backbone import Backbone
from bakeoff.interfaces.neighbours import EMBEDDED
from bakeoff.interfaces.sequence import Sequence
from bakeoff.interfaces.spans import Spans
from bakeoff.parallel.context import exchange_ops, share_rows
from bakeoff.parts.needs import gather
from bakeoff.parts.spans import whole_row
from bakeoff.testing.batch import Batch
from bakeoff.testing.build import VOCABULARY
from bakeoff.testing.candidate import Candidate
from bakeoff.testing.cases_of_parallel import compare, found, gradients, of_model
from bakeoff.testing.host import model
from bakeoff.testing.subject import Subject
from bakeoff.testing.values import jitter

#: Tokens of rows that no number of ranks divides.
_LENGTH = 19
#: Tokens of rows whose spans are of a token or two.
_SHORT = 9


def part_equals_one(component: Any, kind: str, arguments: Mapping[str, Any], seed: int, orders: list[str]) -> None:
    """Outputs, sums and gradients of a part along a sequence, of packed documents and padding where it claims these."""
    whole, own = (Candidate(found(component), kind, arguments, seed).subject for _ in range(2))
    exchange_ops(own.root, "ring")
    for part in own.root.modules():
        if isinstance(part, Backbone):
            part.narrow(_mesh())
    own.needs = gather(own.root)
    for mode in whole.modes_claiming("context_parallel"):
        with whole.mode(mode, quiet=True), own.mode(mode, quiet=True):
            tried = [batch for length in (_LENGTH, _SHORT) for batch in _batches(whole, mode, length)]
            # what it is told of the row is looked at alike in training, of which the fullest row tells
            for batch in tried if mode == "evaluation" else tried[-1:]:
                one = _of_part(whole, batch, None)
                for order in orders:
                    _compare(f"{mode}, {order}, T {batch.length}", one, _of_part(own, batch, order), own.root)


def model_equals_one(component: Any, kind: str, arguments: Mapping[str, Any], seed: int, orders: list[str]) -> None:
    """The loss of a model of two layers with the component in its place, and its gradients."""
    make = partial(model, kind, Candidate(found(component), kind, arguments, seed).build)
    for order in orders:
        whole, own = (make().initialise(seed).double() for _ in range(2))
        for one in (whole, own):
            jitter(one, seed)
        share_rows(own, _mesh(), order=order, op="ring")
        tokens = torch.randint(VOCABULARY, (2, _LENGTH + 1), generator=torch.Generator().manual_seed(seed))
        wanted, got = (of_model(each, tokens) for each in (whole, own))
        compare(f"in a model of 2 layers, {order}", wanted, got, own, own.parameters())


def _batches(subject: Subject, mode: str, length: int) -> list[Batch]:
    """Packed and padded rows, and plain ones: of both lengths where these are all there are, else of the first."""
    place = torch.arange(length).expand(2, -1)
    documents = (place > torch.tensor([[4], [6]])).long() + (place > length - 3).long()
    real = torch.stack([place[0] < length - 2, place[0] >= 3])
    claimed = {
        name: where for name, where in (("documents", documents), ("padding", real)) if subject.claimed(name, mode)
    }
    given = {"real" if name == "padding" else name: where for name, where in claimed.items()}
    packed = [subject.batch(2, length, **given)] if given else []
    return [*packed, *([] if packed and length != _LENGTH else [subject.batch(2, length)])]


def _of_part(subject: Subject, batch: Batch, order: str | None) -> dict[str, Tensor]:
    """The output, sums, and gradients of both by what they come from, of all tokens."""
    x = batch.x.clone().requires_grad_()
    sequence = subject.sequence(Batch(x, batch.tokens, batch.documents, batch.real))
    spans, own = None, x
    if order is not None:
        sequence = _shared_out(sequence, order)
        spans = sequence.spans
        own = spans.take(x)  # type: ignore[union-attr]
    result = subject.call(own, sequence)
    y = result.y if spans is None else whole_row(result.y, spans)
    if batch.real is not None:
        y = torch.where(batch.real[..., None], y, 0)
    weights = torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).view_as(y)
    total = (y * weights).sum() + sum(0.1 * value.sum() for value in result.aux.values() if value.requires_grad)
    told = {"the output": y.detach()} | {f"the sum '{name}'": _added(v, spans) for name, v in result.aux.items()}
    return told | gradients(total, {"x": x, **dict(subject.root.named_parameters())})


def _shared_out(sequence: Sequence, order: str) -> Sequence:
    own = sequence.shared_out(_mesh().get_group(), order)
    assert own.spans is not None
    memory = sequence.memory.items()
    cut = {name: value for name, value in memory if isinstance(value, Tensor) and name != EMBEDDED}
    own.memory |= {name: own.spans.take(value) for name, value in cut.items()}
    return own


def _added(value: Tensor, spans: Spans | None) -> Tensor:
    value = value.detach().clone()
    if spans is not None:
        distributed.all_reduce(value)
    return value


def _compare(told: str, one: dict[str, Tensor], many: dict[str, Tensor], root: nn.Module) -> None:
    distributed.all_reduce(many["x"])
    compare(told, one, many, root, root.parameters())


@cache
def _mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (distributed.get_world_size(),), mesh_dim_names=("context",))["context"]
