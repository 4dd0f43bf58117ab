"""A Llama of `transformers` beside a model of blockwise transformers: the same weights, outputs and gradients."""

import bakeoff
import pytest
import torch
from bakeoff.interfaces import Sequence

transformers = pytest.importorskip("transformers")

D, T, V = 32, 45, 19


def llama():
    config = transformers.LlamaConfig(
        hidden_size=D, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2,
        vocab_size=V, max_position_embeddings=64, tie_word_embeddings=False, attn_implementation="eager",
    )  # fmt: skip
    torch.manual_seed(0)
    model = transformers.LlamaForCausalLM(config).double()
    for parameter in model.parameters():
        parameter.data.normal_(0, 0.3).add_(1.0 if parameter.ndim == 1 else 0.0)
    return model


def ours(chunk):
    mixer = {"use": "attention", "n_heads": 4, "n_kv_heads": 2, "position": {"use": "rope"}}
    layer = {"use": "blockwise_transformer", "chunk": chunk, "mixer": {**mixer, "op": {"use": "blockwise", "chunk": 5}}}
    layer |= {"feed_forward": {"use": "gated_mlp", "width": 40}, "norm": {"use": "rms_norm", "eps": 1e-6}}
    blocks = {"d_model": D, "depth": 2, "pattern": ["layer"], "blocks": {"layer": layer}, "tied_embedding": False}
    data = {"corpus": {"use": "python_source"}, "tokenizer": {"use": "byte"}, "length": T, "batch_tokens": T}
    recipe = bakeoff.recipe({"model": blocks, "data": data, "trainer": {"max_steps": 1}})
    return recipe.build("model", vocab_size=V, max_length=64).initialise(0).double()


def pairs(model, theirs):
    """Our parameters, each beside the one of the Llama that is the same."""
    names = {
        "mixer.query": "self_attn.q_proj", "mixer.key": "self_attn.k_proj", "mixer.value": "self_attn.v_proj",
        "mixer.output": "self_attn.o_proj", "feed_forward.gate": "mlp.gate_proj", "feed_forward.up": "mlp.up_proj",
        "feed_forward.down": "mlp.down_proj", "mixer_norm": "input_layernorm",
        "feed_forward_norm": "post_attention_layernorm",
    }  # fmt: skip
    whole = {"embed_tokens": theirs.model.embed_tokens, "norm": theirs.model.norm, "lm_head": theirs.lm_head}
    known = {}
    for block, layer in zip(model.backbone.layers, theirs.model.layers, strict=True):
        for name, other in names.items():
            known[block.get_submodule(name).weight] = layer.get_submodule(other).weight
    rest = [p for p in model.parameters() if p not in known]
    assert len(rest) == len(whole)
    tables = [whole["embed_tokens"].weight, whole["norm"].weight, whole["lm_head"].weight]
    for parameter in rest:
        at = next(i for i, table in enumerate(tables) if table.shape == parameter.shape)
        known[parameter] = tables.pop(at)
    return known


@pytest.mark.parametrize("chunk", [7, 64])
def test_a_model_of_blocks_is_a_llama(chunk):
    theirs, model = llama(), ours(chunk)
    known = pairs(model, theirs)
    for own, other in known.items():
        own.data.copy_(other.data)
    tokens = torch.randint(V, (2, T))
    hidden = model.backbone(Sequence(tokens)).y
    logits, expected = model.head(hidden), theirs(tokens).logits
    torch.testing.assert_close(logits, expected, atol=1e-5, rtol=1e-5)  # rotations are of float32 in both
    weights = torch.randn_like(expected)
    found = torch.autograd.grad((logits * weights).sum(), list(known))
    correct = torch.autograd.grad((expected * weights).sum(), list(known.values()))
    for one, other in zip(found, correct, strict=True):
        torch.testing.assert_close(one, other, atol=1e-4, rtol=1e-4)
