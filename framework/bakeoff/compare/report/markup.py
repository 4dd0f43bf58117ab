"""HTML that cannot be broken by what is put in: all text is escaped, only `Html` passes as it is."""

from __future__ import annotations

import json
from html import escape
from typing import Any


class Html(str):
    """Text that is markup already."""


def element(name: str, *children: str, **attributes: str | float | bool | None) -> Html:
    """`<name …>children</name>`; `_` in attribute names stands for `-`, a trailing one is dropped (`class_`)."""
    given = []
    for key, value in attributes.items():
        key = key.rstrip("_").replace("_", "-")
        if value is True:
            given.append(f" {key}")
        elif value is not None and value is not False:
            given.append(f' {key}="{escape(str(value))}"')
    body = "".join(safe(child) for child in children)
    return Html(f"<{name}{''.join(given)}>{body}</{name}>")


def safe(text: str) -> Html:
    """The text as markup."""
    return text if isinstance(text, Html) else Html(escape(str(text)))


def join(*parts: str) -> Html:
    """Several pieces one after the other."""
    return Html("".join(safe(part) for part in parts))


def embedded(data: Any, id_: str) -> Html:
    """Data for scripts, as JSON that no value can close."""
    text = json.dumps(data, allow_nan=False, separators=(",", ":"))
    for character in "<>&":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return Html(f'<script type="application/json" id="{id_}">{text}</script>')
