"""Feed-forwards against transformers' classes with copied weights, and their published widths."""

from functools import partial

import pytest
import torch
from bakeoff.interfaces import LayerContext, Sequence
from bakeoff.interfaces.context import SharedParts
from bakeoff.interfaces.init import initialise
from bakeoff.parts.activations import ACTIVATIONS, activation
from bakeoff.parts.attention.mixer import Attention
from bakeoff.parts.feed_forwards.gated_mlp import GatedMLP, gated_width
from bakeoff.parts.feed_forwards.mlp import MLP
from bakeoff.parts.linear import Embedding
from bakeoff.parts.norms import RMSNorm
from bakeoff.parts.positions.t5 import T5Position
from torch import nn


def context(d_model=16):
    return LayerContext(d_model=d_model, vocab_size=11, max_length=8)


def run(part, x):
    return part(x, Sequence(torch.zeros(x.shape[:2], dtype=torch.long))).y


def compare(ours, theirs, x):
    mine, other = x.clone().requires_grad_(), x.clone().requires_grad_()
    a, b = run(ours, mine), theirs(other)
    torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-6)
    a.square().sum().backward()
    b.square().sum().backward()
    torch.testing.assert_close(mine.grad, other.grad, rtol=1e-4, atol=1e-5)


def test_llama_mlp():
    from transformers import LlamaConfig
    from transformers.models.llama.modeling_llama import LlamaMLP

    torch.manual_seed(0)
    theirs = LlamaMLP(LlamaConfig(hidden_size=16, intermediate_size=24, num_attention_heads=4))
    ours = GatedMLP(context(), width=24)
    ours.gate.weight, ours.up.weight, ours.down.weight = (
        theirs.gate_proj.weight, theirs.up_proj.weight, theirs.down_proj.weight,
    )  # fmt: skip
    compare(ours, theirs, torch.randn(2, 5, 16))


def test_gpt2_mlp():
    from transformers import GPT2Config
    from transformers.models.gpt2.modeling_gpt2 import GPT2MLP

    torch.manual_seed(0)
    theirs = GPT2MLP(64, GPT2Config(n_embd=16, resid_pdrop=0.0))
    ours = MLP(context(), width=64, activation="gelu_tanh", bias=True)
    with torch.no_grad():
        ours.up.weight.copy_(theirs.c_fc.weight.t())
        ours.up.bias.copy_(theirs.c_fc.bias)
        ours.down.weight.copy_(theirs.c_proj.weight.t())
        ours.down.bias.copy_(theirs.c_proj.bias)
    compare(ours, theirs, torch.randn(2, 5, 16))


def test_t5_gated_mlp():
    from transformers import T5Config
    from transformers.models.t5.modeling_t5 import T5DenseGatedActDense

    torch.manual_seed(0)
    config = T5Config(d_model=16, d_ff=24, feed_forward_proj="gated-gelu", dropout_rate=0.0)
    theirs = T5DenseGatedActDense(config)
    ours = GatedMLP(context(), width=24, activation="gelu_tanh")
    ours.gate.weight, ours.up.weight, ours.down.weight = theirs.wi_0.weight, theirs.wi_1.weight, theirs.wo.weight
    compare(ours, theirs, torch.randn(2, 5, 16))


def test_gemma_mlp():
    from transformers import Gemma2Config
    from transformers.models.gemma2.modeling_gemma2 import Gemma2MLP

    torch.manual_seed(0)
    theirs = Gemma2MLP(Gemma2Config(hidden_size=16, intermediate_size=24, num_attention_heads=4))
    ours = GatedMLP(context(), width=24, activation="gelu_tanh")
    ours.gate.weight, ours.up.weight, ours.down.weight = (
        theirs.gate_proj.weight, theirs.up_proj.weight, theirs.down_proj.weight,
    )  # fmt: skip
    compare(ours, theirs, torch.randn(2, 5, 16))


@pytest.mark.parametrize(("d_model", "width"), [(4096, 11008), (5120, 13824), (6656, 17920), (8192, 22016)])
def test_gated_width_follows_llama(d_model, width):
    assert gated_width(d_model, 256) == width


@pytest.mark.parametrize("feed_forward", [partial(MLP, width=3072), partial(GatedMLP, width=2048)])
def test_t5_base_has_its_published_parameters_gated_or_not(feed_forward):
    place = context(768).child(n_heads=12)
    with torch.device("meta"):
        t5 = nn.ModuleList([Embedding(32128, 768)])  # the readout is tied to it
        for attentions in (1, 2):  # of the encoder and the decoder
            for _ in range(12):
                t5.extend(Attention(place, n_heads=12) for _ in range(attentions))
                t5.append(feed_forward(place))
                t5.extend(RMSNorm(place) for _ in range(attentions + 1))
            t5.extend([RMSNorm(place), T5Position(place.child(parts=SharedParts())).table.module])
    assert sum(p.numel() for p in t5.parameters()) == 222_903_552


def test_a_matrix_of_gpt3_takes_2304_mebibytes():
    with torch.device("meta"):
        assert MLP(context(12288)).up.weight.nbytes == 2304 * 2**20


def test_bilinear_has_no_nonlinearity():
    part = GatedMLP(context(), width=8, activation="identity").double()
    initialise(part, seed=0)
    x = torch.randn(1, 3, 16, dtype=torch.float64)
    torch.testing.assert_close(run(part, 2 * x), 4 * run(part, x), rtol=1e-12, atol=1e-12)


def test_unknown_activation_lists_the_known():
    with pytest.raises(ValueError, match=r"swiglu.*squared_relu"):
        activation("swiglu")


def test_squared_relu():
    assert ACTIVATIONS["squared_relu"](torch.tensor([-2.0, 3.0])).tolist() == [0.0, 9.0]
