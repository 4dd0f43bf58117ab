import pytest
import torch
from bakeoff.errors import UserError
from bakeoff.interfaces import LayerContext, Past, Sequence
from bakeoff.parts.attention.functional import Scoring, attend_explicitly
from bakeoff.parts.attention.masks import VisibleKeys
from bakeoff.parts.needs import gather
from bakeoff_blockwise import Blockwise
from torch.utils._python_dispatch import TorchDispatchMode

T = 23
DOCUMENTS = torch.tensor([[0] * 9 + [1] * 14, [0] * 1 + [1] * 2 + [5] * 20])
REAL = torch.ones(2, T, dtype=torch.bool)
REAL[0, :8], REAL[1, 5:19] = False, False


def op(chunk, window=None, soft_cap=None):
    return Blockwise(
        LayerContext(d_model=16, vocab_size=8, max_length=64, window=window, soft_cap=soft_cap), chunk=chunk
    )


def past(held, slots, real=None):
    empty = Past(2, 40, slots=slots)
    return empty.advance(Sequence(torch.zeros(2, held, dtype=torch.long), past=empty, real=real))


def sequences():
    tokens = torch.zeros(2, T, dtype=torch.long)
    gaps = torch.ones(2, 7, dtype=torch.bool)
    gaps[1, :3] = False
    return {
        "causal": Sequence(tokens),
        "bidirectional": Sequence(tokens, visibility="bidirectional"),
        "prefix": Sequence(tokens, visibility="prefix", prefix=torch.tensor([[4], [11]]).expand(2, T)),
        "documents": Sequence(tokens, documents=DOCUMENTS),
        "padding": Sequence(tokens, real=REAL),
        "all": Sequence(tokens, documents=DOCUMENTS, real=REAL, visibility="bidirectional"),
        "after a past": Sequence(tokens, past=past(7, slots=False)),
        "after slots": Sequence(tokens, past=past(7, slots=True)),
        "after ragged slots": Sequence(tokens, past=past(7, slots=True, real=gaps)),
        "after ragged appended": Sequence(tokens, real=REAL, past=past(7, slots=False, real=gaps)),
        "one token": Sequence(tokens[:, :1], past=past(7, slots=True)),
    }


def given(sequence, kind, rolling=False):
    torch.manual_seed(0)
    queries, keys = sequence.length, sequence.entries().index.shape[1]
    double = {"dtype": torch.float64, "requires_grad": True}
    tensors = [torch.randn(2, n, heads, 8, **double) for n, heads in ((queries, 4), (keys, 2), (keys, 2))]
    more = {"bias": torch.randn(1, 4, queries, keys, **double), "sinks": torch.randn(4, **double)}
    return tensors, {name: more[name] for name in kind.split() if name in more}


@pytest.mark.parametrize("chunk", [1, 7, 64])
@pytest.mark.parametrize("kind", ["", "bias", "sinks", "soft_cap"])
@pytest.mark.parametrize("window", [None, 5])
@pytest.mark.parametrize("name", sequences())
def test_blocks_are_exact(name, window, kind, chunk):
    sequence = sequences()[name]
    made = op(chunk, window, 1.5 if "soft_cap" in kind else None)
    tensors, more = given(sequence, kind)
    out, total = made(*tensors, sequence.prepare(gather(made)), **more)
    mask = VisibleKeys(window).derive(sequence)
    expected, correct = attend_explicitly(
        *tensors, mask, Scoring(None, more.get("bias"), made.soft_cap, more.get("sinks"))
    )
    real = torch.ones(2, sequence.length, dtype=torch.bool) if sequence.real is None else sequence.real
    torch.testing.assert_close(out[real], expected[real], atol=1e-12, rtol=0)
    torch.testing.assert_close(total.mT[real], correct.mT[real], atol=1e-12, rtol=0)
    weights, inputs = torch.randn_like(out) * real[..., None, None], [*tensors, *more.values()]
    ours, theirs = (torch.autograd.grad((x * weights).sum(), inputs) for x in (out, expected))
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one, other, atol=1e-12, rtol=1e-12)


@pytest.mark.parametrize("scoring", ["", "soft_cap"])
@pytest.mark.parametrize("name", ["causal", "documents", "padding", "bidirectional"])
def test_no_tensor_holds_a_number_per_query_and_key(name, scoring):
    class Largest(TorchDispatchMode):
        size = 0

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            for tensor in result if isinstance(result, (tuple, list)) else (result,):
                if isinstance(tensor, torch.Tensor):
                    self.size = max(self.size, tensor.untyped_storage().nbytes())
            return result

    length, chunk = 1536, 64
    documents = torch.arange(length)[None] // 300 if name == "documents" else None
    real = torch.arange(length)[None] < 2000 if name == "padding" else None
    visibility = "bidirectional" if name == "bidirectional" else "causal"
    tensors = [torch.randn(1, length, 1, 8, requires_grad=True) for _ in range(3)]
    made = op(chunk, soft_cap=2.0 if scoring else None)
    with Largest() as largest:
        tokens = torch.zeros(1, length, dtype=torch.long)
        sequence = Sequence(tokens, documents=documents, real=real, visibility=visibility).prepare(gather(made))
        made(*tensors, sequence)[0].sum().backward()
    assert largest.size < length * length  # bytes of a mask


def test_what_a_window_hides_is_not_computed():
    made, sequence = op(8, window=8), Sequence(torch.zeros(1, 64, dtype=torch.long))
    q, k, v = (torch.randn(1, 64, 1, 4) for _ in range(3))
    k[:, :40] = v[:, :40] = torch.nan
    out, _ = made(q, k, v, sequence.prepare(gather(made)))
    assert out[:, 48:].isfinite().all()


def test_bfloat16_is_as_near_as_the_kernel():
    made, sequence = op(16), Sequence(torch.zeros(2, 96, dtype=torch.long))
    tensors = [torch.randn(2, 96, 2, 8, dtype=torch.bfloat16, requires_grad=True) for _ in range(3)]
    exact = [x.detach().double().requires_grad_() for x in tensors]
    out, total = made(*tensors, sequence.prepare(gather(made)))
    expected, _ = attend_explicitly(*exact, VisibleKeys(None).derive(sequence), Scoring())
    assert out.dtype == torch.bfloat16
    assert total.dtype == torch.float32
    torch.testing.assert_close(out.double(), expected, atol=0.02, rtol=0.02)
    ours, theirs = torch.autograd.grad(out.sum(), tensors), torch.autograd.grad(expected.sum(), exact)
    for one, other in zip(ours, theirs, strict=True):
        torch.testing.assert_close(one.double(), other, atol=0.05, rtol=0.05)


def test_a_chunk_of_nothing_is_one_error():
    with pytest.raises(UserError, match="chunk is 0; it must be at least 1"):
        op(0)
