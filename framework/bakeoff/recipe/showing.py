"""`--print`: the whole recipe, each value with where it comes from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from bakeoff.recipe.reading import join

if TYPE_CHECKING:
    from bakeoff.recipe.single import Recipe


def show(recipe: Recipe, console: Any = None) -> None:
    """Print YAML that can be read back, with `# source` behind each value."""
    from rich.console import Console

    out = console or Console()
    sources = recipe.sources
    rows = list(lines(recipe.full, sources))
    width = min(60, max(len(text) for text, _ in rows))
    for text, source in rows:
        out.print(f"{text:<{width}}  # {source}" if source else text, markup=False, highlight=False, soft_wrap=True)


def lines(value: Any, sources: Mapping[str, str], path: str = "", indent: str = "") -> list[tuple[str, str]]:
    """`(text, source)` of each line; lines that open a mapping have no source."""
    found: list[tuple[str, str]] = []
    for key, item in value.items():
        inner = join(path, key)
        if isinstance(item, Mapping) and item:
            found += [(f"{indent}{key}:", ""), *lines(item, sources, inner, indent + "  ")]
        elif isinstance(item, list) and any(isinstance(i, Mapping) for i in item):
            found.append((f"{indent}{key}:", ""))
            for index, one in enumerate(item):
                found += _item(one, sources, join(inner, index), indent)
        else:
            found.append((f"{indent}{key}: {scalar(item)}", sources.get(inner, "")))
    return found


def _item(one: Any, sources: Mapping[str, str], path: str, indent: str) -> list[tuple[str, str]]:
    if not (isinstance(one, Mapping) and one):
        return [(f"{indent}- {scalar(one)}", sources.get(path, ""))]
    first, *others = lines(one, sources, path, indent + "  ")
    return [(f"{indent}- {first[0].lstrip()}", first[1]), *others]


def scalar(value: Any) -> str:
    """A value on one line, as YAML."""
    if isinstance(value, str):
        plain = value.replace("_", "a").replace(".", "a").replace("/", "a").replace("-", "a").isalnum()
        return value if plain and value[0].isalpha() and value not in ("null", "true", "false") else json.dumps(value)
    if isinstance(value, list):
        return f"[{', '.join(scalar(item) for item in value)}]"
    return json.dumps(value)
