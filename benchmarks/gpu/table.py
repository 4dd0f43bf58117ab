"""Records as tables in Markdown."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from benchmarks.common.tables import row, table

_CHECKS = ("laws", "bf16", "product")


def show(records: Iterable[dict[str, Any]]) -> None:
    """A section a device and set of versions: training, decoding, checks."""
    groups: dict[str, list[dict[str, Any]]] = {}
    for record in records:
        groups.setdefault(_title(record), []).append(record)
    for title, group in groups.items():
        print(f"\n## {title}")
        _training([r for r in group if r["case"]["what"] == "training"])
        _decoding([r for r in group if r["case"]["what"] == "decoding"])
        _checks([r for r in group if r["case"]["what"] in _CHECKS])


def _title(record: dict[str, Any]) -> str:
    device = record["device"]
    versions = ", ".join(f"{name} {version}" for name, version in record["versions"].items() if version)
    driver = f", driver {device['driver']}" if device.get("driver") else ""
    return f"{device['name']}{driver}; {versions}; sources {record['sources']}"


def _training(records: list[dict[str, Any]]) -> None:
    if not records:
        return
    table("training", "size", "T", "mode", "tokens/s", "MFU, data sheet", "MFU, measured", "peak MiB", "parameters")
    for record in records:
        case, figures = record["case"], record["figures"]
        mode = "compiled" if case["compiled"] else "eager"
        start = f"{case['family']}: {case['candidate']}", case["shape"], case["length"], mode
        if record["status"] != "done":
            row(*start, _why(record), *["–"] * 4)
            continue
        used = (_percent(figures[f"mfu_of_{what}"]) for what in ("data_sheet", "measured"))
        row(*start, f"{figures['tokens_per_second']:,.0f}", *used, _mebibytes(figures), f"{figures['parameters']:,}")


def _decoding(records: list[dict[str, Any]]) -> None:
    if not records:
        return
    table("decoding", "size", "batch", "new tokens", "ms a token", "tokens/s", "peak MiB")
    for record in records:
        case, figures = record["case"], record["figures"]
        start = f"{case['family']}: {case['candidate']}", case["shape"], case["batch"], case["length"]
        if record["status"] != "done":
            row(*start, _why(record), "–", "–")
            continue
        rate = f"{figures['ms_a_token']:.2f}", f"{figures['tokens_per_second']:,.0f}"
        row(*start, *rate, _mebibytes(figures))


def _checks(records: list[dict[str, Any]]) -> None:
    if not records:
        return
    table("check", "of", "result")
    for record in records:
        case = record["case"]
        told = "; ".join(f"{name} {_short(value)}" for name, value in record["figures"].items() if value != [])
        row(case["what"], case["candidate"], told if record["status"] == "done" else _why(record))


def _why(record: dict[str, Any]) -> str:
    """In a cell."""
    return f"{record['status']}: {record['reason'].splitlines()[-1][:120]}".replace("|", "/")


def _short(value: Any) -> str:
    return f"{value:.3g}" if isinstance(value, float) else str(value)


def _percent(share: float | None) -> str:
    return "–" if share is None else f"{share:.1%}"


def _mebibytes(figures: dict[str, Any]) -> str:
    return f"{figures['peak_bytes'] / 2**20:,.0f}"
