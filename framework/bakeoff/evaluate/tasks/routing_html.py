"""What task `routing` shows: tables of experts, and text in their colours."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Items
from html import escape
from itertools import groupby
from typing import TYPE_CHECKING

from torch import Tensor

from bakeoff.evaluate.tasks.coloured import NEGATIVE, POSITIVE, SHADES, characters, shade
from bakeoff.evaluate.tasks.token_classes import CLASSES, written
from bakeoff.interfaces.tokenizer import Tokenizer

if TYPE_CHECKING:
    from bakeoff.evaluate.tasks.routed import Text
    from bakeoff.evaluate.tasks.routing import Layer

#: Red, green and blue of experts 0, 1, …: hues of Okabe and Ito (2008), apart for colour-blind eyes too.
COLOURS = ("230 159 0", "86 180 233", "0 158 115", "240 228 66", "0 114 178", "213 94 0", "204 121 167", "128 128 128")
#: Lines under the text of the first eight experts, of the next eight, …
LINES = ("solid", "dotted", "dashed", "double")
#: Cells of a heat map with more experts than this hold no numbers.
NUMBERED = 16
#: How many times as much as expected has the strongest shade.
STRONGEST = 4.0

#: Heading, figure and how it is written.
COLUMNS = (
    ("max violation", "max_violation", "{:.2f}"),
    ("entropy, nats", "entropy", "{:.3f}"),
    ("dropped", "dropped", "{:.1%}"),
    ("unrouted", "unrouted", "{:.1%}"),
    ("same first choice as the token before", "repeated", "{:.1%}"),
    ("by chance", "repeated_by_chance", "{:.1%}"),
    ("a choice in common with it", "shared", "{:.1%}"),
    ("by chance", "shared_by_chance", "{:.1%}"),
)


def shown(text: Text, layers: Mapping[str, Layer], counts: Tensor, passages: Items[slice], tokenizer: Tokenizer) -> str:
    """Everything; `counts` (C,) says how many tokens of each class were read."""
    places = list(layers)
    chosen = list(dict.fromkeys(places[i] for i in (0, (len(places) - 1) // 2, -1)))
    soft = f" Of {', '.join(text.soft)} nothing is told: soft routing gives tokens no choices." if text.soft else ""
    parts = [
        _style(),
        f"<p>{len(text.tokens):,} held-out tokens, layer by layer.{escape(soft)}</p>",
        _numbers(layers),
        "<h3>Load of each expert</h3>",
        _loads(layers),
        f"<p class=note>1 is an even share of the layer's choices. {_key('more', 'less')}</p>",
        *(_classes(place, layers[place], counts) for place in chosen),
        f"<p class=note>Of each class's tokens, the percentage whose first choice is the expert. Shaded against all "
        f"tokens together: {_key('more of this class than of all', 'less')}</p>",
        *(_frequent(place, layers[place], tokenizer) for place in chosen if any(layers[place].frequent)),
        _coloured(text, {place: layers[place] for place in chosen}, passages, tokenizer) if passages else "",
    ]
    return f'<div class="routing">{"".join(parts)}</div>'


def _style() -> str:
    """Of all that stands in `.routing`; shades and colours have names of their own there."""
    sides = (("p", POSITIVE), ("n", NEGATIVE))
    rules = [
        ".routing { --strength: 0.4 }",
        "@media screen and (prefers-color-scheme: dark) { .routing { --strength: 0.3 } }",
        ".routing .box { overflow-x: auto; margin: 0 0 0.75rem }",
        ".routing table { border-collapse: collapse; width: auto; font-size: 0.8rem; font-variant-numeric: "
        "tabular-nums }",
        ".routing th, .routing td { padding: 0.2rem 0.45rem; text-align: right; border: 0; white-space: nowrap }",
        ".routing thead th { vertical-align: bottom; white-space: normal; max-width: 7rem }",
        ".routing th:first-child, .routing td.words { text-align: left }",
        ".routing td.words { white-space: normal }",
        ".routing td { border: 1px solid transparent; background-clip: padding-box }",
        ".routing .small td { padding: 0.2rem 0; min-width: 0.85rem }",
        ".routing .small thead th { padding: 0.2rem 0; font-size: 0.65rem }",
        ".routing code { font-size: 0.75rem; padding: 0 0.25rem; white-space: pre }",
        ".routing .texts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 17rem), 1fr)); "
        "gap: 1rem 1.5rem }",
        ".routing .text { font: 0.8rem/1.9 ui-monospace, Menlo, Consolas, monospace; white-space: pre-wrap; "
        "overflow-wrap: anywhere; margin: 0 }",
        ".routing .chip { font: 0.8rem/2 ui-monospace, Menlo, Consolas, monospace; padding: 0 0.4em; margin-right: "
        "0.3em }",
    ]
    rules += [
        f".routing .{name}{level} {{ background-color: rgb({colour} / {0.6 * level / SHADES:.2f}) }}"
        for name, colour in sides
        for level in range(1, SHADES + 1)
    ]
    rules += [
        f".routing .e{i} {{ background: rgb({colour} / var(--strength)); border-bottom: 2px solid rgb({colour}) }}"
        for i, colour in enumerate(COLOURS)
    ]
    rules += [f".routing .u{i} {{ border-bottom-style: {line} }}" for i, line in enumerate(LINES) if i]
    rules.append(".routing .u3 { border-bottom-width: 4px }")
    return f"<style>{' '.join(rules)}</style>"


def _key(more: str, less: str) -> str:
    """What the strongest shades mean, in words."""
    strong = f"{STRONGEST:.0f}"
    return (
        f'<span class="p{SHADES}">&nbsp;{escape(more)}: {strong} times or above&nbsp;</span> '
        f'<span class="n{SHADES}">&nbsp;{escape(less)}: 1/{strong} or below&nbsp;</span>'
    )


def _table(label: str, head: Items[str], rows: Iterable[Items[str]], class_: str = "") -> str:
    """Cells that are no `<td …>` are text."""
    top = "".join(f"<th scope=col>{escape(cell)}</th>" for cell in head)
    body = "".join(
        f"<tr><th scope=row>{escape(first)}</th>"
        + "".join(cell if cell.startswith("<td") else f"<td>{escape(cell)}</td>" for cell in cells)
        + "</tr>"
        for first, *cells in rows
    )
    table = f'<table class="{class_}"><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>'
    return f'<div class="box" tabindex=0 role=region aria-label="{escape(label)}">{table}</div>'


def _numbers(layers: Mapping[str, Layer]) -> str:
    """The figures of each layer."""
    known = [column for column in COLUMNS if any(column[1] in layer.numbers for layer in layers.values())]
    rows = [
        [
            place,
            str(layer.choices.n_experts),
            *(how.format(layer.numbers[name]) if name in layer.numbers else "–" for _, name, how in known),
        ]
        for place, layer in layers.items()
    ]
    return _table("Routing by layer", ["layer", "experts", *(heading for heading, _, _ in known)], rows)


def _loads(layers: Mapping[str, Layer]) -> str:
    """Experts against layers."""
    most = max(layer.choices.n_experts for layer in layers.values())
    rows = []
    for place, layer in layers.items():
        even = (layer.load * layer.choices.n_experts).tolist()
        rows.append([place, *(_heat(f"{value:.2f}", value, most) for value in even)])
    return _table("Load of each expert in each layer", ["layer", *map(str, range(most))], rows, _size(most))


def _classes(place: str, layer: Layer, counts: Tensor) -> str:
    """Experts against classes of tokens, of one layer."""
    E, total = layer.choices.n_experts, layer.classes.sum()
    overall = (layer.classes.sum(0) / total.clamp_min(1)).tolist()
    rows = []
    for name, own, count in zip(CLASSES, layer.classes, counts.tolist(), strict=True):
        taken = int(own.sum())
        if taken:
            shares = (own / taken).tolist()
            cells = [_heat(f"{100 * s:.0f}", s / o if o else 1.0, E) for s, o in zip(shares, overall, strict=True)]
            rows.append([f"{name} ({count:,})", *cells])
    everything = [_heat(f"{100 * share:.0f}", 1.0, E) for share in overall]
    table = _table(
        f"Experts against classes of tokens, layer {place}",
        ["class (tokens)", *map(str, range(E))],
        [*rows, ["all", *everything]],
        _size(E),
    )
    return f"<h3>Experts against classes of tokens, layer {escape(place)}</h3>{table}"


def _heat(text: str, ratio: float, experts: int) -> str:
    """A cell shaded by how many times as much as expected there is."""
    strength = math.log(max(ratio, 1e-9)) / math.log(STRONGEST)
    name = shade(strength, 1.0)
    given = f' class="{name}"' if name else ""
    return f"<td{given}>{text}</td>" if experts <= NUMBERED else f'<td{given} title="{text}"></td>'


def _size(experts: int) -> str:
    return "" if experts <= NUMBERED else "small"


def _frequent(place: str, layer: Layer, tokenizer: Tokenizer) -> str:
    """The most frequent tokens of each expert."""
    rows = []
    for expert, found in enumerate(layer.frequent):
        tokens = " ".join(
            f'<code title="{count:,}">{escape(written(tokenizer.token_bytes(token)))}</code>' for token, count in found
        )
        rows.append([str(expert), f"{100 * float(layer.load[expert]):.1f} %", f"<td class=words>{tokens or '–'}</td>"])
    label = f"The most frequent tokens of each expert, layer {place}"
    table = _table(label, ["expert", "load", "tokens, the most frequent first"], rows)
    return f"<details><summary>{escape(label)}</summary>{table}</details>"


def _coloured(text: Text, layers: Mapping[str, Layer], passages: Items[slice], tokenizer: Tokenizer) -> str:
    """Each passage in the colours of its experts, one layer beside another."""
    most = max(layer.choices.n_experts for layer in layers.values())
    chips = " ".join(f'<span class="chip {_name(e)}">{e}</span>' for e in range(min(most, len(COLOURS) * len(LINES))))
    more = f"; from {len(COLOURS) * len(LINES)} on they begin again" if most > len(COLOURS) * len(LINES) else ""
    shown = []
    for number, place in enumerate(passages):
        figures = []
        for name, layer in layers.items():
            ids, first = text.tokens[place].tolist(), layer.choices.first[place].tolist()
            painted = _painted(characters(tokenizer, ids, first), layer.choices.n_experts)
            figures.append(f'<div><p><b>Layer {escape(name)}</b></p><p class="text">{painted}</p></div>')
        shown.append(f'<h4>Passage {number + 1}</h4><div class="texts">{"".join(figures)}</div>')
    return (
        f"<h3>Text in the colours of its experts</h3><p>{chips}</p><p class=note>Each token has the colour and line of "
        f"its first choice{more}; one without was taken by no expert. Equal numbers in two layers are unrelated "
        f"experts.</p>{''.join(shown)}"
    )


def _painted(text: Iterable[tuple[str, float]], n_experts: int) -> str:
    spans = []
    for expert, run in groupby(text, lambda pair: int(pair[1])):
        piece = escape("".join(character for character, _ in run))
        spans.append(piece if expert >= n_experts else f'<span class="{_name(expert)}" title="{expert}">{piece}</span>')
    return "".join(spans)


def _name(expert: int) -> str:
    line = expert // len(COLOURS) % len(LINES)
    return f"e{expert % len(COLOURS)}" + (f" u{line}" if line else "")
