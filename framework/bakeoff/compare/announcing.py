"""The plan as it is printed before anything runs."""

from __future__ import annotations

from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from bakeoff.compare.plan import ArmPlan, Plan
from bakeoff.compare.tuning import label
from bakeoff.compare.words import count, percent, plural, short_size


def announce(plan: Plan, console: Console) -> None:
    """Arms with their sizes and what matching reached; trials; total work."""
    spec = plan.spec
    matched = any(arm.matched and arm.matched.by != "none" for arm in plan.arms)
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1))
    table.add_column("arm", overflow="fold", min_width=14, vertical="bottom")
    sparse = any(arm.costs.parameters.idle for arm in plan.arms)
    sizes = ["parameters", *(["active"] if sparse else []), "without\nembedding"]
    for heading in [*sizes, "FLOPs\n/token", "state", "steps", *(["adjusted", "error"] if matched else [])]:
        table.add_column(heading, justify="right", vertical="bottom")
    for arm in plan.arms:
        table.add_row(*_cells(arm, matched, sparse))
    console.print(table)
    for line in lines(plan):
        console.print(Text(line))
    if spec.match.by != "none":
        by, within = spec.match.by.replace("_", " "), percent(spec.match.within)
        console.print(Text(f"Arms are matched in {by} to {plan.baseline} within {within}."))
    for note in plan.notes:
        console.print(Text(note, style="dim"))


def _cells(arm: ArmPlan, matched: bool, sparse: bool) -> list[Text]:
    costs = arm.costs
    cells = [
        arm.name,
        count(costs.parameters.total),
        *([count(costs.parameters.active)] if sparse else []),
        count(costs.parameters.without_embeddings),
        count(costs.whole.flops),
        short_size(costs.whole.state),
        f"{arm.steps:,}",
    ]
    if matched:
        found = arm.matched
        knob = (found.knob or "").rpartition(".")[2] if found else ""
        cells += [f"{knob} {found.value}" if found and found.value is not None else "–"]
        cells += [percent(found.error, 2, sign=True) if found else ""]
    return [Text(cell) for cell in cells]


def lines(plan: Plan) -> list[str]:
    """Trials and total work, in sentences."""
    spec = plan.spec
    runs = len(plan.arms) * len(spec.seeds)
    said = [f"{plural(len(plan.arms), 'arm')} x {plural(len(spec.seeds), 'seed')} = {plural(runs, 'trial')}"]
    if plan.searches:
        tried = "; ".join(label(point) for point in plan.points)
        search = len(plan.arms) * len(plan.points)
        said[0] += f", after a search of {plural(search, 'trial')}"
        said.append(f"Search, the same for every arm, on seed {plan.tuning_seed}: {tried}.")
    each = [flops for _, flops in plan.flops()]
    total = None if None in each else sum(flops for flops in each if flops is not None)
    said[0] += f"; {count(total)} FLOPs of training in all." if total else "."
    executor: Any = spec.executor
    slots, threads = getattr(executor, "slots", None), getattr(executor, "threads", None)
    if slots and threads:
        said.append(
            f"{plural(slots, 'trial')} at a time, {plural(threads, 'thread')} each; time left is told after the first."
        )
    return said
