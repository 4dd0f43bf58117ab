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
    write_whole(folder / "results.csv", csv_text(results).encode())
    write_whole(folder / "report.md", markdown(results).encode())
    write_whole(folder / "report.html", page(results).encode())
    return folder / "report.html"
