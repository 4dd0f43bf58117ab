"""Figures of one case, in its own process."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from bakeoff.evaluate.peak import peak_bytes
from bakeoff.interfaces.part import Part
from bakeoff.model.machine import measured_peak, promised
from bakeoff.parts.kernels import choices

from benchmarks.common.candidate import Candidate
from benchmarks.gpu.candidates import build, flops, shape_of
from benchmarks.gpu.cases import Case

#: Turns that are not counted, the fewest that are, and seconds after which no further one begins.
WARM, FEWEST, SECONDS, MOST = 3, 3, 5.0, 50


def measure(case: Case, device: str) -> dict[str, Any]:
    """Figures of a case that is raced."""
    place = torch.device(device)
    torch.manual_seed(0)
    candidate = build(case, device)
    prepare = _training if case.what == "training" else _decoding
    turn = prepare(candidate, case, place)
    first, seconds = timed(turn, place, 0.0 if case.shape == "tiny" else SECONDS)
    peak, kind = peak_bytes(turn, place)
    step = statistics.median(seconds)
    return {
        "parameters": sum(p.numel() for p in candidate.model.parameters()),
        "tokens_per_second": case.batch * case.length / step,
        "seconds": step,
        "fastest": min(seconds),
        "turns": len(seconds),
        "first_turn": first,
        "peak_bytes": int(peak),
        "peak_is": kind,
        "kernels": choices(candidate.model, place) if case.candidate == "bakeoff" else {},
        **(_utilisation(case, step, place) if case.what == "training" else {"ms_a_token": 1e3 * step / case.length}),
    }


def timed(turn: Callable[[], Any], place: torch.device, limit: float = SECONDS) -> tuple[float, list[float]]:
    """Seconds of the first turn, compilation and all, and of each counted one, none begun after `limit` seconds."""
    wait = torch.accelerator.synchronize if place.type != "cpu" else lambda: None

    def once() -> float:
        start = time.perf_counter()
        turn()
        wait()
        return time.perf_counter() - start

    first = once()
    for _ in range(WARM - 1):
        once()
    seconds: list[float] = []
    until = time.perf_counter() + limit
    while len(seconds) < FEWEST or (time.perf_counter() < until and len(seconds) < MOST):
        seconds.append(once())
    return first, seconds


def _training(candidate: Candidate, case: Case, place: torch.device) -> Callable[[], Any]:
    """A step: forward and loss under bf16 autocast, backward, fused AdamW on float32 parameters."""
    model, loss = candidate.model.train(), candidate.loss
    if case.compiled:
        loss = _compiled(candidate)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    ids = torch.randint(shape_of(case).vocabulary, (case.batch, case.length + 1), device=place)

    def step() -> None:
        with torch.autocast(place.type, torch.bfloat16):
            value = loss(ids)
        value.backward()
        optimizer.step()
        optimizer.zero_grad()

    return step


def _compiled(candidate: Candidate) -> Callable[[torch.Tensor], torch.Tensor]:
    """Ours block by block, as `compile: true` does; of others, model and loss."""
    if not hasattr(candidate.model, "backbone") or not isinstance(candidate.model.backbone, Part):
        return torch.compile(candidate.loss)
    from bakeoff.train.assembly import compile_blocks

    compile_blocks(candidate.model.backbone)  # type: ignore[arg-type]
    return candidate.loss


def _decoding(candidate: Candidate, case: Case, place: torch.device) -> Callable[[], Any]:
    """Greedy generation of `length` tokens after as many, prefill included, in bf16."""
    generate = candidate.generate
    assert generate is not None
    in_bfloat16(candidate.model.eval())
    prompts = torch.randint(256, (case.batch, case.length), device=place)
    return lambda: generate(prompts, case.length)


def in_bfloat16(model: torch.nn.Module) -> None:
    """Cast all but what our parts keep in float32."""
    for module in model.modules():
        kept = module.keep_float32 if isinstance(module, Part) else ()
        for name, parameter in module.named_parameters(recurse=False):
            if name not in kept:
                parameter.data = parameter.data.to(torch.bfloat16)


def _utilisation(case: Case, step: float, place: torch.device) -> dict[str, Any]:
    """Operations a second, of the data sheet and of the best matrix product."""
    work = 3 * case.batch * flops(case)
    sheet, measured = promised(place), measured_peak(place, torch.bfloat16)
    of_sheet = None if sheet.flops is None or place.type == "cpu" else work / step / sheet.flops
    return {
        "flops_per_token": work / (case.batch * case.length),
        "mfu_of_data_sheet": of_sheet,
        "mfu_of_measured": work / step / measured,
        "measured_peak": measured,
        "data_sheet": sheet.source,
    }
