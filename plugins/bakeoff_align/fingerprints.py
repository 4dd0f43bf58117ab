"""What decides what a run says or thinks of an answer, as short texts: by these a cache knows what it holds."""

from __future__ import annotations

import hashlib
from typing import Any

import torch
from bakeoff.interfaces import Tokenizer


def described(part: Any) -> str:
    """A component by its class and arguments, at every depth; what has a `fingerprint` of its own by that."""
    if isinstance(part, list | tuple):
        return f"[{', '.join(described(each) for each in part)}]"
    own = getattr(type(part), "fingerprint", None)
    if own is not None:
        return str(part.fingerprint() if callable(own) else part.fingerprint)
    if not hasattr(part, "__dict__"):
        return repr(part)
    held = ", ".join(f"{name}={described(value)}" for name, value in sorted(vars(part).items()) if name[0] != "_")
    return f"{type(part).__module__}.{type(part).__qualname__}({held})"


def of_ids(tokenizer: Tokenizer) -> list[bytes]:
    """What each id stands for."""
    return [tokenizer.token_bytes(token) for token in range(tokenizer.vocab_size)]


def of_model(model: Any, tokenizer: Tokenizer) -> str:
    """A hash of all weights, and of what each id stands for."""
    digest = hashlib.sha256(f"{of_ids(tokenizer)}".encode())
    for name, tensor in sorted(model.state_dict().items()):
        digest.update(f"{name} {tuple(tensor.shape)}".encode())
        digest.update(tensor.detach().cpu().reshape(-1).view(torch.uint8).numpy().tobytes())
    return digest.hexdigest()
