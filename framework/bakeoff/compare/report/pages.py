"""Sections that plugins add (kind `page`)."""

from __future__ import annotations

from bakeoff.compare.report.grids import note, section
from bakeoff.compare.report.markup import Html
from bakeoff.compare.results import Results
from bakeoff.registry import find, names


def plugin_pages(results: Results) -> list[Html]:
    """One section a registered page; one that fails says so in its place, and the report goes on."""
    return [_section(entry.name, results) for entry in names("page")]


def _section(name: str, results: Results) -> Html:
    try:
        page = find(name, "page")()
        return section(page.title, Html(page.html(results)))
    except Exception as error:
        message = f"The page '{name}' could not be made: {type(error).__name__}: {error}"
        return section(name, note(message))
