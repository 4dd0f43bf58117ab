"""Law 8: the declared cost is the mathematical work, held against a counted run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils.flop_counter import FlopCounterMode

from bakeoff.interfaces.attention_op import AttentionOp
from bakeoff.interfaces.backbone import Backbone
from bakeoff.interfaces.part import StatefulPart
from bakeoff.testing.batch import Held
from bakeoff.testing.law import Broken, NotApplicable, sequence_law
from bakeoff.testing.laws.numbers import has_naive
from bakeoff.testing.subject import Subject

#: Queries and keys of one row: a whole sequence, a single token with a past, a chunk with a past; ragged, and unlike
#: any width, so that a product's shape tells a rectangle of queries by keys from everything else.
_SIZES = ((7, 7), (1, 1), (1, 13), (3, 11))


@sequence_law(8, "cost", hosted=False, claims=("flops",))
def cost(subject: Subject) -> None:
    """`flops` equals the products that a run of the naive form makes, rectangles scaled to the visible pairs."""
    for queries, keys in _SIZES:
        if queries == keys or subject.claims.state:
            declared, counted = subject.module.flops(queries, keys), count(subject, queries, keys)
            if declared != counted:
                size = f"queries={queries}, keys={keys}"
                raise Broken(f"evaluation: flops({size}) is {declared:,}, but the products of a run are {counted:,}")


def count(subject: Subject, queries: int, keys: int) -> int:
    """Multiply-add work, two per pair, of a counted run of one row's last `queries` of `keys` tokens."""
    rectangles = {(queries, keys)}
    pairs = visible_pairs(subject, queries, keys)
    product = partial(_product, rectangles=rectangles, pairs=pairs)
    batch = subject.batch(1, keys)
    with subject.mode("evaluation"), torch.no_grad(), plain(subject, rectangles), sdpa_kernel(SDPBackend.MATH):
        held: Held | None = None
        if subject.claims.state:
            held = subject.begin(1, keys)
        if queries < keys:
            held = subject.run(batch.cut(slice(0, keys - queries)), held).held
        counter = FlopCounterMode(display=False, custom_mapping={torch.ops.aten.bmm: product})
        with counter:
            subject.run(batch.cut(slice(keys - queries, keys)), held)
    return counter.get_total_flops()


def visible_pairs(subject: Subject, queries: int, keys: int) -> int:
    """How many of the last `queries` tokens' outputs depend on how many of `keys` tokens, by their gradients."""
    if isinstance(subject.module, Backbone):
        if subject.module.neighbours_of is not None:
            raise NotApplicable("what is retrieved stands in rows with its tokens: a count of the whole cannot tell it")
        layers = [layer for layer in subject.module.layers if isinstance(layer, StatefulPart)]
        found = {visible_pairs(subject.inner(layer), queries, keys) for layer in layers}
        if len(found) > 1:
            raise NotApplicable("layers see different spans, whose work a count of the whole cannot tell apart")
        return found.pop()
    batch, places = subject.batch(1, keys), torch.arange(keys)[None]
    with subject.mode("evaluation"):
        slopes = [subject.gradient(batch, places == t) for t in range(keys - queries, keys)]
    return sum(int((slope != 0).any(-1).sum()) for slope in slopes)


def _product(
    a: tuple[int, int, int], b: tuple[int, int, int], *_: Any, rectangles: set[tuple[int, int]], pairs: int, **__: Any
) -> int:
    """Work of a batch of products (n, m) x (m, p), of which one side may be a rectangle of queries by keys."""
    batch, n, m = a
    p = b[2]
    for (rows, columns), rest in (((n, p), m), ((n, m), p)):
        if (rows, columns) in rectangles or (columns, rows) in rectangles:
            return 2 * batch * rest * pairs
    return 2 * batch * n * m * p


@contextmanager
def plain(subject: Subject, rectangles: set[tuple[int, int]]) -> Iterator[None]:
    """Attention by whole rectangles, which are noted, and every part that has a naive form by that."""
    with ExitStack() as stack:
        for module in subject.root.modules():
            if isinstance(module, AttentionOp):
                form: Any = partial(_attention, rectangles=rectangles)
            elif has_naive(module):
                form = module.naive
            else:
                continue
            module.forward = form
            stack.callback(delattr, module, "forward")
        yield


def _attention(
    q: Tensor, k: Tensor, v: Tensor, sequence: Any, *, rectangles: set[tuple[int, int]], **_: Any
) -> tuple[Tensor, None]:
    """The products of attention: every query by every key that is held, and the weights by the values."""
    rectangles.add((q.shape[1], k.shape[1]))
    k, v = (t.repeat_interleave(q.shape[2] // t.shape[2], 2) for t in (k, v))
    q, k, v = (t.transpose(1, 2) for t in (q, k, v))
    return (torch.softmax(q @ k.mT, -1) @ v).transpose(1, 2), None
