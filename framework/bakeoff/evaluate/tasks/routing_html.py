"""What task `routing` shows: tables of experts, and text in their colours."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Items
from html import escape
from importlib.resources import files
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
#: How many kinds of lines stand under the text: of the first eight experts, of the next eight, …
LINES = 4
#: Of text on a shade: that of the report, elsewhere the browser's.
INK = "var(--ink, CanvasText)"
#: So many experts can be told apart.
APART = len(COLOURS) * LINES
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
        f"<p>{len(text.tokens):,} held-out tokens, layer by layer.{escape(soft)}</p>",
        _numbers(layers),
        "<h3>Load of each expert</h3>",
        loads({place: layer.load.tolist() for place, layer in layers.items()}),
        "<h3>Experts against classes of tokens</h3>",
        f'<div class="tables">{"".join(_classes(place, layers[place], counts) for place in chosen)}</div>',
        f"<p class=note>Of each class's tokens, the percentage whose first choice is the expert. Shaded against all "
        f"tokens together: {_key('more of this class than of all', 'less')}</p>",
        *(_frequent(place, layers[place], tokenizer) for place in chosen if any(layers[place].frequent)),
        _coloured(text, {place: layers[place] for place in chosen}, passages, tokenizer) if passages else "",
    ]
    return framed("".join(parts))


def framed(html: str) -> str:
    """Pieces of this module with the style that they need."""
    return f'<div class="routing">{_style()}{html}</div>'


def _style() -> str:
    """Of all that stands in `.routing`: colours of experts e0, e1, …, shades p1 to p6 of more, n1 to n6 of less."""
    experts = [
        f".routing .e{i} {{ background: rgb({colour} / var(--strength)); border-bottom: 2px solid rgb({colour}) }}"
        for i, colour in enumerate(COLOURS)
    ]
    shades = [
        f".routing .{name}{level} {{ background-color: rgb({colour} / {0.6 * level / SHADES:.2f}); color: {INK} }}"
        for name, colour in (("p", POSITIVE), ("n", NEGATIVE))
        for level in range(1, SHADES + 1)
    ]
    sheet = files(__package__).joinpath("routing.css").read_text(encoding="utf-8")
    return f"<style>{' '.join([*experts, *shades])} {sheet}</style>"


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


def loads(shares: Mapping[str, Items[float]]) -> str:
    """Experts against layers: the share of its layer's choices that each expert took."""
    most = max(map(len, shares.values()))
    rows = []
    for place, values in shares.items():
        cells = [_heat(f"{value * len(values):.2f}", value * len(values), most) for value in values]
        rows.append([place, *cells, *["–"] * (most - len(values))])
    head = ["layer", *map(str, range(most))]
    table = _table("Load of each expert in each layer", head, rows, _size(most))
    return f"{table}<p class=note>1 is an even share of the layer's choices. {_key('more', 'less')}</p>"


def _classes(place: str, layer: Layer, counts: Tensor) -> str:
    """Experts against classes of tokens, of one layer; one token more on both sides keeps rare ones from glaring."""
    E, total = layer.choices.n_experts, layer.classes.sum()
    overall = (layer.classes.sum(0) / total.clamp_min(1)).tolist()
    rows = []
    for name, own, count in zip(CLASSES, layer.classes, counts.tolist(), strict=True):
        taken = int(own.sum())
        if taken:
            cells = [
                _heat(f"{100 * n / taken:.0f}", (n + 1) / (share * taken + 1), E)
                for n, share in zip(own.tolist(), overall, strict=True)
            ]
            rows.append([f"{name} ({count:,})", *cells])
    if E <= NUMBERED:
        rows.append(["all", *(f"{100 * share:.0f}" for share in overall)])
    label = f"Experts against classes of tokens, layer {place}"
    table = _table(label, ["class (tokens)", *map(str, range(E))], rows, _size(E))
    return f"<div><p><b>Layer {escape(place)}</b></p>{table}</div>"


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
    chips = " ".join(f'<span class="chip {_name(e)}">{e}</span>' for e in range(min(most, APART)))
    more = f"; from {APART} on they begin again" if most > APART else ""
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
    line = expert // len(COLOURS) % LINES
    return f"e{expert % len(COLOURS)}" + (f" u{line}" if line else "")
