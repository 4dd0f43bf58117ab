"""Tables of the page."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Items

from bakeoff.compare.report.markup import Html, element


def scrolling(content: Html, label: str) -> Html:
    """A box that scrolls sideways by itself, reachable by keyboard, so that the page never does."""
    return element("div", content, class_="scroll", tabindex=0, role="region", aria_label=label)


def grid(label: str, head: Items[str], rows: Iterable[Items[str]], class_: str | None = None) -> Html:
    """A scrolling table; the first cell of a row is its heading; what is a `<td>` or `<th>` passes as it is."""
    body = [
        element("tr", element("th", first, scope="row"), *(_cell(cell, "td") for cell in cells))
        for first, *cells in rows
    ]
    top = [element("thead", element("tr", *(_cell(text, "th") for text in head)))] if head else []
    return scrolling(element("table", *top, element("tbody", *body), class_=class_), label)


def words(text: str) -> Html:
    """A cell of prose, that may wrap."""
    return element("td", text, class_="word")


def _cell(cell: str, name: str) -> Html:
    if isinstance(cell, Html) and cell.startswith(f"<{name}"):
        return cell
    return element(name, cell, scope="col" if name == "th" else None)


def section(title: str, *content: str, id_: str | None = None) -> Html:
    """A section of the page under its heading."""
    return element("section", element("h2", title), *content, id_=id_)


def note(text: str) -> Html:
    """What must be known to read what stands above it."""
    return element("p", text, class_="note")
