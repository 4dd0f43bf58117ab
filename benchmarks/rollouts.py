"""Sampling many answers, as rollouts are, beside `generate` of `transformers` with the same weights; CPU time.

    OMP_NUM_THREADS=1 python -m benchmarks.rollouts

A Llama shape of d 256, 4 layers, 8 heads, V 8192, float32. 64 answers of 128 ids to prompts of 64, drawn at
temperature 1 from all of the vocabulary: to 64 prompts, to 8 prompts by eights, and to 64 with answers that 256 of the
ids end, after 31 others on average. We keep the log-probability of each id that was drawn; `transformers` does where a
row says so.
Candidates take turns in rotating order, each in a process of its own; medians of the rounds, ratios as medians over
rounds.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from typing import Any, NamedTuple

import torch
from bakeoff.parts.tokenizers.byte import ByteTokenizer
from torch import Tensor

from benchmarks.common.candidate import Build, Candidate, Shape, of_recipe, of_transformers, shipped
from benchmarks.common.families import llama_config
from benchmarks.common.tables import ratio, row, table
from benchmarks.mixers.race import decoding, race

SHAPE = Shape(width=256, depth=4, heads=8, kv_heads=8, hidden=704, vocabulary=8192)
PROMPT, NEW = 64, 128


class Case(NamedTuple):
    """So many prompts, answers to each, and ids that end an answer."""

    prompts: int
    copies: int
    ends: Sequence[int] = ()

    @property
    def told(self) -> str:
        """In words."""
        return f"{self.prompts} x {self.copies}" + (", ended early" if self.ends else "")


CASES = (Case(64, 1), Case(8, 8), Case(64, 1, range(1, 257)))


class EveryId(ByteTokenizer):
    """Text of one letter for each id of the vocabulary, so that all of it may be drawn."""

    text_size = SHAPE.vocabulary - 3

    def token_bytes(self, token: int) -> bytes:
        """Some letter."""
        return bytes([97 + token % 26]) if token < self.text_size else b""


def theirs(case: Case, keeps: bool) -> Candidate:
    """`transformers`; where it `keeps` log-probabilities, by the logits of every step, as its manual has it."""
    torch.manual_seed(0)
    candidate = of_transformers("Llama", llama_config(SHAPE, rms_norm_eps=1e-6), SHAPE)
    model: Any = candidate.model
    options: dict[str, Any] = {"do_sample": True, "temperature": 1.0, "top_k": 0, "top_p": 1.0, "pad_token_id": 0}
    options |= {"num_return_sequences": case.copies, "return_dict_in_generate": True, "output_logits": keeps}
    if case.ends:
        options["eos_token_id"] = list(case.ends)

    def generate(prompts: Tensor, new: int) -> Any:
        with torch.inference_mode():
            said = model.generate(prompts, attention_mask=torch.ones_like(prompts), max_new_tokens=new, **options)
            if keeps:
                model.compute_transition_scores(said.sequences, said.logits, normalize_logits=True)
            return said

    return candidate._replace(generate=generate)


def ours(case: Case) -> Candidate:
    """The recipe of Llama with those weights."""
    from bakeoff.model.generate import complete
    from bakeoff.parts.samplers import Sample

    recipe = _recipe()
    candidate = of_recipe(recipe, SHAPE, PROMPT + NEW)
    model: Any = candidate.model
    weights = theirs(case, keeps=False).model.state_dict()
    model.load_state_dict(recipe.build("converter").to_ours(weights, model))
    tokenizer, ends = EveryId(), list(case.ends)
    turns = iter(range(10**9))

    def generate(prompts: Tensor, new: int) -> Any:
        return complete(
            model, tokenizer, prompts.tolist(), sampler=Sample(), max_new_tokens=new, end=ends, seed=next(turns),
            log_probabilities=True, copies=case.copies,
        )  # fmt: skip

    return candidate._replace(generate=generate)


def _recipe() -> Any:
    layer = "model.blocks.layer"
    changes = {f"{layer}.mixer.n_heads": SHAPE.heads, f"{layer}.feed_forward.width": SHAPE.hidden}
    return shipped("llama_7b", changes, SHAPE, PROMPT + NEW)


def check() -> None:
    """Both give the same log-probabilities to the same text."""
    ids = torch.randint(SHAPE.vocabulary, (2, 16))
    one: Any = ours(CASES[0]).model.eval()
    other = theirs(CASES[0], keeps=False).model.eval()
    with torch.inference_mode():
        torch.testing.assert_close(one.logits(ids)[0], other(input_ids=ids).logits, atol=1e-4, rtol=1e-4)


def main() -> None:
    """One table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=7)
    arguments = parser.parse_args()
    check()
    table("prompts x answers", "candidate", "CPU seconds", "tokens/s", "time / ours", "peak MiB")
    for case in CASES:
        builds: dict[str, Build] = {
            "bakeoff, log-probabilities kept": partial(ours, case),
            "transformers": partial(theirs, case, keeps=False),
            "transformers, log-probabilities kept": partial(theirs, case, keeps=True),
        }
        timed = race(builds, decoding(case.prompts, PROMPT, NEW, SHAPE.vocabulary), arguments.rounds)
        own = next(iter(timed.values()))
        for name, found in timed.items():
            rate = "–" if case.ends else f"{case.prompts * case.copies * NEW / found.median:,.0f}"
            spent = f"{found.median:.2f}", rate, f"{ratio(found.seconds, own.seconds):.2f}"
            row(case.told, name, *spent, f"{found.peak:.0f}")


if __name__ == "__main__":
    main()
