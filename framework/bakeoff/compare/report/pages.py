"""Sections that plugins add (kind `page`)."""

from __future__ import annotations

from dataclasses import dataclass

from bakeoff.compare.report.grids import note, section
from bakeoff.compare.report.markup import Html
from bakeoff.compare.results import Results
from bakeoff.interfaces.page import Page
from bakeoff.registry import find, names


@dataclass(frozen=True)
class Pages:
    """The sections, and the tasks whose HTML stands in one of them, with that section's title."""

    sections: list[Html]
    tasks: dict[str, str]


def plugin_pages(results: Results) -> Pages:
    """One section a registered page that has something to say; one that fails says so in its place, and the report
    goes on."""
    sections: list[Html] = []
    tasks: dict[str, str] = {}
    for entry in names("page"):
        try:
            page: Page = find(entry.name, "page")()
            body = page.html(results)
            if body:
                sections.append(section(page.title, Html(body)))
                tasks |= dict.fromkeys(page.tasks, page.title)
        except Exception as error:
            message = f"The page '{entry.name}' could not be made: {type(error).__name__}: {error}"
            sections.append(section(entry.name, note(message)))
    return Pages(sections, tasks)
