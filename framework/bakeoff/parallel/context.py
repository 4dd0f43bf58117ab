"""Context parallelism: ranks that read the same rows, and have some of the tokens of each.

The objective sees whole rows, and so does whoever reads its sums: the backbone is given this rank's tokens (see
`bakeoff.interfaces.spans.Spans`), what it hands on stays shared out, and the head adds up over the ranks what it
makes of them. Each rank's part of a sum has the sum's gradient, so that gradients are those of one process once they
are added up over the ranks.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor, nn

from bakeoff.errors import CapabilityError, UserError
from bakeoff.interfaces.attention_op import AttentionOp
from bakeoff.interfaces.objective import Feedback
from bakeoff.interfaces.part import Part
from bakeoff.interfaces.position import PositionalEncoding
from bakeoff.interfaces.result import Result
from bakeoff.interfaces.router import Router
from bakeoff.interfaces.sequence import Sequence
from bakeoff.interfaces.spans import ORDERS, Spans, too_short
from bakeoff.model.language_model import LanguageModel
from bakeoff.parallel.dropout import refuse_dropout, share_dropout
from bakeoff.parallel.tensor import outermost
from bakeoff.parts.collectives import summed
from bakeoff.parts.spans import whole_row
from bakeoff.recipe.demands import claimants
from bakeoff.registry import find, name_of

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh

_CLAIM = "context_parallel"


class SharedRows:
    """The rows of one forward, of which each rank of `ranks` has its tokens."""

    def __init__(self, ranks: DeviceMesh, order: str):
        self.group, self.order = ranks.get_group(), order
        self.sequence: Sequence | None = None

    @property
    def spans(self) -> Spans:
        """Who has which tokens."""
        assert self.sequence is not None
        assert self.sequence.spans is not None
        return self.sequence.spans

    def begin(self, sequence: Sequence, state: Any = None) -> tuple[Sequence, None]:
        """What the backbone is given in place of the whole sequence."""
        if state is not None:
            raise CapabilityError(
                "a mesh with context over 1 shares out whole sequences, and carries no state: use one rank"
            )
        self.sequence = sequence.shared_out(self.group, self.order)
        return self.sequence, None

    def end(self, result: Result) -> Result:
        """What the backbone has made, with sums over all tokens, and what choices learn from of all tokens."""
        assert self.sequence is not None
        for name, shown in self.sequence.memory.items():
            if name.startswith("feedback."):
                told = cast(Feedback, shown)
                chosen, baseline = (whole_row(value, self.spans) for value in (told.log_probability, told.baseline))
                self.spans.whole.memory[name] = Feedback(chosen, baseline, told.coefficient)
        return result._replace(aux=self._summed(dict(result.aux)))

    def take(self, x: Tensor | None) -> Tensor | None:
        """This rank's tokens of targets or weights, (B, T)."""
        return None if x is None else self.spans.take(x)

    def answer(self, given: Any, *, each: bool) -> Any:
        """What a head says of all tokens: of `each` its own, else sums."""
        if each:
            return whole_row(given, self.spans)
        values = given if isinstance(given, tuple) else (given,)
        added = self._summed({str(i): value for i, value in enumerate(values)})
        return tuple(added.values()) if isinstance(given, tuple) else added["0"]

    def _summed(self, values: dict[str, Tensor]) -> dict[str, Tensor]:
        """Each of them added up over the ranks, in one exchange a type."""
        for kind in sorted({value.dtype for value in values.values()}, key=str):
            alike = {name: value for name, value in values.items() if value.dtype == kind}
            flat = summed(torch.cat([value.reshape(-1) for value in alike.values()]), self.group)
            pieces = flat.split([value.numel() for value in alike.values()])
            values |= {name: piece.view_as(value) for (name, value), piece in zip(alike.items(), pieces, strict=True)}
        return values


def share_rows(model: LanguageModel, ranks: DeviceMesh, *, order: str, op: str) -> None:
    """Let each rank have some tokens of every row that a model, on any device, is given.

    order : see `Spans`. op : the attention op that stands in place of those that are `replaceable`, such as `auto`.
    """
    rows = SharedRows(ranks, order)
    exchange_ops(model, op)
    model.backbone.narrow(ranks)
    share_dropout(model, lambda x: rows.spans.take(x), lambda: rows.spans.length)
    model.backbone.register_forward_pre_hook(lambda _, args: rows.begin(*args))
    model.backbone.register_forward_hook(lambda _, __, result: rows.end(result))
    model.head.register_forward_pre_hook(lambda _, args, kwargs: _own_targets(rows, *args, **kwargs), with_kwargs=True)
    model.head.register_forward_hook(
        lambda _, args, kwargs, given: _of_head(rows, args, kwargs, given), with_kwargs=True
    )


def exchange_ops(module: nn.Module, op: str) -> None:
    """Let an attention op stand in place of all that are `replaceable`."""
    for owner in list(module.modules()):
        for name, child in owner.named_children():
            if isinstance(child, AttentionOp) and child.replaceable:
                make: Any = find(op, "attention_op")
                setattr(owner, name, make(child.context))


def refuse_rows(model: LanguageModel, ranks: int, *, order: str, op: str, tensor: int, length: int | None) -> None:
    """Raise `UserError` naming what of a model, or of what was asked for, keeps ranks from sharing out its rows."""
    if ranks == 1:
        return
    if order not in ORDERS:
        raise UserError(f"trainer.strategy.context_order is '{order}'; it is one of {', '.join(ORDERS)}")
    _check_op(op)
    _refuse_parts(model)
    refuse_dropout(model, "context")
    reason = None if length is None else too_short(length, ranks, order)
    if reason is not None:
        raise UserError(f"data.length: {reason}; give longer sequences, or trainer.strategy.context fewer ranks")
    _check_ops(model, ranks, op=op, tensor=tensor)


def _check_op(op: str) -> None:
    """Whether there is such an attention op, and whether it can."""
    try:
        make: Any = find(op, "attention_op")
    except UserError as error:
        raise UserError(f"trainer.strategy.context_op: {error}") from error
    if make.replaceable or not make.capabilities.context_parallel:
        able = [name for name in claimants("attention_op", _CLAIM) if not cast(Any, find(name)).replaceable]
        raise CapabilityError(
            f"trainer.strategy.context_op: {op} does not compute over ranks; use one that does ({', '.join(able)})"
        )


def _refuse_parts(model: LanguageModel) -> None:
    """Name the parts that cannot, where they are, and those that could stand in their place."""
    lacking: dict[str, dict[str, list[str]]] = {}  # by kind and name, the layers
    for i, block in enumerate(model.backbone.layers):
        for part in _wanting(cast(Part, block)):
            lacking.setdefault(part.kind, {}).setdefault(_name(part), []).append(str(i))
    told = {kind: [f"{name} (layers {', '.join(dict.fromkeys(layers))})" for name, layers in parts.items()]
            for kind, parts in lacking.items()}  # fmt: skip
    position = getattr(model.backbone, "position", None)
    if position is not None and not position.capabilities.context_parallel:
        told.setdefault(position.kind, []).append(f"{_name(position)} (model.position)")
    if told:
        others = [f"as {kind} use one of {', '.join(claimants(kind, _CLAIM))}" for kind in told]
        raise CapabilityError(
            f"a mesh with context over 1 shares out each sequence, but these do not claim `{_CLAIM}`: "
            f"{', '.join(part for parts in told.values() for part in parts)}; {'; '.join(others)}; "
            "or set trainer.strategy.context: 1"
        )


def _check_ops(model: LanguageModel, ranks: int, *, op: str, tensor: int) -> None:
    make: Any = find(op, "attention_op")
    for path, part in model.named_modules():
        if isinstance(part, AttentionOp):
            try:
                (make(part.context) if part.replaceable else part).check_ranks(ranks, tensor=tensor)
            except ValueError as error:
                raise UserError(f"model.{path}: {error}") from error


def _wanting(block: Part) -> list[Part]:
    """What of a block cannot: the parts within, as deep as one can tell, or else the block itself."""
    if block.capabilities.context_parallel:
        return []
    found: list[Part] = []
    for part in outermost(block):
        if not part.capabilities.context_parallel:
            within = [one for one in part.modules() if isinstance(one, AttentionOp | PositionalEncoding | Router)]
            found += [one for one in within if not one.capabilities.context_parallel] or [part]
    return found or [block]


def _name(part: Part) -> str:
    return name_of(type(part)) or type(part).__name__


def _own_targets(
    rows: SharedRows,
    hidden: Tensor,
    targets: Tensor | None = None,
    weights: Tensor | None = None,
    *args: Any,
    **kwargs: Any,
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a head, of this rank's tokens."""
    return (hidden, rows.take(targets), rows.take(weights), *args), kwargs


def _of_head(rows: SharedRows, args: tuple[Any, ...], kwargs: dict[str, Any], given: Any) -> Any:
    """What a head has given for its arguments, of all tokens."""
    reduce = kwargs.get("reduce", args[3] if len(args) > 3 else "sum")
    return rows.answer(given, each=args[1] is None or reduce == "none")
