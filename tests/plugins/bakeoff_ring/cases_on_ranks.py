"""What several ranks compute together, beside what other libraries compute of the whole: called on every rank."""

from __future__ import annotations

import math
from types import SimpleNamespace

import torch
from bakeoff.interfaces import LayerContext, Sequence
from bakeoff.interfaces.spans import ORDERS
from bakeoff.parallel.planner import ring as planned
from bakeoff.parallel.planner.traffic import all_to_all
from bakeoff.parallel.sent import Sent
from bakeoff.registry import find
from torch import distributed
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.nn.functional import scaled_dot_product_attention
from torch.utils.checkpoint import checkpoint

B, H, N = 2, 4, 6


def group():
    return distributed.group.WORLD


def op_of(name, *, n_kv_heads=H, window=None, soft_cap=None, **_):
    known = {"n_heads": H, "n_kv_heads": n_kv_heads, "head_width": N, "window": window, "soft_cap": soft_cap}
    return find(name, "attention_op")(LayerContext(d_model=H * N, vocab_size=1, max_length=64, **known))


def sequence_of(length, *, documents=False, real=None, visibility="causal", **_):
    """Documents that cross ranks; `real` says of each row which places are no padding."""
    place = torch.arange(length).expand(B, -1)
    told = {"documents": (place > 3).long() + (place > length - 3).long()} if documents else {}
    if real == "ends":
        told["real"] = torch.stack([place[0] < length - 2, place[0] >= 3])
    elif real == "between":
        told["real"] = torch.stack([place[0] % 4 < 2, place[0] % 5 > 2])
    if visibility == "prefix":
        told["prefix"] = torch.tensor([[length // 2], [3]]).expand(B, length)
    return Sequence(torch.zeros(B, length, dtype=torch.long), visibility=visibility, **told)


def inputs_of(length, *, n_kv_heads=H, value_width=N, bias=0, sinks=False, dtype=torch.float64, **_):
    """Queries, keys, values, bias and sinks of all tokens."""
    generator = torch.Generator().manual_seed(length)

    def random(*shape):
        return torch.randn(shape, generator=generator, dtype=torch.float64).to(dtype).requires_grad_()

    q, k = random(B, length, H, N), random(B, length, n_kv_heads, N)
    v = random(B, length, n_kv_heads, value_width)
    return [q, k, v, random(bias, H, length, length) if bias else None, random(H) if sinks else None]


def seen_by_each(sequence, window):
    """(B, T, T), True where a query sees a key, from the words of `VisibleKeys`, pair by pair."""
    length, rows = sequence.length, []
    real = torch.ones(B, length, dtype=torch.bool) if sequence.real is None else sequence.real
    for b in range(B):
        count = (real[b].long().cumsum(0) - 1).clamp_min(0)
        ahead = count[None, :] - count[:, None]
        seen = ahead <= 0
        if sequence.visibility == "bidirectional":
            seen = torch.ones_like(seen)
        elif sequence.visibility == "prefix":
            seen = seen | (sequence.positions.expand(B, -1)[b] < sequence.prefix[b, 0])[None]
        if window is not None:
            seen = seen & (ahead.abs() < window)
        if sequence.documents is not None:
            seen = seen & (sequence.documents[b][None] == sequence.documents[b][:, None])
        rows.append(seen & real[b][None])
    return torch.stack(rows)


def by_torch(q, k, v, bias, sinks, mask, scale):
    """torch's attention by its plainest backend; a sink is one more key, of logit s and value zero."""
    added = torch.zeros(B, H, *mask.shape[1:], dtype=q.dtype).masked_fill(~mask[:, None], -math.inf)
    added = added if bias is None else added + bias
    if sinks is not None:
        k, v = (torch.cat([x, torch.zeros_like(x[:, :1])], 1) for x in (k, v))
        added = torch.cat([added, sinks[None, :, None, None].expand(B, -1, mask.shape[1], 1)], 3)
    q, k, v = (x.transpose(1, 2) for x in (q, k, v))
    with sdpa_kernel(SDPBackend.MATH):
        return scaled_dot_product_attention(q, k, v, added, scale=scale, enable_gqa=True).transpose(1, 2)


def by_transformers(q, k, v, mask, scale, soft_cap):
    """Gemma 2's attention, which caps logits."""
    from transformers.models.gemma2.modeling_gemma2 import eager_attention_forward

    module = SimpleNamespace(num_key_value_groups=H // k.shape[2], head_dim=N, training=False)
    added = torch.zeros(mask.shape, dtype=q.dtype).masked_fill(~mask, torch.finfo(q.dtype).min)[:, None]
    heads = (x.transpose(1, 2) for x in (q, k, v))
    scale = N**-0.5 if scale is None else scale
    return eager_attention_forward(module, *heads, added, scaling=scale, softcap=soft_cap)[0]


def weights_of(out):
    return torch.linspace(-1, 1, out.numel(), dtype=torch.float64).view_as(out)


def learned(inputs, out, weights):
    given = [x for x in inputs if x is not None]
    return torch.autograd.grad((out * weights).sum(), given)


def of_ranks(op, inputs, sequence, order, scale=None, recompute=False):
    """This rank's output and its gradients by the whole inputs; its part of what ranks add up."""
    own = sequence.shared_out(group(), order).prepare(op.needs())
    q, k, v = (own.spans.take(x) for x in inputs[:3])
    bias = None if inputs[3] is None else own.spans.take(inputs[3], 2)

    def call(q, k, v):
        return op(q, k, v, own, scale=scale, bias=bias, sinks=inputs[4])[0]

    return (checkpoint(call, q, k, v, use_reentrant=False) if recompute else call(q, k, v)), own.spans


def of_whole(inputs, sequence, mask, scale, window=None, soft_cap=None, n_kv_heads=H, **_):
    """What torch computes of the whole; it caps no logits, and there it is one process's own op."""
    if soft_cap is None:
        return by_torch(*inputs, mask, scale)
    alone = op_of("sdpa", window=window, soft_cap=soft_cap, n_kv_heads=n_kv_heads)
    return alone(*inputs[:3], sequence.prepare(alone.needs()), scale=scale)[0]


def equals_whole(op, lengths, scale=None, recompute=False, oracle="torch", **options):
    """Output and gradients are those of the whole, in both orders."""
    for length in lengths:
        sequence, inputs = sequence_of(length, **options), inputs_of(length, **options)
        mask = seen_by_each(sequence, options.get("window"))
        real = torch.ones(B, length, dtype=torch.bool) if sequence.real is None else sequence.real
        real = (real & mask.any(-1))[..., None, None]  # what comes of padding is nobody's
        if oracle == "torch":
            wanted, tolerance = of_whole(inputs, sequence, mask, scale, **options), 1e-12
        else:  # which takes the softmax in float32
            wanted, tolerance = by_transformers(*inputs[:3], mask, scale, options["soft_cap"]), 1e-5
        weights = weights_of(wanted) * real
        expected = learned(inputs, wanted, weights)
        for order in ORDERS:
            out, spans = of_ranks(op_of(op, **options), inputs, sequence, order, scale, recompute)
            told = f"{op}, {order}, T {length}"
            close(torch.where(spans.take(real), out - spans.take(wanted), 0), 0 * out, told, tolerance)
            for i, (mine, one) in enumerate(zip(learned(inputs, out, spans.take(weights)), expected, strict=True)):
                distributed.all_reduce(mine)
                close(mine, one, f"{told}, gradient {i}", tolerance)


def close(given, wanted, told, tolerance):
    torch.testing.assert_close(given, wanted, rtol=0, atol=tolerance, msg=lambda words: f"{told}: {words}")


def blind_queries_give_zeros(op):
    """Padding on the left sees nothing; nothing comes of it, and no gradient is less than a number."""
    sequence, inputs = sequence_of(16, real="ends"), inputs_of(16)
    for order in ORDERS:
        out, spans = of_ranks(op_of(op), inputs, sequence, order)
        blind = ~seen_by_each(sequence, None).any(-1)
        assert not out[spans.take(blind)].any()
        assert all(x.isfinite().all() for x in learned(inputs, out, spans.take(weights_of(inputs[0]))))


def sends_what_is_planned(order, length, steps, dtype="float32", **options):
    """Bytes forward and backward, to the byte: of `steps` times a block, as derived from the algorithm."""
    kind = getattr(torch, dtype)
    sequence, inputs = sequence_of(length, **options), inputs_of(length, dtype=kind, **options)
    with Sent() as forth:
        out, spans = of_ranks(op_of("ring", **options), inputs, sequence, order)
    with Sent() as back:
        learned(inputs, out, spans.take(weights_of(inputs[0])).to(kind))
    width = options.get("n_kv_heads", H) * N
    assert forth.by_name == ({"send": 2 * steps * B * (length // spans.ranks) * width * kind.itemsize} if steps else {})
    assert back.bytes == 2 * steps * B * (length // spans.ranks) * width * (kind.itemsize + 4)
    if steps == spans.ranks - 1:
        sizes = spans.ranks, B, length // spans.ranks, width, kind.itemsize
        assert forth.bytes == planned.forward_bytes(*sizes)
        assert back.bytes == planned.backward_bytes(*sizes)


def exchange_sends_each_token_once(order, length, n_kv_heads):
    """Ulysses: queries, keys and values there and the output back, but for what stays; gradients the other way."""
    inputs = inputs_of(length, n_kv_heads=n_kv_heads)
    with Sent() as forth:
        out, spans = of_ranks(op_of("ulysses", n_kv_heads=n_kv_heads), inputs, sequence_of(length), order)
    with Sent() as back:
        learned(inputs, out, spans.take(weights_of(inputs[0])))
    rows = B * (length // spans.ranks) * N * 8
    assert forth.bytes == back.bytes == all_to_all(rows * 2 * (H + n_kv_heads), spans.ranks)


def half_precision_is_as_near_as_on_one_rank(op, order):
    """In bfloat16, distances from the float64 values are one process's own, but for one more rounding, of parts."""
    exact, length = inputs_of(64), 64
    half = [None if x is None else x.detach().bfloat16().requires_grad_() for x in exact]
    exact = [None if x is None else x.detach().double().requires_grad_() for x in half]
    weights = weights_of(exact[0]).bfloat16()
    mask = seen_by_each(sequence_of(length), None)
    wanted = by_torch(*exact, mask, None)
    wanted = [wanted, *learned(exact, wanted, weights.double())]
    alone = op_of("sdpa")
    one, _ = alone(*half[:3], sequence_of(length).prepare(alone.needs()))
    one = [one, *learned(half, one, weights)]
    out, spans = of_ranks(op_of(op), half, sequence_of(length), order)
    mine = [out, *learned(half, out, spans.take(weights))]
    for i, (given, alone_given, right) in enumerate(zip(mine, one, wanted, strict=True)):
        given = given.double().detach()
        if i:
            distributed.all_reduce(given)
        else:
            right, alone_given = spans.take(right), spans.take(alone_given)
        assert given.dtype == torch.float64
        far, allowed = ((x.double() - right).square().mean().sqrt() for x in (given, alone_given))
        assert far <= 1.5 * allowed, f"{i}: {far:.2e} where one process is {allowed:.2e} from it"


def keeps_its_own_tokens_alone(order):
    """For backward: queries, keys, values and output of its tokens, and a number a query and head."""
    inputs, sizes = inputs_of(32, n_kv_heads=2), []
    own = sequence_of(32).shared_out(group(), order)
    op = op_of("ring", n_kv_heads=2)
    own.prepare(op.needs())
    q, k, v = (own.spans.take(x) for x in inputs[:3])
    with torch.autograd.graph.saved_tensors_hooks(lambda x: sizes.append(x.numel()) or x, lambda x: x):
        op(q, k, v, own)
    tokens = B * 32 // own.spans.ranks
    assert sorted(sizes) == sorted([tokens * H * N] * 2 + [tokens * 2 * N] * 2 + [tokens * H])


def autocast_decides_what_is_sent(op):
    """Float32 tensors under autocast travel in bfloat16, in which attention then computes."""
    inputs = inputs_of(32, dtype=torch.float32)
    with Sent() as half, torch.autocast("cpu", torch.bfloat16):
        out, spans = of_ranks(op_of(op), inputs, sequence_of(32), "zigzag")
    with Sent() as whole:
        wanted, _ = of_ranks(op_of(op), inputs, sequence_of(32), "zigzag")
    assert (out.dtype, wanted.dtype) == (torch.bfloat16, torch.float32)
    assert 0 < 2 * half.bytes == whole.bytes
    torch.testing.assert_close(out.float(), wanted, rtol=0, atol=0.03)
    mine = learned(inputs, out, spans.take(weights_of(inputs[0])))
    assert all(x.dtype == torch.float32 for x in mine)
