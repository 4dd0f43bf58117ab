"""Numbers as people read them."""

from __future__ import annotations

import math


def count(value: float | None) -> str:
    """Three digits and a suffix: 38100 -> 38.1k; None -> an en dash."""
    if value is None:
        return "–"
    for limit, suffix in ((1e18, "E"), (1e15, "P"), (1e12, "T"), (1e9, "G"), (1e6, "M"), (1e3, "k")):
        if abs(value) >= 0.9995 * limit:
            return f"{_three_digits(value / limit)}{suffix}"
    return _three_digits(value)


def size(value: float | None) -> str:
    """Bytes in binary units: 1536 -> 1.5 KiB; None -> an en dash."""
    if value is None:
        return "–"
    for limit, suffix in ((2**40, "TiB"), (2**30, "GiB"), (2**20, "MiB"), (2**10, "KiB")):
        if abs(value) >= limit:
            return f"{_three_digits(value / limit)} {suffix}"
    return f"{value:.0f} B"


def short_size(value: float | None) -> str:
    """`size` in five letters at most, for narrow columns: 310 MiB -> 310M."""
    return size(value).replace(" ", "").removesuffix("iB").removesuffix("B")


def duration(seconds: float) -> str:
    """Hours, minutes and seconds, as many as say something."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def decimals(*halves: float | None) -> int:
    """Decimals that show two digits of the narrowest interval, three at least and six at most."""
    known = [half for half in halves if half]
    return min(6, max(3, 1 - math.floor(math.log10(min(known))))) if known else 3


def signed(value: float, digits: int) -> str:
    """With its sign; never a negative zero."""
    text = f"{value:+.{digits}f}"
    return text.replace("-", "+") if float(text) == 0 else text


def percent(share: float, digits: int = 0, *, sign: bool = False) -> str:
    """0.05 -> 5 %; more decimals than asked for where none would be left: 0.005 -> 0.5 %."""
    while digits < 3 and share and abs(share) * 100 < 10.0**-digits and not sign:
        digits += 1
    return f"{100 * share:{'+' if sign else ''}.{digits}f} %"


def plural(n: int, noun: str) -> str:
    """1 seed, 3 seeds."""
    return f"{n} {noun}" if n == 1 else f"{n} {noun}s"


def _three_digits(value: float) -> str:
    if value == 0 or abs(value) >= 100:
        return f"{value:.0f}"
    if abs(value) >= 1:
        return f"{value:.3g}"
    return f"{value:.2g}"
