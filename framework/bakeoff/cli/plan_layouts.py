"""What `bakeoff plan R --devices N --gpu NAME` prints: the layouts of training, the best first."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bakeoff.evaluate.layouts import LayoutPlan
    from bakeoff.parallel.planner.estimate import Estimate

#: Layouts that are shown.
SHOWN = 12


def show_layouts(console: Any, planned: LayoutPlan) -> None:
    """Print one plan."""
    ranking, device = planned.ranking, planned.device
    nodes = f" in {planned.nodes} nodes of {planned.per_node}" if planned.nodes > 1 else ""
    console.print(f"[bold]{planned.devices} x {device.title}[/]{nodes}", highlight=False)
    if ranking.fitting:
        best = ranking.fitting[0]
        told = f"best: [bold]{best.layout}[/], MFU at most {best.mfu:.1%}, a step of {_seconds(best.step)} at least\n"
        console.print(told, *trainer_lines(best, planned), sep="\n", highlight=False)
        console.print()
        _print(console, stages_table(best, planned))
        _print(console, sending_table(best, planned))
    else:
        console.print(f"[red]no layout fits[/] into {_size(device.memory)} a device", highlight=False)
    _print(console, layouts_table(planned))
    for line in notes(planned):
        console.print(f"[yellow]note:[/] {line}", highlight=False, soft_wrap=True)


def trainer_lines(best: Estimate, planned: LayoutPlan) -> Iterator[str]:
    """What to write into the recipe."""
    yield "trainer:"
    sizes = ", ".join(f"{name}: {size}" for name, size in asdict(best.layout).items() if size > 1)
    if sizes:
        yield f"  strategy: {{use: mesh, {sizes}}}"
    yield f"  devices: {planned.per_node}"
    yield f"  num_nodes: {planned.nodes}"
    if best.recompute != "none":
        yield f"  recompute: {best.recompute}"


def layouts_table(planned: LayoutPlan) -> Any:
    """One row a layout, those that fit first."""
    title = "memory of a device, rows of a micro-batch, bytes sent in a step, and the bound on MFU"
    table = _table(title, ["layout"], ["params", "grads", "optim", "activ", "all", "rows", "sends", "MFU"])
    ranking, memory = planned.ranking, planned.device.memory
    for one in [*ranking.fitting, *ranking.too_large][:SHOWN]:
        name = str(one.layout) if one.recompute == "none" else f"{one.layout}, {one.recompute}"
        rows = f"{one.rows}/{one.rows_that_fit(memory)}"
        figures = [*map(_size, one.memory), _size(one.memory.total), rows, _size(one.sent), f"{one.mfu:.1%}"]
        table.add_row(name, *figures, style=None if one.memory.total <= memory else "dim")
    return table


def stages_table(best: Estimate, planned: LayoutPlan) -> Any:
    """Of the best layout, what a device holds of each stage, and its activations in each mode of recomputation."""
    from bakeoff.model.recompute import MODES
    from bakeoff.parallel.planner.estimate import share

    job, layout = planned.job, best.layout
    held = job.weights(layout.tensor)
    kept = {mode: [share(one, layout) for one in job.kept(best.rows, mode)] for mode in MODES}
    title = f"a device of {layout}, micro-batches of {best.rows} rows: what each keeps for backward, by recomputation"
    table = _table(title, ["part"], ["parameters", *MODES])
    last = len(job.stages) - 1
    groups = [("embedding", (0,)), *((_layers(g), tuple(i + 1 for i in g)) for g in planned.groups), ("head", (last,))]
    for name, members in groups:
        own = sum(held[i].on(layout.expert) for i in members) * job.own / layout.shard
        table.add_row(name, _size(own), *(_size(sum(kept[mode][i].activations for i in members)) for mode in MODES))
    return table


def sending_table(best: Estimate, planned: LayoutPlan) -> Any:
    """Of the best layout, bytes by dimension and link, and seconds of products a second of sending."""
    from bakeoff.compare.words import plural
    from bakeoff.parallel.planner.estimate import AWAITED

    steps = plural(best.accumulation, "micro-batch").replace("batchs", "batches")
    title = f"sent by a device in a step of {steps}; products take {_seconds(best.compute)}"
    table = _table(title, ["dimension"], ["in the node", "between nodes", "takes", "compute/comm", "hidden"])
    for flow in best.flows:
        hidden = "awaited" if flow.dimension in AWAITED else "yes" if best.ratio(flow) >= 1 else "in part"
        sent = [_size(flow.sent.inside), _size(flow.sent.between)]
        table.add_row(flow.dimension, *sent, _seconds(flow.seconds), f"{best.ratio(flow):.3g}", hidden)
    if not best.flows:
        table.add_row("nothing", "", "", "", "", "")
    return table


def notes(planned: LayoutPlan) -> Iterator[str]:
    """What else is to be known."""
    from bakeoff.compare.words import plural

    device = planned.device
    yield (
        "rows: as they are / of the largest micro-batch that fits (data.micro_batch); MFU is a bound: products at "
        f"{device.flops / 1e12:.4g} TFLOP/s in bfloat16, sending hidden wherever it can be"
    )
    if planned.kv_share is not None:
        links = {"in a node": device.inside, "between nodes": device.between}
        blocks = [
            f"{block:,.0f} ({tokens:,.0f} a rank) {name}"
            for name, b in links.items()
            for block, tokens in [planned.ring(b)]
        ]
        yield f"the smallest ring block that hides its sending, in tokens: {'; '.join(blocks)}"
    reasons: dict[str, list[str]] = {}
    for one in planned.ranking.refused:
        reasons.setdefault(one.reason, []).append(str(one.layout))
    for reason, left_out in reasons.items():
        yield f"left out {', '.join(left_out)}: {reason}"
    hidden = len(planned.ranking.fitting) + len(planned.ranking.too_large) - SHOWN
    if hidden > 0:
        yield f"{plural(hidden, 'layout')} more, of lower rank"
    yield f"{device.title}: {_size(device.memory)}; {device.source}"
    yield from planned.notes


def _layers(numbers: tuple[int, ...]) -> str:
    from bakeoff.cli.plan import ranges

    return f"{'layers' if len(numbers) > 1 else 'layer'} {ranges(numbers)}"


def _table(title: str, names: list[str], figures: list[str]) -> Any:
    from rich.table import Table

    table = Table(caption=title, box=None, padding=(0, 2, 0, 0))
    for name in names:
        table.add_column(name)
    for name in figures:
        table.add_column(name, justify="right", no_wrap=True)
    return table


def _print(console: Any, table: Any) -> None:
    """The table below its title, which is not wrapped to its width, and an empty line."""
    title, table.caption = table.caption, None
    console.print(f"[italic]{title}[/]", highlight=False, soft_wrap=True)
    console.print(table)
    console.print()


def _size(value: float) -> str:
    from bakeoff.compare.words import short_size

    return short_size(value)


def _seconds(value: float) -> str:
    for unit, limit in (("s", 1.0), ("ms", 1e-3)):
        if value >= limit:
            return f"{value / limit:.3g} {unit}"
    return f"{value * 1e6:.3g} us"
