"""The report of a comparison: one page of HTML, the same in Markdown, one row a trial as CSV."""

from __future__ import annotations

from pathlib import Path

from bakeoff.compare.report.comma import csv_text
from bakeoff.compare.report.html import page
from bakeoff.compare.report.markdown import markdown
from bakeoff.compare.results import Results
from bakeoff.parts.files import write_whole


def write(results: Results, folder: Path) -> Path:
    """Write `report.html`, `report.md` and `results.csv` into the folder; returns the path of the page."""
    texts = {"results.csv": csv_text(results), "report.md": markdown(results), "report.html": page(results)}
    for name, text in texts.items():
        write_whole(folder / name, text.encode())
    return folder / "report.html"
