import random
import sysconfig
from pathlib import Path

import pytest

ODD = [
    "",
    " ",
    "\n",
    "\r\n\r",
    "\t\t  x \n\n  y  ",
    "a<|endoftext|>b <pad> [MASK] </s>",
    "naïve café",
    "你好",
    "Hello, world! 🌍 你好!",
    "👩‍👩‍👧‍👦 e\u0301 \u202e\u200b\ufeff",
    "\x00\x01\x1c\x7f\x85\xa0",
    "\ufffd\uffff\U0010ffff",
    "don't I'LL we've '' 's",
    "x" * 3000,
    " " * 3000 + "x",
    "1234567890 ٣٤٥ Ⅷ ½",
    "a  b   c\u3000\u2028d",
]


@pytest.fixture(scope="session")
def odd_texts() -> list[str]:
    """Strings that break tokenizers, and random ones over all of Unicode."""
    rng = random.Random(0)
    alphabet = [chr(code) for code in range(0x110000) if not 0xD800 <= code < 0xE000]
    mixed = [*" \n\t'abcXYZ019_.,-", *rng.sample(alphabet, 200)]
    whole = ["".join(rng.choices(alphabet, k=rng.randrange(1, 60))) for _ in range(150)]
    return ODD + whole + ["".join(rng.choices(mixed, k=rng.randrange(1, 200))) for _ in range(150)]


@pytest.fixture(scope="session")
def source_texts() -> list[str]:
    """Some two megabytes of Python, of the standard library's top folder."""
    files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
    return [path.read_bytes().decode("utf-8") for path in files][:100]
