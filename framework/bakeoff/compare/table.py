"""The comparison as a table in the terminal, with the verdicts below it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rich import box
from rich.console import Console
from rich.markup import escape
from rich.table import Table
from rich.text import Text

from bakeoff.compare.results import Results
from bakeoff.compare.tried import Tried
from bakeoff.compare.words import count, decimals, plural, short_size, signed

#: Colour of a verdict in the terminal.
STYLES = {
    "baseline": "bold",
    "better": "green",
    "worse": "red",
    "none shown": "yellow",
    "failed": "red",
    "refused": "red",
}


#: Below this width the costs stand in a table of their own.
WIDE = 94


def show(results: Results, console: Console) -> None:
    """Print table, verdicts and what must be known to read them."""
    quality, cost = _quality(results), _cost(results)
    tables = [quality | cost] if console.width >= WIDE else [quality, cost]
    for columns in tables:
        console.print(_table(results, columns))
    _verdicts(results, console)
    for task in results.tasks:
        console.print(Text(f"\n{task.label}", style="bold"))
        console.print(_table(results, _tried(results, task)))
    for line in caveats(results):
        console.print(Text(line, style="dim"))


def plus_minus(mean: float | None, half: float | None, digits: int) -> str:
    """2.134 ±0.012; without an interval the mean alone."""
    if mean is None:
        return "–"
    return f"{mean:.{digits}f}" + ("" if half is None else f" ±{half:.{digits}f}")


def digits_of(results: Results) -> int:
    """Decimals of the metric's columns: as many as the narrowest interval asks for, four at most."""
    return min(4, decimals(*(d.half for d in results.differences.values() if d)))


def caveats(results: Results) -> list[str]:
    """What a reader of the numbers must know, one sentence each."""
    lines = list(results.plan.get("notes", []))
    seeds = len(results.plan["seeds"])
    if seeds == 1:
        lines.append("One seed: no interval is claimed, and no verdict; give at least three seeds.")
    if results.failures:
        failed = plural(len(results.failures), "trial")
        lines.append(
            f"{failed} failed (log.txt in its folder under trials/ says more); --retry runs failed ones again."
        )
    if results.waiting:
        lines.append(f"{plural(len(results.waiting), 'trial')} not run yet; the same command continues.")
    if len(results.machines) > 1:
        lines.append(f"Trials ran on unlike machines, so speeds do not compare: {'; '.join(results.machines)}.")
    lines += [f"Not measured: {what}: {reason}." for what, reason in results.unmeasured.items()]
    stale = [trial for trial in results.trials if results.stale(trial)]
    if stale:
        lines.append(f"{plural(len(stale), 'trial')} by an older version of the code: kept and flagged in the report.")
    return lines


def _quality(results: Results) -> dict[str, list[Text]]:
    """Heading -> one cell an arm."""
    column, digits = results.metric.column, digits_of(results)
    own = [Text(plus_minus(row[column], row[f"{column}_half"], 3)) for row in results.table]
    differences = [
        Text(difference(row, digits), style=STYLES.get(results.verdicts[row["arm"]].kind, "")) for row in results.table
    ]
    return {results.metric.unit: own, "difference\nto baseline": differences}


def _cost(results: Results) -> dict[str, list[Text]]:
    columns: dict[str, tuple[str, Callable[[float | None], str]]] = {
        "tokens\nper s": ("tokens_per_second", count),
        "decode\nper s": ("decode_tokens_per_second", count),
        "peak\nmem.": ("peak_bytes", short_size),
        "params": ("parameters", count),
        "active\nparams": ("active_parameters", count),
        "FLOPs\n/token": ("flops_per_token", count),
        "state": ("state_bytes", short_size),
    }
    known = {heading: column for heading, column in columns.items() if any(row[column[0]] for row in results.table)}
    return {heading: [Text(words(row[key])) for row in results.table] for heading, (key, words) in known.items()}


def _tried(results: Results, task: Tried) -> dict[str, list[Text]]:
    """Heading -> one cell an arm, coloured by its verdict."""
    return {
        name.replace("_", " "): [
            Text(
                task.written(name, arm.name),
                style=STYLES.get(task.verdict(name, arm.name).kind, "") if name in task.judged else "",
            )
            for arm in results.arms
        ]
        for name in task.figures
    }


def _table(results: Results, columns: dict[str, list[Text]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, 1))
    table.add_column("arm", overflow="fold", min_width=14, vertical="bottom")
    for heading in columns:
        table.add_column(heading, justify="right", no_wrap=True, vertical="bottom")
    for i, row in enumerate(results.table):
        style = STYLES.get(results.verdicts[row["arm"]].kind, "")
        table.add_row(Text(row["arm"], style=style), *(cells[i] for cells in columns.values()))
    return table


def difference(row: dict[str, Any], digits: int) -> str:
    """A row's paired difference with half its interval."""
    if row["difference"] is None:
        return "–"
    half = None if row["difference_high"] is None else row["difference_high"] - row["difference"]
    return signed(row["difference"], digits) + ("" if half is None else f" ±{half:.{digits}f}")


def _verdicts(results: Results, console: Console) -> None:
    grid = Table.grid(padding=(0, 2))
    grid.add_column(no_wrap=False, overflow="fold", min_width=9)
    grid.add_column(overflow="fold")
    for name, verdict in results.verdicts.items():
        grid.add_row(f"[{STYLES.get(verdict.kind) or 'default'}]{escape(name)}[/]", Text(verdict.text))
    console.print(grid)
