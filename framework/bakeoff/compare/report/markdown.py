"""The report as Markdown: verdicts, table, failures, method, command."""

from __future__ import annotations

from collections.abc import Iterable

from bakeoff.compare.report.facts import statements, summary
from bakeoff.compare.report.headline import headline
from bakeoff.compare.results import Results
from bakeoff.compare.table import caveats, difference, digits_of, plus_minus
from bakeoff.compare.words import count, size


def markdown(results: Results) -> str:
    """The whole document."""
    plan = results.plan
    verdicts = [f"- **{escape(name)}**: {escape(verdict.text)}" for name, verdict in results.verdicts.items()]
    method = [f"- **{head}.** {escape(text)}" for head, text in statements(results)]
    first, rest = headline(results)
    said = f"**{escape(first)}** {escape(rest)}".rstrip()
    parts = [f"# {escape(plan['name'])}", escape(summary(results)), "## Verdict", said, "\n".join(verdicts)]
    parts += ["\n".join(f"> {escape(line)}" for line in caveats(results))]
    parts += ["## Table", _table(results), *_tasks(results), *_failures(results)]
    parts += ["## How the numbers were made", "\n".join(method), "## Repeat it", f"    {plan['command']}"]
    return "\n\n".join(part for part in parts if part) + "\n"


def _table(results: Results) -> str:
    column, digits = results.metric.column, digits_of(results)
    unit = results.metric.unit
    head = [
        "arm",
        unit,
        "difference",
        "tokens/s",
        "decode tokens/s",
        "peak memory",
        "parameters",
        *(["active parameters"] if results.sparse else []),
        "FLOPs/token",
        "state",
    ]
    head += results.other_measures
    rows = []
    for row in results.table:
        cells = [
            row["arm"],
            plus_minus(row[column], row[f"{column}_half"], 3),
            difference(row, digits),
            count(row["tokens_per_second"]),
            count(row["decode_tokens_per_second"]),
            size(row["peak_bytes"]),
            count(row["parameters"]),
            *([count(row["active_parameters"])] if results.sparse else []),
            count(row["flops_per_token"]),
            size(row["state_bytes"]),
            *("–" if row[key] is None else f"{row[key]:.4g}" for key in results.other_measures),
        ]
        rows.append(_line(cells))
    return "\n".join([_line(head), "|---|" + "---:|" * (len(head) - 1), *rows])


def _tasks(results: Results) -> list[str]:
    """A table a task, and the verdicts below it."""
    parts = []
    for task in results.tasks:
        names = [arm.name for arm in results.arms]
        rows = [[arm, *(task.written(figure, arm) for figure in task.figures)] for arm in names]
        head = ["arm", *(figure.replace("_", " ") for figure in task.figures)]
        verdicts = [
            f"- **{escape(arm)}**: {escape(task.verdict(figure, arm).text)}" for figure in task.judged for arm in names
        ]
        table = "\n".join([_line(head), "|---|" + "---:|" * len(task.figures), *map(_line, rows)])
        parts += [f"## Task {escape(task.label)}", table, "\n".join(verdicts)]
    return parts


def _failures(results: Results) -> list[str]:
    lines = [f"- **{escape(t.arm)}**, seed {t.seed}: {escape(t.reason or '')}" for t in results.failures]
    lines += [
        f"- **{escape(a.name)}**: refused: {escape(a.facts['refused'])}" for a in results.arms if a.facts.get("refused")
    ]
    return ["## Failures", "\n".join(lines)] if lines else []


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(escape(cell) for cell in cells) + " |"


def escape(text: str) -> str:
    """Text that Markdown shows as it is, also in a table."""
    for character in "\\`*_|<>[]":
        text = text.replace(character, "\\" + character if character != "<" else "&lt;")
    return " ".join(text.split())
