"""Mixtures of experts: training, what more experts cost, and decoding; CPU time, of several threads wall time.

    OMP_NUM_THREADS=2 python benchmarks/mixtures.py training --threads 2    # beside dense models and transformers
    OMP_NUM_THREADS=1 python benchmarks/mixtures.py experts   # 8, 32 and 128 experts
    OMP_NUM_THREADS=1 python benchmarks/mixtures.py decode    # one row, beside transformers, and what is read

A Llama shape of d 256, 4 layers, 4 heads on 2, V 8192, T 256, batch 8, float32, untied; two of E experts of width 352
stand beside one dense feed-forward of 704. Candidates take turns in rotating order, each in a process of its own;
medians of the rounds, ratios as medians over rounds.
"""

from __future__ import annotations

import argparse
import statistics
from functools import partial
from typing import Any

import torch
from mixers.race import Build, Candidate, Timed, decoding, race, training
from torch import Tensor
from torch.nn import functional as F

WIDTH, DEPTH, VOCABULARY, LENGTH, BATCH, HIDDEN = 256, 4, 8192, 256, 8, 704
#: How `transformers` computes its experts; a third way copies the weights of every token's experts.
IMPLEMENTATIONS = ("grouped_mm", "eager")


def mixture(n_experts: int) -> dict[str, Any]:
    """The feed-forward of so many experts, two a token."""
    return {
        "use": "mixture_of_experts",
        "n_experts": n_experts,
        "expert": {"use": "gated_mlp", "width": HIDDEN // 2},
        "router": {"use": "top_k", "k": 2},
        "balance": [{"use": "load_balance", "coefficient": 0.01}],
    }


def ours(feed_forward: dict[str, Any]) -> Candidate:
    """A recipe's model with this feed-forward."""
    import bakeoff
    from bakeoff.model.generate import complete
    from bakeoff.parts.tokenizers.byte import ByteTokenizer

    mixer = {"use": "attention", "n_heads": 4, "n_kv_heads": 2, "position": {"use": "rope"}}
    layer = {"use": "pre_norm", "mixer": mixer, "feed_forward": feed_forward}
    model = {
        "d_model": WIDTH,
        "depth": DEPTH,
        "tied_embedding": False,
        "pattern": ["layer"],
        "blocks": {"layer": layer},
    }
    data = {"corpus": {"use": "python_source"}, "tokenizer": {"use": "byte"}, "length": LENGTH, "batch_tokens": LENGTH}
    recipe = bakeoff.recipe({"model": model, "data": data, "trainer": {"max_steps": 1}})
    built = recipe.build("model", vocab_size=VOCABULARY, max_length=512).initialise(0)
    objective, tokenizer = recipe.build("objective"), ByteTokenizer()

    def loss(ids: Tensor) -> Tensor:
        terms = objective(built, {"tokens": ids})[0].values()
        return sum((total / weight for total, weight in terms), torch.zeros(()))

    return Candidate(
        built, loss, lambda rows, new: complete(built, tokenizer, rows.tolist(), max_new_tokens=new, end=[])
    )


def theirs(name: str, implementation: str | None = None, **config: Any) -> Candidate:
    """A class of `transformers` of the same shape, with its loss over flat logits, the fastest form."""
    import transformers

    transformers.utils.logging.set_verbosity_error()
    held = getattr(transformers, f"{name}Config")(
        vocab_size=VOCABULARY, hidden_size=WIDTH, num_hidden_layers=DEPTH, num_attention_heads=4, num_key_value_heads=2,
        tie_word_embeddings=False, pad_token_id=0, bos_token_id=0, eos_token_id=None, **config,
    )  # fmt: skip
    more = {} if implementation is None else {"experts_implementation": implementation}
    model = getattr(transformers, f"{name}ForCausalLM")._from_config(held, **more)

    def loss(ids: Tensor) -> Tensor:
        result = model(input_ids=ids[:, :-1], use_cache=False)
        return F.cross_entropy(result.logits.flatten(0, 1), ids[:, 1:].flatten())

    def generate(prompts: Tensor, new: int) -> Any:
        seen = torch.ones_like(prompts)
        with torch.inference_mode():
            return model.generate(
                prompts, attention_mask=seen, max_new_tokens=new, do_sample=False, use_cache=True, pad_token_id=0
            )

    return Candidate(model, loss, generate)


def candidates() -> dict[str, Build]:
    """Dense and mixed, ours and theirs."""
    of_eight = {"num_local_experts": 8, "num_experts_per_tok": 2, "intermediate_size": HIDDEN // 2}
    mixtral = {f"transformers Mixtral, {how}": partial(theirs, "Mixtral", how, **of_eight) for how in IMPLEMENTATIONS}
    return {
        "bakeoff, dense": partial(ours, {"use": "gated_mlp", "width": HIDDEN}),
        "bakeoff, 2 of 8 experts": partial(ours, mixture(8)),
        "transformers Llama": partial(theirs, "Llama", intermediate_size=HIDDEN),
        **mixtral,
    }


def ratio(other: Timed, own: Timed) -> str:
    """How many times as long the other takes, in the median round."""
    return f"{statistics.median(a / b for a, b in zip(other.seconds, own.seconds, strict=True)):.2f}"


def table(*columns: str) -> None:
    """The head of a table; the first column is words."""
    print(f"\n| {' | '.join(columns)} |\n|---|{'---:|' * (len(columns) - 1)}")


def row(*values: Any) -> None:
    """A line of it."""
    print(f"| {' | '.join(str(value) for value in values)} |", flush=True)


def train(arguments: argparse.Namespace) -> None:
    """Training steps, beside the dense model of the same library."""
    timed = race(candidates(), training(BATCH, LENGTH, VOCABULARY), arguments.rounds, arguments.threads)
    dense = {"bakeoff": timed["bakeoff, dense"], "transformers": timed["transformers Llama"]}
    table("training", "parameters", "tokens/s", "of its own dense", "of our dense", "peak MiB")
    for name, found in timed.items():
        own = dense[name.partition(",")[0].partition(" ")[0]]
        rate = f"{BATCH * LENGTH / found.median:,.0f}"
        row(name, f"{found.parameters:,}", rate, ratio(own, found), ratio(dense["bakeoff"], found), f"{found.peak:.0f}")


def experts(arguments: argparse.Namespace) -> None:
    """Forward passes and memory of ever more experts, two a token."""

    def forward(candidate: Candidate) -> Any:
        ids = torch.randint(VOCABULARY, (BATCH, LENGTH + 1))

        def run() -> None:
            with torch.no_grad():
                candidate.loss(ids)

        return run

    builds: dict[str, Build] = {"dense": candidates()["bakeoff, dense"]}
    builds |= {str(n): partial(ours, mixture(n)) for n in (8, 32, 128)}
    timed, trained = race(builds, forward, arguments.rounds), race(builds, training(BATCH, LENGTH, VOCABULARY), 1)
    table("experts", "parameters", "forward, ms", "of dense", "training peak, MiB", "MiB an expert and layer")
    for name, found in timed.items():
        peak, more = trained[name].peak, "–"
        if name not in ("dense", "8"):
            more = f"{(peak - trained['8'].peak) / (int(name) - 8) / DEPTH:.2f}"
        spent = f"{1e3 * found.median:.0f}"
        row(name, f"{found.parameters:,}", spent, ratio(found, timed["dense"]), f"{peak:.0f}", more)


def decode(arguments: argparse.Namespace) -> None:
    """Greedy decoding of one row and of eight, and the weights that a step of one row reads."""
    from bakeoff.model.cost import plan

    table("decoding", "batch", "ms a token", "of its own dense", "time / our mixture")
    for batch in (1, 8):
        timed = race(candidates(), decoding(batch, 64, arguments.new, VOCABULARY), arguments.rounds)
        for name, found in timed.items():
            own = timed["bakeoff, dense" if name.startswith("bakeoff") else "transformers Llama"]
            spent = f"{1e3 * found.median / arguments.new:.2f}"
            row(name, batch, spent, ratio(own, found), ratio(found, timed["bakeoff, 2 of 8 experts"]))
    table("one token reads", "weights, MiB", "of all weights, MiB")
    nodes = {"dense": {"use": "gated_mlp", "width": HIDDEN}, **{f"2 of {n}": mixture(n) for n in (8, 32, 128)}}
    for name, node in nodes.items():
        model: Any = ours(node).model
        costs = plan(model, LENGTH)
        row(name, f"{costs.read_bytes / 2**20:.1f}", f"{costs.weight_bytes / 2**20:.1f}")


def main() -> None:
    """One table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = {"training": train, "experts": experts, "decode": decode}
    parser.add_argument("what", choices=commands)
    parser.add_argument("--new", type=int, default=64, help="tokens decoded")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument(
        "--threads", type=int, default=1, help="of each training candidate; wall time where there are several"
    )
    arguments = parser.parse_args()
    commands[arguments.what](arguments)


if __name__ == "__main__":
    main()
