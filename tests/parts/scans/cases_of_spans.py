"""What ranks do in the tests of scans over rows whose tokens they share out: each beside the loop over whole rows."""

import torch
from bakeoff.interfaces import Sequence
from bakeoff.parts.scans.elementwise import linear_scan, linear_scan_naive
from bakeoff.parts.scans.scalar_decay import scalar_decay, scalar_decay_naive
from bakeoff.parts.spans import relay, whole_row
from torch import distributed

B, T, H, P, N = 2, 45, 3, 4, 5
STRENGTHS = (-1e-8, -1e-3, -1.0, -20.0, -1e3)


def elementwise_equals_whole(order):
    draw = drawn()
    equal(linear_scan, linear_scan_naive, [draw(mixed_decays(draw, B, T, N)), draw(B, T, N)], order)


def scalar_decay_equals_whole(order, shared):
    draw = drawn()
    G = 1 if shared else H
    given = [draw(B, T, G, N), draw(B, T, G, N), draw(B, T, H, P), draw(mixed_decays(draw, B, T, H))]
    equal(scalar_decay, scalar_decay_naive, given, order, chunk=8)


def constant_decay_equals_whole(order):
    """One decay a head for all tokens."""
    draw = drawn()
    given = [draw(B, T, H, N), draw(B, T, H, N), draw(B, T, H, P), draw(torch.tensor([-1e-3, -0.1, -3.0]))]
    equal(scalar_decay, scalar_decay_naive, given, order, chunk=8)


def letters_arrive_in_order(order, reverse):
    """What spans tell is followed from one end of the row to the other."""
    sequence = Sequence(torch.zeros(1, 9, dtype=torch.long)).shared_out(distributed.group.WORLD, order)
    spans = sequence.spans
    own = [(torch.tensor([float(number + 1)]),) for number in spans.own]
    found = relay(own, lambda state, told: 10 * state + told[0], torch.zeros(1), spans, reverse=reverse)
    digits = "".join(str(number + 1) for number in range(spans.count))
    for number, state in zip(spans.own, found, strict=True):
        passed = digits[:number:-1] if reverse else digits[:number]
        assert float(state) == float(passed or 0), (number, float(state))


def drawn():
    generator = torch.Generator().manual_seed(7)

    def draw(*shape):
        if isinstance(shape[0], torch.Tensor):
            return shape[0].float().requires_grad_()
        return torch.randn(*shape, generator=generator).requires_grad_()

    draw.generator = generator
    return draw


def mixed_decays(draw, *shape):
    return torch.tensor(STRENGTHS)[torch.randint(len(STRENGTHS), shape, generator=draw.generator)]


def equal(scan, naive, given, order, **named):
    """In float32, with and without packed documents: outputs and gradients are finite, and those of the exact loop."""
    place = torch.arange(T).expand(B, -1)
    for documents in (None, (place > torch.tensor([[4], [30]])).long() + (place > 37).long()):
        whole = Sequence(torch.zeros(B, T, dtype=torch.long), documents=documents)
        spans = whole.shared_out(distributed.group.WORLD, order).spans
        exact = [t.detach().double().requires_grad_() for t in given]
        y, _ = naive(*exact, segments=whole.segments)
        probe = torch.randn(y.shape, generator=torch.Generator().manual_seed(9))
        wanted = torch.autograd.grad((y * probe).sum(), exact)
        mine = [t.detach().clone().requires_grad_() for t in given]
        here = [spans.take(t) if t.ndim > 1 else t for t in mine]
        found, _ = scan(*here, spans=spans, **named)
        grads = torch.autograd.grad((found * spans.take(probe)).sum(), mine)
        close(whole_row(found.detach(), spans), y)
        for grad, expected in zip(grads, wanted, strict=True):
            total = grad.contiguous()
            distributed.all_reduce(total)
            close(total, expected)


def close(found, expected):
    assert found.isfinite().all()
    assert (found - expected).norm() <= 1e-4 * expected.norm()
