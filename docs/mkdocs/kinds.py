"""One page a kind, from the registry: its interface, its laws, its components, what they claim and cost."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Iterable, Iterator, Mapping

import api
import costs
from bakeoff.interfaces import Part
from bakeoff.interfaces.component import CLAIMS
from bakeoff.registry import KINDS, Entry, find, interface_of, names
from bakeoff.testing.law import laws_for


def all_kinds() -> list[str]:
    """Every kind."""
    return list(KINDS)


def pages() -> Mapping[str, str]:
    """The overview and each kind's page."""
    return {"kinds/index.md": _overview(), **{f"kinds/{kind}.md": page(kind) for kind in all_kinds()}}


def page(kind: str) -> str:
    """One kind's page."""
    interface, registered = interface_of(kind), names(kind)
    return "\n\n".join(
        [
            f"# {kind}",
            purpose(kind),
            "## Interface",
            api.directive(interface.__name__, interface, level=3),
            "## Laws",
            _laws(kind),
            "## Registered",
            _registered(registered),
            *_claims(registered),
            *costs.section(registered),
            *_each(kind, registered),
        ]
    )


def purpose(kind: str) -> str:
    """What the module of the interface says of the kind."""
    told = inspect.getdoc(sys.modules[interface_of(kind).__module__]) or ""
    text = told.removeprefix(f"Kind `{kind}`: ")
    return text[:1].upper() + text[1:]


def table(titles: Iterable[str], rows: Iterable[Iterable[str]], *, numbers: int = 0) -> str:
    """A Markdown table whose last `numbers` columns are aligned to the right."""
    heads = list(titles)
    rules = ["---"] * (len(heads) - numbers) + ["--:"] * numbers
    lines = (" | ".join(cell.replace("|", "\\|").replace("\n", " ") for cell in row) for row in [heads, rules, *rows])
    return "\n".join(f"| {line} |" for line in lines)


def _prose(text: str) -> str:
    """A table whose third column is sentences, which a narrow screen shall not squeeze."""
    return f'<div class="prose" markdown>\n\n{text}\n\n</div>'


def _overview() -> str:
    rows = [
        (f"[{kind}]({kind}.md)", purpose(kind), _listed(entry.name for entry in names(kind)) or "none yet")
        for kind in all_kinds()
    ]
    return "\n\n".join(
        [
            "# Components",
            "A component is a class that implements one of the interfaces and is registered under a name. Its kind is "
            "the interface. These pages are made from the registry, the interfaces and the conformance kit of this "
            "release; `bakeoff list` tells the same of what is installed where you are.",
            table(["kind", "what it is", "registered"], rows),
        ]
    )


def _laws(kind: str) -> str:
    rows = [
        (
            "" if law.number is None else str(law.number),
            law.name + (" (slow)" if law.slow else ""),
            law.demand,
            " or ".join(f"`{claim}`" for claim in law.claims) or "all",
        )
        for law in laws_for(kind, None, slow=True)
    ]
    return (
        '`bakeoff.testing.check("NAME")` runs these. The last column says of which components a law is asked: of all, '
        "or of those that claim a capability (for `flops`, that define the method).\n\n"
        + _prose(table(["#", "law", "what must hold", "asked of"], rows))
    )


def _registered(registered: list[Entry]) -> str:
    if not registered:
        return "This release registers none; a plugin can."
    titles = ["name", "package", "what it is", "reference"]
    rows = [
        (_linked(entry), f"{entry.package}&nbsp;{entry.version}", _first_sentence(find(entry.name)), _reference(entry))
        for entry in registered
    ]
    if not any(reference for *_, reference in rows):
        return _prose(table(titles[:-1], (row[:-1] for row in rows)))
    return _prose(table(titles, rows))


def _linked(entry: Entry) -> str:
    return f"`{entry.name}`" if entry.kind == "command" else f"[`{entry.name}`](#{anchor(find(entry.name))})"


def anchor(cls: type) -> str:
    """Where mkdocstrings puts a class."""
    return f"{cls.__module__}.{cls.__qualname__}"


def _first_sentence(cls: type) -> str:
    return (inspect.getdoc(cls) or "").partition("\n\n")[0]


def _reference(entry: Entry) -> str:
    reference = getattr(find(entry.name), "reference", None)
    return "" if reference is None else f"{reference.authors} ({reference.year}). [{reference.title}]({reference.url})"


def _claims(registered: list[Entry]) -> Iterator[str]:
    """What parts claim, for kinds whose components are parts."""
    classes = {entry.name: find(entry.name) for entry in registered if issubclass(find(entry.name), Part)}
    if not classes:
        return
    yield "## Claims"
    composed = [name for name, cls in classes.items() if isinstance(cls.capabilities, property)]
    if composed:
        yield f"{_listed(composed)}: composed, so what all the parts inside claim."
    built = {name: costs.specimen(cls) for name, cls in classes.items() if name not in composed}
    stated = {name: part.capabilities for name, part in built.items() if part is not None}
    if stated:
        common = [claim for claim in CLAIMS if all(getattr(one, claim) for one in stated.values())]
        shown = [c for c in CLAIMS if c not in common and any(getattr(one, c) for one in stated.values())]
        yield f"{'All these' if composed else 'All'} claim {_listed(common)}."
        rows = [(f"`{name}`", *("✓" if getattr(one, c) else "" for c in shown)) for name, one in stated.items()]
        if shown:
            yield table(["", *(f"`{claim}`" for claim in shown)], rows)


def _listed(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words)


def _each(kind: str, registered: list[Entry]) -> Iterator[str]:
    """Arguments of each component; those of commands are on the page of the command line."""
    if kind == "command" or not registered:
        return
    yield "## Arguments"
    for entry in registered:
        yield api.directive(entry.name, find(entry.name), level=3, members=False)
