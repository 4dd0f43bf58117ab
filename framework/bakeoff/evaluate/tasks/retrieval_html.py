"""What task `retrieval` shows: bits per byte under each condition and by overlap, and texts with what was found."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from collections.abc import Sequence as Items
from html import escape
from importlib.resources import files
from itertools import groupby
from typing import Any

from bakeoff.evaluate.tasks.coloured import NEGATIVE, POSITIVE, SHADES, characters, shade
from bakeoff.evaluate.tasks.passages import Neighbour, Passage
from bakeoff.evaluate.tasks.token_classes import written
from bakeoff.interfaces.tokenizer import Tokenizer

#: Conditions, as they are called.
CONDITIONS = {
    "found": "what was found",
    "none": "nothing",
    "shuffled": "what was found for another chunk",
    "random": "random chunks of the database",
}
#: Of text on a shade: that of the report, elsewhere the browser's.
INK = "var(--ink, CanvasText)"


def page(data: Mapping[str, Any], texts: Items[Passage], tokenizer: Tokenizer) -> str:
    """Everything."""
    kind, count = data["pieces"]
    told = (
        f"{data['chunks']:,} chunks of {data['chunk']} tokens of held-out text, {data['k']} neighbours each from a "
        f"database of {data['database']:,} chunks. Intervals are 95 % bootstrap intervals over {count:,} {kind}."
    )
    parts = [f"<p>{escape(told)}</p>", _conditions(data), _by_overlap(data)]
    parts += [_tried("neighbours", data["by_k"], "{:g}"), _tried("share of the database", data["by_share"], "{:.4g}")]
    return framed("".join([*parts, _texts(texts, tokenizer)]))


def framed(html: str) -> str:
    """Pieces of this module with the style that they need."""
    shades = " ".join(
        f".retrieval .{name}{level} {{ background-color: rgb({colour} / {0.6 * level / SHADES:.2f}); color: {INK} }}"
        for name, colour in (("p", POSITIVE), ("n", NEGATIVE))
        for level in range(1, SHADES + 1)
    )
    sheet = files(__package__).joinpath("retrieval.css").read_text(encoding="utf-8")
    return f'<div class="retrieval"><style>{shades} {sheet}</style>{html}</div>'


def signed(value: float, digits: int) -> str:
    """With its sign; never a negative zero."""
    return f"{round(value, digits) + 0.0:+.{digits}f}"


def _conditions(data: Mapping[str, Any]) -> str:
    rows = []
    for name, words in CONDITIONS.items():
        gain = data["gains"].get(name)
        told = ["–", "–"] if gain is None else [signed(gain[0], 4), f"{signed(gain[1], 4)} to {signed(gain[2], 4)}"]
        rows.append([words, f"{data['bits'][name]:.4f}", *told])
    head = ["the model is shown", "bits per byte", "gained by what was found", "95 % interval"]
    return _table("Bits per byte by what the model is shown", head, rows)


def _by_overlap(data: Mapping[str, Any]) -> str:
    """A row for each bucket, with what is gained up to it."""
    own = {bucket["most"]: bucket for bucket in data["between"]}
    rows, below = [], 0.0
    for bucket in data["up_to"]:
        most = bucket["most"]
        here = own.get(most)
        cells = _bucket(here) if here else ["0", "–", "–", "–", "–"]
        rows.append([f"{below:g} – {most:g}", *cells, signed(bucket["without"] - bucket["found"], 4)])
        below = most
    head = ["overlap", "chunks", "share of bytes", "without", "with", "gained", "gained up to here"]
    note = (
        "Overlap: the longest run of tokens that a chunk has in common with any of its "
        f"{data['candidates']} nearest neighbours and what follows them, as a share of the chunk. Where little can be "
        "copied, a gain is not copying. Bits per byte of the tokens in whole chunks."
    )
    table = _table("Bits per byte by overlap", head, rows)
    return f"<h3>By overlap with the database</h3>{table}<p class=note>{escape(note)}</p>"


def _bucket(bucket: Mapping[str, Any]) -> list[str]:
    found, without = bucket["found"], bucket["without"]
    share = f"{100 * bucket['share']:.1f} %"
    return [f"{bucket['chunks']:,}", share, f"{without:.4f}", f"{found:.4f}", signed(without - found, 4)]


def _tried(what: str, pairs: Items[Items[float]], how: str) -> str:
    """Bits per byte by something that several values were tried of; nothing where none were."""
    if not pairs:
        return ""
    rows = [[how.format(value), f"{bits:.4f}"] for value, bits in pairs]
    return f"<h3>By {escape(what)}</h3>{_table(f'Bits per byte by {what}', [what, 'bits per byte'], rows)}"


def _table(label: str, head: Items[str], rows: Iterable[Items[str]]) -> str:
    top = "".join(f"<th scope=col>{escape(cell)}</th>" for cell in head)
    body = "".join(
        f"<tr><th scope=row>{escape(first)}</th>{''.join(f'<td>{escape(cell)}</td>' for cell in cells)}</tr>"
        for first, *cells in rows
    )
    table = f"<table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table>"
    return f'<div class="box" tabindex=0 role=region aria-label="{escape(label)}">{table}</div>'


def _texts(texts: Items[Passage], tokenizer: Tokenizer) -> str:
    """The chunks, each beside what was found."""
    if not texts:
        return ""
    largest = max(abs(bits) for text in texts for bits in text.saved)
    note = (
        "On the left the chunk that was looked up, in grey, and the one that the model then predicts, coloured by the "
        "bits that what was found saves on each token; hold the pointer over one for both its losses. On the right "
        "what was found, and behind the bar what follows it there; marked is the longest run in common with the "
        "coloured chunk."
    )
    shown = "".join(_text(text, largest, tokenizer) for text in texts)
    return f"<h3>Texts and what was found for them</h3><p class=note>{escape(note)}</p>{_legend(largest)}{shown}"


def _legend(largest: float) -> str:
    levels = [("n", level) for level in range(SHADES, 0, -2)] + [("", 0)] + [("p", i) for i in range(2, SHADES + 1, 2)]
    chips = "".join(
        f'<span class="chip {name}{level}">{signed((-1 if name == "n" else 1) * largest * level / SHADES, 1)}</span>'
        if name
        else '<span class="chip">0</span>'
        for name, level in levels
    )
    return f'<p class="legend">costs more {chips} bits saved</p>'


def _text(text: Passage, largest: float, tokenizer: Tokenizer) -> str:
    saved, m = sum(text.saved), len(text.tokens)
    told = (
        f"{text.what}: {signed(saved, 1)} bits in {m} tokens ({sum(text.without):.1f} without, "
        f"{sum(text.found):.1f} with); overlap {text.overlap:.2f}"
    )
    before = escape("".join(character for character, _ in characters(tokenizer, text.before, text.before)))
    found = "".join(_neighbour(i, each, m, tokenizer) for i, each in enumerate(text.neighbours, 1))
    return (
        f'<h4>{escape(told)}</h4><div class="sides"><div><p class="text"><span class="before">{before}</span>'
        f"{_coloured(text, largest, tokenizer)}</p>{_losses(text, largest, tokenizer)}</div>"
        f"<div>{found or '<p class=note>Nothing was found.</p>'}</div></div>"
    )


def _coloured(text: Passage, largest: float, tokenizer: Tokenizer) -> str:
    """Its tokens, each with what it costs."""
    spans = []
    numbered = characters(tokenizer, text.tokens, range(len(text.tokens)))
    for number, group in groupby(numbered, lambda pair: int(pair[1])):
        piece = escape("".join(character for character, _ in group))
        name = shade(text.saved[number], largest)
        given = f' class="{name}"' if name else ""
        title = f"{text.without[number]:.2f} bits without, {text.found[number]:.2f} with"
        spans.append(f'<span{given} title="{title}">{piece}</span>')
    return "".join(spans)


def _losses(text: Passage, largest: float, tokenizer: Tokenizer) -> str:
    """The same as a table, for who has no pointer."""
    rows = []
    for token, without, found in zip(text.tokens, text.without, text.found, strict=True):
        name = shade(without - found, largest)
        given = f' class="{name}"' if name else ""
        token_text = escape(written(tokenizer.token_bytes(token)))
        rows.append(
            f"<tr><th scope=row><code>{token_text}</code></th><td>{without:.2f}</td><td>{found:.2f}</td>"
            f"<td{given}>{signed(without - found, 2)}</td></tr>"
        )
    head = "".join(f"<th scope=col>{cell}</th>" for cell in ("token", "bits without", "with", "saved"))
    table = f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table>"
    label = f"Losses of each token, {text.what.lower()}"
    box = f'<div class="box low" tabindex=0 role=region aria-label="{escape(label)}">{table}</div>'
    return f"<details><summary>Losses of each token</summary>{box}</details>"


def _neighbour(number: int, found: Neighbour, chunk: int, tokenizer: Tokenizer) -> str:
    """Its text, the run marked, a bar before what follows the chunk."""
    begin, end = found.run.second, found.run.second + found.run.size
    numbered = characters(tokenizer, found.tokens, range(len(found.tokens)))
    html, following = [], False
    for (follows, marked), group in groupby(numbered, lambda pair: (pair[1] >= chunk, begin <= pair[1] < end)):
        piece = escape("".join(character for character, _ in group))
        bar = '<span class="bar"></span>' if follows and not following else ""
        html.append(bar + (f"<mark>{piece}</mark>" if marked else piece))
        following = follows
    size = found.run.size
    common = f"a run of {size} {'token' if size == 1 else 'tokens'} in common" if size else "no token in common"
    told = f"{number}. Document {found.document:,}, score {found.score:.3f}, {common}"
    return f'<p class="source">{escape(told)}</p><p class="text found">{"".join(html)}</p>'
