"""What ranks do in the tests of scans over rows whose tokens they share out."""

import torch
from bakeoff.interfaces import Sequence
from bakeoff.parts.spans import whole_row
from bakeoff_ssm.selective import selective_scan, selective_scan_naive
from torch import distributed

B, T, E, N = 2, 45, 6, 3


def selective_scan_equals_whole(order):
    """In float32, at steps that keep all and that forget all: finite, and what the exact loop gives."""
    generator = torch.Generator().manual_seed(3)
    draw = lambda *shape: torch.randn(*shape, generator=generator)  # noqa: E731
    steps = torch.tensor([1e-8, 1e-3, 1.0, 30.0])
    dt = steps[torch.randint(len(steps), (B, T, E), generator=generator)]
    A = -torch.arange(1.0, N + 1).expand(E, N)
    given = [draw(B, T, E), dt, A, draw(B, T, N), draw(B, T, N), draw(E)]
    place = torch.arange(T).expand(B, -1)
    documents = (place > torch.tensor([[4], [30]])).long() + (place > 37).long()
    for of_rows in (None, documents):
        whole = Sequence(torch.zeros(B, T, dtype=torch.long), documents=of_rows)
        spans = whole.shared_out(distributed.group.WORLD, order).spans
        exact, mine = ([t.to(kind).requires_grad_() for t in given] for kind in (torch.float64, torch.float32))
        y, _ = selective_scan_naive(*exact, segments=whole.segments)
        probe = draw(*y.shape)
        wanted = torch.autograd.grad((y * probe).sum(), exact)
        found, _ = selective_scan(*(spans.take(t) if t.ndim == 3 else t for t in mine), spans=spans)
        close(whole_row(found.detach(), spans), y)
        for grad, expected in zip(torch.autograd.grad((found * spans.take(probe)).sum(), mine), wanted, strict=True):
            total = grad.contiguous()
            distributed.all_reduce(total)
            close(total, expected)


def close(found, expected):
    assert found.isfinite().all()
    assert (found - expected).norm() <= 1e-4 * expected.norm()
