"""The measures that ship with the core: about two seconds each, longer only where a few steps take longer."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch

from bakeoff.evaluate.measured import Measured
from bakeoff.evaluate.peak import peak_bytes
from bakeoff.evaluate.precision import autocast
from bakeoff.evaluate.stepping import TrainingSteps
from bakeoff.model.bits import evaluate_bits
from bakeoff.model.decoding import Rows
from bakeoff.model.looking import reads_neighbours
from bakeoff.parts.modes import evaluating
from bakeoff.parts.samplers import Greedy

Measure = Callable[[Measured], dict[str, float]]

#: Seconds that a measure of speed goes on for; the fewest and the most steps that it takes.
SECONDS = 1.5
FEWEST, MOST, MOST_DECODED = 3, 50, 200


def validation(measured: Measured) -> dict[str, float]:
    """Cost of the validation split, or of the part that the recipe's `validation.tokens` names.

    `nats_per_token`, `tokens`, and `bits_per_byte` where the tokenizer is lossless.
    """
    data = measured.data
    loader = data.reading(measured.objective).validation(
        tokens=measured.recipe.tree["validation"]["tokens"],
        stateful=measured.recipe.stateful,
    )
    table = data.bytes_per_token if data.tokenizer.lossless else None
    with autocast(measured.recipe, measured.device):
        optional = measured.objective.reads_dialogues
        return evaluate_bits(measured.model, measured.objective, loader, table, measured.device, optional=optional)


def throughput(measured: Measured) -> dict[str, float]:
    """Training `tokens_per_second`: of the median optimizer step, after one to warm up; the model is not changed."""
    steps = TrainingSteps(measured)
    return {"tokens_per_second": steps.tokens / median_time(steps.step, measured.device)}


def decode(measured: Measured) -> dict[str, float]:
    """Greedy decoding of one row after a prompt of half the length: `tokens_per_second` of the median step.

    An end id does not end it. A model that reads what is retrieved looks up each chunk that it completes. Raises
    `CapabilityError` where a part keeps no state.
    """
    prompt = max(1, measured.length // 2)
    new = max(2, measured.length - prompt)
    ids = [int(token) for token in measured.data.store("validation").tokens[:prompt]]
    greedy, retrieves = Greedy(), measured.data.retrieval is not None and reads_neighbours(measured.model)
    lookup = measured.data.lookup() if retrieves else None
    with evaluating(measured.model), torch.inference_mode():
        row = Rows(measured.model, measured.data.tokenizer, [ids], [new], seed=0, lookup=lookup)
        row.prefill()

        def step() -> None:
            chosen = row.choose(greedy)
            chosen.tolist()  # as where somebody waits for the text
            row.advance(chosen, [False])

        return {"tokens_per_second": 1 / median_time(step, measured.device, most=min(new - 1, MOST_DECODED))}


def memory(measured: Measured) -> dict[str, float]:
    """`peak_bytes` of a training step: see `peak_bytes` for what is counted where.

    Of two sets of weights, the measured model's own and its copy that steps, one is left out.
    """
    steps = TrainingSteps(measured)
    held = [steps.model.state_dict(), *steps.optimizer.state.values()]
    peak, kind = peak_bytes(steps.step, measured.device, held)
    return {"peak_bytes": peak if kind == "tensors" else peak - steps.beside}


MEASURES: dict[str, Measure] = {
    "validation": validation,
    "throughput": throughput,
    "decode": decode,
    "memory": memory,
}


def median_time(step: Callable[[], object], device: torch.device, most: int = MOST) -> float:
    """Seconds of the median `step`, after one to warm up; for `SECONDS`, but at least `FEWEST` and at most `most`."""
    wait = torch.accelerator.synchronize if device.type != "cpu" else lambda: None
    step()
    wait()
    times: list[float] = []
    end = time.perf_counter() + SECONDS
    while len(times) < max(1, most) and (len(times) < FEWEST or time.perf_counter() < end):
        start = time.perf_counter()
        step()
        wait()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
