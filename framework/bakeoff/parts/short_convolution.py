"""A short causal convolution, channel by channel, with the state that continues it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bakeoff.interfaces import init
from bakeoff.interfaces.component import Capabilities
from bakeoff.interfaces.context import LayerContext
from bakeoff.interfaces.part import StatefulPart
from bakeoff.interfaces.result import Result
from bakeoff.interfaces.sequence import Sequence
from bakeoff.interfaces.spans import Spans
from bakeoff.parts.activations import ActivationName, activation
from bakeoff.parts.kernels import Choice, choose
from bakeoff.parts.spans import before_each

if TYPE_CHECKING:
    from torch.distributed.device_mesh import DeviceMesh


class ShortConvolution(StatefulPart):
    """`y_t = f(b + sum_k w_k x_(t-k))` over the last `width` real tokens of t's document, each channel by itself.

    The state is the last `width - 1` real inputs, (B, width - 1, channels); zeros stand where there were none. Ranks
    share out its channels as the part around it plans.

    Parameters
    ----------
    channels : C; inputs and outputs are (B, T, C).
    width : taps, the token itself included.
    bias : whether b is learned.
    activation : f.
    """

    capabilities = Capabilities(documents=True, padding=True, state=True, constant_state=True, context_parallel=True)
    roles = {"weight": "vector", "bias": "vector"}  # noqa: RUF012

    def __init__(
        self,
        context: LayerContext,
        *,
        channels: int,
        width: int = 4,
        bias: bool = True,
        activation: ActivationName = "identity",
    ):
        super().__init__(context)
        if width < 1:
            raise ValueError(f"width is {width}; a convolution has at least 1 tap")
        self.channels, self.width, self.activation = channels, width, activation
        self.weight = torch.nn.Parameter(torch.empty(channels, width))
        self.bias = torch.nn.Parameter(torch.empty(channels)) if bias else None
        self.convolve = _choice(channels, width)

    def narrow(self, ranks: DeviceMesh) -> None:
        """Count the channels that are left here."""
        self.channels = self.weight.shape[0]
        self.convolve = _choice(self.channels, self.width)

    def reset_parameters(self) -> None:
        """Uniform within 1/sqrt(width), the bias too."""
        bound = self.width**-0.5
        init.fill(self.weight, init.uniform(-bound, bound))
        if self.bias is not None:
            init.fill(self.bias, init.uniform(-bound, bound))

    def empty_state(self, batch: int, max_length: int, dtype: Any = torch.float32, device: Any = None) -> Tensor:
        """Zeros: taps before the first token see nothing."""
        return torch.zeros(batch, self.width - 1, self.channels, dtype=dtype, device=device)

    def forward(self, x: Tensor, sequence: Sequence, state: Tensor | None = None) -> Result:
        """Convolve `x` (B, T, C)."""
        if sequence.real is not None:
            x = x * sequence.real[:, :, None].to(x.dtype)
        weight, bias = self.weight.to(x.dtype), None if self.bias is None else self.bias.to(x.dtype)
        after: Tensor | None = None
        if sequence.spans is not None:
            y = self._along(x, weight, bias, sequence.spans)
        elif state is not None and sequence.length == 1 and sequence.real is None:
            y, after = convolution_step(x, weight, bias, state, sequence.segments)
        else:
            y = self.convolve(x, weight, bias, state, sequence.segments)
            after = None if state is None else next_tail(state, x, sequence.segments, sequence.real)
        return Result(activation(self.activation)(y), after)

    def naive(self, x: Tensor, sequence: Sequence, state: Tensor | None = None) -> Result:
        """The same, one token after the other."""
        if sequence.real is not None:
            x = x * sequence.real[:, :, None].to(x.dtype)
        y = short_convolution_naive(x, self.weight, self.bias, state, sequence.segments)
        after = None if state is None else next_tail(state, x, sequence.segments, sequence.real)
        return Result(activation(self.activation)(y), after)

    def _along(self, x: Tensor, weight: Tensor, bias: Tensor | None, spans: Spans) -> Tensor:
        """Of this rank's spans in one call, each behind the tokens before it that its taps see."""
        past = self.width - 1
        tails, pieces = before_each(x, past, spans), spans.split(x)
        joined = [t for both in zip(tails, pieces, strict=True) for t in both]
        segments = spans.whole.segments
        if segments is not None:
            bounds = [spans.bounds[number] for number in spans.own]
            at = torch.cat([torch.arange(start - past, stop, device=x.device) for start, stop in bounds])
            segments = segments[:, at.clamp_min(0)]
        y = self.convolve(torch.cat(joined, 1), weight, bias, None, segments)
        return torch.cat(y.split([t.shape[1] for t in joined], 1)[1::2], 1)

    def flops(self, queries: int, keys: int) -> int:
        """One multiply-add per tap, channel and token."""
        return 2 * self.width * self.channels * queries


def _choice(channels: int, width: int) -> Choice:
    return choose(
        "auto",
        part="short_convolution",
        torch=short_convolution,
        kernels="bakeoff.parts.short_convolution_kernels:short_convolution",
        package="causal_conv1d",
        limit=_limit(channels, width),
    )


def _limit(channels: int, width: int) -> str | None:
    """Why kernels do not take these sizes, if they do not."""
    if not 2 <= width <= 4:
        return f"width is {width}, not 2 to 4"
    return f"channels are {channels}, no multiple of 8" if channels % 8 else None


def short_convolution(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    tail: Tensor | None = None,
    segments: Tensor | None = None,
) -> Tensor:
    """Causal depthwise convolution of `x` (B, T, C) by `weight` (C, W), whose last column multiplies the token itself.

    `tail` (B, W - 1, C) are the inputs before `x`. A tap sees inputs of the same segment only: `segments` (B, T) counts
    documents that began in `x`, so that 0 is the document of the tail.
    """
    taps = weight.t().contiguous()
    if bias is None:
        bias = taps.new_zeros(taps.shape[1])
    if tail is None:
        return _Taps.apply(x, taps, bias, _same(segments, taps.shape[0], x.dtype))
    past = tail.shape[1]
    if segments is not None:
        segments = torch.nn.functional.pad(segments, (past, 0))
    joined = torch.cat([tail.to(x.dtype), x], 1)
    return _Taps.apply(joined, taps, bias, _same(segments, taps.shape[0], x.dtype))[:, past:]


def convolution_step(
    x: Tensor, weight: Tensor, bias: Tensor | None, tail: Tensor, segments: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """`short_convolution` of one real token, `x` (B, 1, C), and the tail after it."""
    if segments is not None:
        tail = tail * (segments == 0)[:, :, None].to(tail.dtype)
    seen = torch.cat([tail, x.to(tail.dtype)], 1)
    y = (seen.to(x.dtype) * weight.t()).sum(1, keepdim=True)
    return y if bias is None else y + bias, seen[:, 1:]


def next_tail(tail: Tensor, x: Tensor, segments: Tensor | None = None, real: Tensor | None = None) -> Tensor:
    """The last W - 1 inputs of `tail` (B, W - 1, C) followed by the real ones of `x`, zero before their document."""
    B, past, C = tail.shape
    if segments is None and real is None:
        joined = torch.cat([tail, x[:, -past:].to(tail.dtype)], 1) if past else tail
        return joined[:, joined.shape[1] - past :]
    T = x.shape[1]
    joined = torch.cat([tail, x.to(tail.dtype)], 1)
    end = torch.full((B,), T, device=x.device)
    if real is not None:
        place = torch.arange(1, T + 1, device=x.device)
        end = torch.where(real, place, 0).amax(1)
    at = end[:, None] + torch.arange(past, device=x.device)
    after = joined.gather(1, at[:, :, None].expand(-1, -1, C))
    if segments is not None:
        segment = torch.nn.functional.pad(segments, (past, 0)).gather(1, at)
        after = after * (segment == segment[:, -1:])[:, :, None].to(after.dtype)
    return after


def short_convolution_naive(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    tail: Tensor | None = None,
    segments: Tensor | None = None,
) -> Tensor:
    """What `short_convolution` computes, one token after the other; the products that `flops` counts."""
    B, T, C = x.shape
    W = weight.shape[1]
    before = x.new_zeros(B, W - 1, C) if tail is None else tail.to(x.dtype)
    joined = torch.cat([before, x], 1)
    segment = torch.nn.functional.pad(x.new_zeros(B, T).long() if segments is None else segments, (W - 1, 0))
    rows = []
    for t in range(T):
        seen = (segment[:, t : t + W] == segment[:, t + W - 1, None])[:, :, None]
        window = torch.where(seen, joined[:, t : t + W], 0)
        rows.append((window.permute(2, 0, 1) @ weight[:, :, None])[..., 0].t())  # a product for each channel
    y = torch.stack(rows, 1)
    return y if bias is None else y + bias


def _same(segments: Tensor | None, width: int, dtype: torch.dtype) -> list[Tensor] | None:
    """For each distance k from 1 on: 1 where token t and token t - k share a segment, (B, T - k, 1)."""
    if segments is None:
        return None
    pairs = [(segments[:, k:], segments[:, :-k]) for k in range(1, min(width, segments.shape[1]))]
    return [(late == early)[:, :, None].to(dtype) for late, early in pairs]


class _Taps(torch.autograd.Function):
    """Shifted multiply-adds over (B, T, C), where channels lie side by side, without padding or transposing."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, taps: Tensor, bias: Tensor, same: list[Tensor] | None) -> Tensor:
        ctx.save_for_backward(x, taps)
        ctx.same = same
        y = torch.addcmul(bias, x, taps[-1])
        for k in range(1, min(taps.shape[0], x.shape[1])):
            seen = x[:, :-k] if same is None else x[:, :-k] * same[k - 1]
            y[:, k:].addcmul_(seen, taps[-1 - k])
        return y

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, Tensor, Tensor, None]:
        (grad,) = grads
        x, taps = ctx.saved_tensors
        W = taps.shape[0]
        dx = grad * taps[-1]
        dtaps = [(x * grad).sum((0, 1))]
        for k in range(1, min(W, x.shape[1])):
            late = grad[:, k:] if ctx.same is None else grad[:, k:] * ctx.same[k - 1]
            dx[:, :-k].addcmul_(late, taps[-1 - k])
            dtaps.append((x[:, :-k] * late).sum((0, 1)))
        unseen = [torch.zeros_like(dtaps[0])] * (W - len(dtaps))
        return dx, torch.stack([*unseen, *reversed(dtaps)]), grad.sum((0, 1)), None
