"""Notebooks as pages: a build runs each in a kernel of its own and shows what comes out."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import nbformat

_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
#: Seconds that one cell may take.
_PATIENCE = 300


@dataclass(frozen=True)
class Source:
    """A notebook, by its first heading, and the page it becomes."""

    title: str
    uri: str
    path: Path


def sources(docs: Path) -> list[Source]:
    """All notebooks, in the order of their names."""
    return [Source(_title(path), f"notebooks/{path.stem}.md", path) for path in sorted(docs.glob("notebooks/*.ipynb"))]


def pages(docs: Path, *, execute: bool) -> Mapping[str, str]:
    """Each notebook's page, and the one script that its figures need."""
    found: dict[str, str] = {}
    for source in sources(docs):
        notebook = nbformat.read(source.path, as_version=4)
        if execute:
            run(notebook)
        found[source.uri] = page(notebook, source.path.name)
    if any("plotly-graph-div" in text for text in found.values()):
        from plotly.offline import get_plotlyjs

        found["assets/plotly.js"] = get_plotlyjs()
    return found


def run(notebook: Any) -> None:
    """Run all cells in an empty folder; a cell that fails ends the build."""
    from nbclient import NotebookClient

    with tempfile.TemporaryDirectory() as folder:
        NotebookClient(notebook, timeout=_PATIENCE, resources={"metadata": {"path": folder}}).execute()


def page(notebook: Any, name: str) -> str:
    """Markdown cells as they are, code, and what came out."""
    parts: list[str] = []
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            parts.append(cell.source)
        elif cell.cell_type == "code":
            parts.append(f"```python\n{cell.source}\n```")
            parts += filter(None, map(_shown, _joined(cell.outputs)))
    parts.insert(1, f"[Download this notebook]({name}){{ download }}")
    if any("plotly-graph-div" in part for part in parts):
        parts.insert(1, '<script src="../assets/plotly.js"></script>')
    return "\n\n".join(parts)


def _title(path: Path) -> str:
    heading = re.match(r"# (.+)", nbformat.read(path, as_version=4).cells[0].source)
    assert heading, f"{path.name} does not begin with a heading"
    return heading[1]


def _joined(outputs: list[Any]) -> Iterator[Any]:
    """What was printed, in one piece, and the rest; what went to stderr (progress) is left out."""
    text = "".join(output.text for output in outputs if output.get("name") == "stdout")
    if text.strip():
        yield nbformat.v4.new_output("stream", text=text)
    yield from (output for output in outputs if output.output_type != "stream")


def _shown(output: Any) -> str:
    """An output as Markdown or HTML."""
    if output.output_type == "stream":
        return _text(output.text)
    data = output.data
    if "application/vnd.plotly.v1+json" in data:
        return _figure(data["application/vnd.plotly.v1+json"])
    if "text/html" in data:
        table = re.sub(r"<style.*?</style>|\bborder=\S+ class=\"dataframe\"", "", data["text/html"], flags=re.DOTALL)
        return re.sub(r"\n\s*", "\n", f'<div class="output">{table}</div>')
    return _text(data["text/plain"])


def _text(text: str) -> str:
    """Lines as a terminal leaves them: what a carriage return overwrote is gone."""
    lines = [line.rstrip("\r").rpartition("\r")[2].rstrip() for line in _ANSI.sub("", text).split("\n")]
    return "```{.text .output}\n" + "\n".join(lines).strip("\n") + "\n```"


def _figure(value: Any) -> str:
    from plotly.graph_objects import Figure

    figure = Figure(data=value["data"], layout=value["layout"]).update_layout(height=380, margin_t=30)
    return figure.to_html(full_html=False, include_plotlyjs=False, config={"responsive": True})
