"""Recipes with one fault each: the shipped ones, changed as people, editors and attackers change files."""

from __future__ import annotations

import copy
import random
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import yaml

#: Stands in payloads for the path of a file that nobody may make.
CANARY = "CANARY"
VALUES: list[Any] = [
    None, True, False, -1, 0, 1, 7, 2.5, 1e300, 10**30, "4", "", "x y", "null", "é", [], [1, "a"], [[]], {},
    {"a": {"b": 1}}, {"use": "mlp"}, {"use": 3}, {"use": "os.system"}, {"use": "no_such_part"},
    {"class_path": "a.b"}, "???", "${x}",
    "${oc.env:HOME}", "${model.d_model}", float("nan"), float("inf"), float("-inf"),
]  # fmt: skip
DEEP = (3, 30, 2_000, 30_000)
HUGE: list[str] = [
    "x" * 900_000,
    "x" * 2_000_000,
    "9" * 5_000,
    "1e999",
    "-1e999",
    "9" * 400_000,
    "0x" + "f" * 4_000,
    f"[{', '.join(['0'] * 9_000)}]",
    f"[{', '.join(['0'] * 1_000_000)}]",
    f"[{', '.join(['a'] * 15_000)}]",
    "{" + ", ".join(f"k{number}: 0" for number in range(9_000)) + "}",
]
SCALARS = [
    ".nan",
    ".inf",
    "-.inf",
    "NaN",
    "+1",
    "0o17",
    "0b1",
    "1_000",
    "1:30",
    "2001-01-01",
    "yes",
    "~",
    "1e3",
    "=",
    "%",
]
TAGS = [
    f"!!python/object/apply:os.system ['touch {CANARY}']",
    f"!!python/object/apply:subprocess.check_call [['touch', '{CANARY}']]",
    "!!python/object/new:type {args: ['z', !!python/tuple [], {}], state: !!python/name:os.system}",
    f"!!python/object/apply:builtins.eval [\"open('{CANARY}', 'w')\"]",
    "!!python/name:os.system",
    "!!python/module:antigravity",
    "!!python/tuple [1, 2]",
    "!!binary aGVsbG8=",
    "!!set {a, b}",
    "!!timestamp 2001-01-01",
    "!unknown 3",
    "!<tag:example.com,2000:x> {a: 1}",
    "!!int seven",
    "!!float x",
    "!!str 4",
    "!!omap [a: 1]",
]


@dataclass(frozen=True)
class Mutant:
    """A file's bytes, what was done to it, and what became of one path where one value was changed."""

    fault: str
    content: bytes
    path: tuple[Any, ...] = ()
    same: bool = False
    """Whether the file says what it said before."""


Maker = Callable[[random.Random, str], Mutant]


def mutants(text: str, number: int, draw: random.Random) -> Iterator[Mutant]:
    """`number` mutants of a recipe's text, each kind of fault in turn."""
    first = draw.randrange(len(KINDS))
    for count in range(number):
        yield KINDS[(first + count) % len(KINDS)](draw, text)


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values."""
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return ([path] if path else []) + [inner for key, item in items for inner in places(item, (*path, key))]


def at(value: Any, path: tuple[Any, ...]) -> Any:
    for key in path:
        value = value[key]
    return value


def changed(draw: random.Random, text: str) -> tuple[dict[str, Any], Any, tuple[Any, ...]]:
    """The document, the holder of one of its values, and that value's path."""
    tree = copy.deepcopy(yaml.safe_load(text))
    path = draw.choice(places(tree))
    return tree, at(tree, path[:-1]), path


def dumped(tree: dict[str, Any]) -> bytes:
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True).encode()


def deleted(draw: random.Random, text: str) -> Mutant:
    tree, holder, path = changed(draw, text)
    del holder[path[-1]]
    return Mutant("deleted", dumped(tree), path)


def renamed(draw: random.Random, text: str) -> Mutant:
    tree, holder, path = changed(draw, text)
    if not isinstance(holder, dict):
        return renamed(draw, text)
    key = path[-1]
    other = draw.choice(
        [key + key[-1], key[:-1], key.upper(), f"{key}s", key[::-1], f" {key}", f"{key}.x", "x" * 50_000]
    )
    if other in holder or not other:
        return renamed(draw, text)
    tree = _with_key(tree, path, other)
    return Mutant("renamed", dumped(tree), (*path[:-1], other))


def _with_key(tree: Any, path: tuple[Any, ...], other: str) -> Any:
    """The same tree with one key renamed in its place."""
    key, *rest = path
    if not rest:
        return {other if name == key else name: item for name, item in tree.items()}
    tree[key] = _with_key(tree[key], tuple(rest), other)
    return tree


def retyped(draw: random.Random, text: str) -> Mutant:
    tree, holder, path = changed(draw, text)
    holder[path[-1]] = copy.deepcopy(draw.choice(VALUES))
    return Mutant("retyped", dumped(tree), path)


def added(draw: random.Random, text: str) -> Mutant:
    tree, holder, path = changed(draw, text)
    if not isinstance(holder, dict):
        return added(draw, text)
    other = draw.choice(
        [
            "extra",
            "__class__",
            "use",
            "class_path",
            "init_args",
            "dict_kwargs",
            "extends",
            "imports",
            "name",
            "_target_",
        ]
    )
    holder[other] = copy.deepcopy(draw.choice(VALUES))
    return Mutant("added", dumped(tree), (*path[:-1], other))


def literal(fault: str, texts: list[str]) -> Maker:
    """A value written as one of these texts."""

    def make(draw: random.Random, text: str) -> Mutant:
        tree, holder, path = changed(draw, text)
        holder[path[-1]] = "@@"
        written = yaml.safe_dump(tree, sort_keys=False).replace("'@@'", draw.choice(texts), 1)
        return Mutant(fault, written.encode(), path)

    return make


def nested(draw: random.Random, text: str) -> Mutant:
    depth = draw.choice(DEEP)
    opening, closing = draw.choice(["[]", "{}"])
    word = "a: " if opening == "{" else ""
    deep = f"{opening}{word}" * depth + "1" + closing * depth
    return literal("nested", [deep])(draw, text)


def block_nested(draw: random.Random, text: str) -> Mutant:
    lines = "\n".join(" " * depth + "a:" for depth in range(1, draw.choice((20, 1_200))))
    return Mutant("nested", f"{text}\nmore:\n{lines} 1\n".encode(), ("more",))


def encoded(draw: random.Random, text: str) -> Mutant:
    marked = f"# é ünï\n{text}"
    made = {
        "UTF-16": marked.encode("utf-16"),
        "UTF-16 without a mark": marked.encode("utf-16-le"),
        "UTF-32": marked.encode("utf-32"),
        "Latin-1": marked.encode("latin-1"),
        "NUL": text.encode().replace(b"\n", b"\n\0", 1),
        "NUL at the end": text.encode() + b"\0",
        "surrogate": text.encode() + b"# \xed\xa0\x80",
        "control": text.encode() + b"# \x1b[2J",
        "binary": draw.randbytes(4_000),
        "nothing": b"",
        "white": b" \n\n ",
    }
    fault = draw.choice(list(made))
    return Mutant(fault, made[fault])


def kept(draw: random.Random, text: str) -> Mutant:
    """Written otherwise, and the same."""
    made = {
        "BOM": b"\xef\xbb\xbf" + text.encode(),
        "CRLF": text.replace("\n", "\r\n").encode(),
        "start and end marks": f"---\n{text}\n...\n".encode(),
        "dumped": dumped(yaml.safe_load(text)),
        "directive": f"%YAML 1.1\n---\n{text}".encode(),
        "comments": text.replace("\n", "  # é\n").encode(),
        "JSON": yaml.safe_dump(yaml.safe_load(text), default_flow_style=True, width=10**9, sort_keys=False).encode(),
    }
    fault = draw.choice(list(made))
    return Mutant(fault, made[fault], same=True)


def structured(draw: random.Random, text: str) -> Mutant:
    """Anchors, aliases, merge keys, duplicates, tabs, several documents."""
    key = draw.choice(list(yaml.safe_load(text)))
    laughs = "\n".join(f"b{n}: &b{n} {{a: *b{n - 1}, b: *b{n - 1}}}" for n in range(1, 30))
    told = "\n".join(f"b{n}: '{f'${{b{n - 1}}}' * 9}'" for n in range(1, 12))
    bomb = "\n".join(f"b{n}: &b{n} [{', '.join([f'*b{n - 1}'] * 9)}]" for n in range(1, 12))
    made = {
        "billion laughs": f"b0: &b0 [lol]\n{bomb}\n{text}",
        "laughs in keys": f"{text}\nb0: &b0 {{a: 1}}\n{laughs}",
        "interpolated laughs": f"{text}\nb0: lol\n{told}",
        "an alias in itself": f"{text}\nmore: &more [*more]",
        "an alias to nothing": f"{text}\nmore: *nothing",
        "merge": f"{text}\nmore: {{<<: {{a: 1}}, b: 2}}",
        "merge on top": f"<<: {{seed: 3}}\n{text}",
        "twice": f"{text}\n{key}: 1",
        "twice inside": f"{text}\nmore: {{a: 1, a: 1}}",
        "tab": text.replace("  ", "\t", 1) if "  " in text else f"\t{text}",
        "tab before": f"\t{text}",
        "two documents": f"{text}\n---\n{text}",
        "a second, empty document": f"{text}\n---\n",
        "list": "\n".join(f"- {line}" for line in text.splitlines() if line and not line.startswith((" ", "#"))),
        "number as key": f"{text}\n3: 4",
        "null as key": f"{text}\n~: 4",
        "list as key": f"{text}\n? [a, b]\n: 4",
        "mapping as key": f"{text}\n? {{a: b}}\n: 4",
        "extends itself": f"extends: mutant.yaml\n{text}".replace("extends: transformer.yaml\n", ""),
        "extends a device": f"extends: /dev/zero\n{text}".replace("extends: transformer.yaml\n", ""),
        "extends a folder": f"extends: .\n{text}".replace("extends: transformer.yaml\n", ""),
        "extends a long name": f"extends: {'x' * 5_000}\n{text}".replace("extends: transformer.yaml\n", ""),
        "imports a folder": f"{text}\nimports: [.]",
        "imports nothing": f"{text}\nimports: [nowhere.py]",
        "imports NUL": f'{text}\nimports: ["a\\0b.py"]',
    }  # fmt: skip
    fault = draw.choice(list(made))
    return Mutant(fault, made[fault].encode())


def torn(draw: random.Random, text: str) -> Mutant:
    """Cut short, or with a byte that is another."""
    raw = bytearray(text.encode())
    place = draw.randrange(len(raw))
    if draw.random() < 0.5:
        return Mutant("cut short", bytes(raw[:place]))
    raw[place] ^= 1 << draw.randrange(8)
    return Mutant("a bit flipped", bytes(raw))


KINDS: list[Maker] = [
    deleted, renamed, retyped, added, literal("tag", TAGS), nested, literal("huge", HUGE), encoded, structured, torn,
    retyped, literal("scalar", SCALARS), kept, structured, deleted, renamed, block_nested, encoded, torn, retyped,
]  # fmt: skip
