"""`ChunkedCrossAttention` of retro-pytorch with the same weights: equal outputs and gradients."""

import importlib
import importlib.util
import sys
import types

import pytest
import torch
from bakeoff.interfaces import Neighbours, Sequence
from bakeoff.interfaces.neighbours import NEIGHBOURS
from bakeoff.parts.chunks import ends
from bakeoff_retro.cross_attention import ENCODED

from tests.plugins.bakeoff_retro.layers_of_retro import D, K, M, context, numbers, retro, tokens

HEADS, WIDTH = 2, 8


@pytest.fixture(scope="module")
def theirs():
    """Their attention; the package's own `__init__` wants libraries for searching, which it has no need of."""
    spec = importlib.util.find_spec("retro_pytorch")
    if spec is None:
        pytest.skip("needs retro-pytorch: pip install --no-deps retro-pytorch einops")
    package, retrieval = types.ModuleType("retro_pytorch"), types.ModuleType("retro_pytorch.retrieval")
    package.__path__ = list(spec.submodule_search_locations)
    retrieval.BERT_VOCAB_SIZE = 28996
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, "retro_pytorch", package)
        patch.setitem(sys.modules, "retro_pytorch.retrieval", retrieval)
        patch.delitem(sys.modules, "retro_pytorch.retro_pytorch", raising=False)
        module = importlib.import_module("retro_pytorch.retro_pytorch")
        yield module.ChunkedCrossAttention
        patch.delitem(sys.modules, "retro_pytorch.retro_pytorch")


def alike(theirs):
    """Ours, a later layer, which reads what was encoded, and theirs; no distances, and a null key of zeros."""
    place = context()
    cross = [retro(place, n_heads=HEADS).double() for _ in range(2)][1].cross
    other = theirs(M, dim=D, context_dim=D, heads=HEADS, dim_head=WIDTH).double()
    attention = other.cross_attn
    pairs = {"query": attention.to_q, "key": attention.to_k, "value": attention.to_v, "output": attention.to_out}
    with torch.no_grad():
        cross.attention.logits.weight.weight.zero_()
        attention.null_k.zero_()
        attention.null_v.zero_()
        attention.to_out.bias.zero_()
        for seed, (name, layer) in enumerate(pairs.items()):
            layer.weight.copy_(numbers(*layer.weight.shape, seed=seed) / 4)
            getattr(cross.attention, name).weight.copy_(layer.weight)
    return cross, other, [(getattr(cross.attention, name).weight, layer.weight) for name, layer in pairs.items()]


@pytest.mark.parametrize("T", [3, 4, 11, 16])
@pytest.mark.parametrize("masked", [False, True])
def test_outputs_and_gradients_are_those_of_retro_pytorch(theirs, T, masked):
    """Their softmax has one more logit, of 0, whose value is 0: so has ours, by a first token of zeros that they do
    not see."""
    cross, other, weights = alike(theirs)
    C, L = T // M, 2 * M
    x = numbers(2, T, D, seed=5)
    encoded = numbers(2, C, K, L, D, seed=6)
    encoded[:, :, 0, 0] = 0
    real = torch.ones(2, C, K, L, dtype=torch.bool)
    if masked:
        real[0, :, 1, M + 1 :] = False
        real[1, :1] = False
        real[:, :, 0, 0] = True
    seen = real.clone()
    seen[:, :, 0, 0] = False

    sequence = Sequence(tokens(2, T))
    sequence.memory[NEIGHBOURS] = Neighbours(torch.zeros_like(real).long(), real, ends(sequence, M).last)
    ours_in = [t.clone().requires_grad_() for t in (x, encoded)]
    sequence.memory[ENCODED] = ours_in[1].flatten(2, 3)
    got = cross(ours_in[0], sequence.prepare(cross.needs())).y

    theirs_in = [t.clone().requires_grad_() for t in (x, encoded)]
    still = tuple(torch.zeros(1, 1, n, WIDTH, dtype=torch.float64) for n in (M, L))  # rotations by nothing
    want = other(theirs_in[0], context=theirs_in[1], context_mask=seen, pos_emb=still)
    assert torch.allclose(got, want, atol=1e-12)
    if C:
        pulled = [numbers(2, T, D, seed=7)] * 2
        torch.autograd.backward([got, want], pulled)
        assert torch.allclose(ours_in[0].grad, theirs_in[0].grad, atol=1e-12)
        assert torch.allclose(ours_in[1].grad[seen], theirs_in[1].grad[seen], atol=1e-12)
        for one, same in weights:
            assert float(one.grad.abs().max()) > 1e-3
            assert torch.allclose(one.grad, same.grad, atol=1e-12)
    else:
        assert not want.any()
