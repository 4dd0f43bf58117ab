"""Command lines in a process beside this one: what they print, how they end, and that they end."""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import os
import resource
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bakeoff.errors import UserError

_fork = multiprocessing.get_context("fork")
#: Bytes of address space of the process: what asks for more fails here as it would on a small machine.
ROOM = 24 * 2**30


@dataclass(frozen=True)
class Outcome:
    """`code` None: it had to be killed, or died."""

    code: int | None
    out: str
    err: str
    found: Any = None

    def refused(self) -> str | None:
        """What is wrong with a refusal: exit code 2, nothing on standard output, one message and no traceback."""
        messages = [line for line in self.err.splitlines() if line.startswith("bakeoff: ")]
        spoken = [line for line in messages if not line.startswith("bakeoff: warning: ")]
        if self.code != 2:
            return f"exit code {self.code}"
        if "Traceback" in self.err + self.out:
            return "a traceback"
        if len(spoken) != 1:
            return f"{len(spoken)} messages"
        return "an endless message" if len(self.err) > 6_000 else None


class Commands:
    """Runs command lines, and calls, one after another in one forked process; kills it if one does not end."""

    def __init__(self) -> None:
        self.process: Any = None
        self.pipe: Any = None

    def run(self, words: Sequence[str], then: Callable[[], Any] | None = None, *, seconds: float = 60.0) -> Outcome:
        """`bakeoff WORDS`; where that ends with 0, what `then` gives is `found`."""
        if self.process is None:
            self._start()
        self.pipe.send((list(words), then))
        if self.pipe.poll(seconds):
            with contextlib.suppress(EOFError):
                return self.pipe.recv()
        why = "it died" if self.process.exitcode is not None else f"no end in {seconds} seconds"
        self.close()
        return Outcome(None, "", why)

    def close(self) -> None:
        """End the process."""
        if self.process is not None:
            self.process.kill()
            self.process.join()
            self.pipe.close()
            self.process = None

    def _start(self) -> None:
        here, there = _fork.Pipe()
        self.process = _fork.Process(target=_serve, args=(there,), daemon=False)
        self.process.start()
        there.close()
        self.pipe = here


def _serve(pipe: Any) -> None:
    from multiprocessing import forkserver

    import torch

    forkserver._forkserver.__init__()  # that of the process it was forked from is not its own child
    torch.set_num_threads(1)
    resource.setrlimit(resource.RLIMIT_AS, (ROOM, ROOM))
    os.environ["COLUMNS"] = "200"
    while True:
        try:
            words, then = pipe.recv()
        except EOFError:
            return
        pipe.send(_outcome(words, then))


def _outcome(words: list[str], then: Callable[[], Any] | None) -> Outcome:
    from bakeoff.cli.main import main

    out, err = io.StringIO(), io.StringIO()
    code, found = None, None
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(words)
            found = then() if code == 0 and then is not None else None
        except UserError as error:  # of `then`: as the command would tell it
            code = 2
            err.write(f"bakeoff: {error}\n")
        except SystemExit as stop:
            code = stop.code if isinstance(stop.code, int) else 1
        except BaseException:
            code = 1
            traceback.print_exc()
    return Outcome(code, out.getvalue(), err.getvalue(), found)


def texts(folder: Path, lines: int) -> Path:
    """A new folder of eight texts."""
    folder.mkdir()
    for i in range(8):
        told = [f"In year {1800 + i * j} item {j} of {i} was lost." for j in range(lines)]
        (folder / f"{i}.txt").write_text("\n".join(told))
    return folder
