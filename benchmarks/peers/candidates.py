"""Llama models of several libraries behind one small interface; each is imported only where it is asked for."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

import torch
from shapes import Shape
from torch import Tensor, nn
from torch.nn import functional as F


class Candidate(ABC):
    """One library's Llama with its optimizer."""

    model: nn.Module

    @abstractmethod
    def __init__(self, shape: Shape): ...

    @abstractmethod
    def loss(self, tokens: Tensor) -> Tensor:
        """Mean cross-entropy of the next token, from (B, T + 1) ids."""

    def compile(self) -> None:
        """Compile model and loss, in one graph where that is possible."""
        self.loss = torch.compile(self.loss)  # type: ignore[method-assign]

    def optimizer(self) -> torch.optim.Optimizer:
        """The fastest AdamW that there is."""
        return torch.optim.AdamW(self.model.parameters(), lr=1e-4, weight_decay=0.1, fused=True)

    def mean_nats(self, logits: Tensor, tokens: Tensor) -> Tensor:
        """Over flat logits, the form that torch computes fastest."""
        return F.cross_entropy(logits.flatten(0, 1), tokens[:, 1:].flatten())


class Ours(Candidate):
    """A recipe's model under its objective."""

    def __init__(self, shape: Shape):
        import bakeoff
        from bakeoff.parts.tokenizers.byte import ByteTokenizer

        mixer = {
            "use": "attention",
            "n_heads": shape.heads,
            "n_kv_heads": shape.kv_heads,
            "position": {"use": "rope"},
        }
        layer = {"use": "pre_norm", "mixer": mixer, "feed_forward": {"use": "gated_mlp", "width": shape.hidden}}
        model = {"d_model": shape.width, "depth": shape.depth, "pattern": ["layer"], "blocks": {"layer": layer}}
        recipe = bakeoff.recipe(
            {
                "model": {**model, "tied_embedding": False},
                "data": {
                    "corpus": {"use": "python_source"},
                    "tokenizer": {"use": "byte"},
                    "length": shape.length,
                    "batch_tokens": shape.batch * shape.length,
                },
                "trainer": {"max_steps": 1},
                "optimizer": {"use": "torch.optim.AdamW", "lr": 1e-4, "weight_decay": 0.1, "fused": True},
            }
        )
        longest = max(shape.length, shape.prompt + shape.new)
        self.model = recipe.build("model", vocab_size=shape.vocabulary, max_length=longest).initialise(0)
        self.objective = recipe.build("objective")
        self.make_optimizer = recipe.build("optimizer")
        self.tokenizer = ByteTokenizer()

    def loss(self, tokens: Tensor) -> Tensor:
        total, weight = self.objective(self.model, {"tokens": tokens})[0]["loss"]
        return total / weight

    def compile(self) -> None:
        """What `compile: true` does in a recipe."""
        from bakeoff.train.assembly import compile_blocks

        compile_blocks(self.model.backbone)

    def optimizer(self) -> torch.optim.Optimizer:
        from bakeoff.train.optimizers import build_optimizer

        return build_optimizer(self.make_optimizer, self.model)

    def generate(self, prompts: Tensor, new: int) -> Tensor:
        """`new` ids, greedily, for (B, T) ids: (B, new)."""
        from bakeoff.model.generate import complete

        done = complete(self.model, self.tokenizer, prompts.tolist(), max_new_tokens=new, end=[])
        return torch.tensor([each.tokens for each in done])


class Transformers(Candidate):
    """`transformers`, LlamaForCausalLM with torch's attention."""

    def __init__(self, shape: Shape):
        from transformers import LlamaConfig, LlamaForCausalLM

        config = LlamaConfig(
            vocab_size=shape.vocabulary,
            hidden_size=shape.width,
            intermediate_size=shape.hidden,
            num_hidden_layers=shape.depth,
            num_attention_heads=shape.heads,
            num_key_value_heads=shape.kv_heads,
            max_position_embeddings=max(shape.length, shape.prompt + shape.new),
            tie_word_embeddings=False,
            attn_implementation="sdpa",
            bos_token_id=None,
            eos_token_id=None,
            pad_token_id=None,
        )
        self.model = LlamaForCausalLM(config)

    def loss(self, tokens: Tensor) -> Tensor:
        return self.mean_nats(self.model(input_ids=tokens[:, :-1], use_cache=False).logits, tokens)

    def generate(self, prompts: Tensor, new: int) -> Tensor:
        seen = torch.ones_like(prompts)
        with torch.inference_mode():
            ids = self.model.generate(
                prompts, attention_mask=seen, max_new_tokens=new, do_sample=False, use_cache=True, pad_token_id=0
            )
        return ids[:, prompts.shape[1] :]


class LitGPT(Candidate):
    """`litgpt`, its GPT in Llama's configuration."""

    def __init__(self, shape: Shape):
        from litgpt import GPT, Config

        config = Config(
            block_size=max(shape.length, shape.prompt + shape.new),
            padded_vocab_size=shape.vocabulary,
            vocab_size=shape.vocabulary,
            n_layer=shape.depth,
            n_head=shape.heads,
            n_query_groups=shape.kv_heads,
            n_embd=shape.width,
            intermediate_size=shape.hidden,
            rotary_percentage=1.0,
            parallel_residual=False,
            bias=False,
            norm_class_name="RMSNorm",
            mlp_class_name="LLaMAMLP",
        )
        self.model: Any = GPT(config)
        self.model.apply(self.model._init_weights)

    def loss(self, tokens: Tensor) -> Tensor:
        return self.mean_nats(self.model(tokens[:, :-1]), tokens)


class LitGPTChunked(LitGPT):
    """`litgpt` with its head and loss in chunks of 128 tokens, which saves memory."""

    def loss(self, tokens: Tensor) -> Tensor:
        from litgpt.utils import chunked_cross_entropy

        logits = self.model(tokens[:, :-1], lm_head_chunk_size=128)
        return chunked_cross_entropy(logits, tokens[:, 1:], chunk_size=0)


class XTransformers(Candidate):
    """`x-transformers`, its decoder with Llama's options."""

    def __init__(self, shape: Shape):
        from x_transformers import Decoder, TransformerWrapper

        layers = Decoder(
            dim=shape.width,
            depth=shape.depth,
            heads=shape.heads,
            attn_dim_head=shape.head_width,
            attn_kv_heads=shape.kv_heads,
            attn_flash=True,
            rotary_pos_emb=True,
            rotary_emb_dim=shape.head_width,
            use_rmsnorm=True,
            ff_glu=True,
            ff_swish=True,
            ff_no_bias=True,
            ff_mult=shape.hidden / shape.width,
        )
        self.model = TransformerWrapper(
            num_tokens=shape.vocabulary, max_seq_len=shape.length, attn_layers=layers, use_abs_pos_emb=False
        )

    def loss(self, tokens: Tensor) -> Tensor:
        return self.mean_nats(self.model(tokens[:, :-1]), tokens)


CANDIDATES: dict[str, type[Candidate]] = {
    "bakeoff": Ours,
    "transformers": Transformers,
    "litgpt": LitGPT,
    "litgpt, chunked loss": LitGPTChunked,
    "x-transformers": XTransformers,
}
