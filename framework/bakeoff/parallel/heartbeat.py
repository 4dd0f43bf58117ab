"""Ranks that watch each other: one that dies, or stands still, ends the job with its name."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

from torch.distributed import Store

from bakeoff.parallel.member import Member, lives, same_machine

#: What a rank does within a micro-batch, in this order.
PHASES = ("forward", "backward", "updating", "reading")

#: Beats that the keeper of the store stays for the others to hear why the job ends.
FAREWELL = 5


class Place(NamedTuple):
    """Where a rank is: optimizer steps done, micro-batches of the next one, and what it does.

    Anything but one of `PHASES` may take long and is waited for.
    """

    step: int
    micro: int
    doing: str

    def __str__(self) -> str:
        micro = f", micro-batch {self.micro}" if self.micro else ""
        return f"step {self.step}{micro} ({self.doing})"

    @property
    def order(self) -> tuple[int, int, int]:
        """What comes later is greater."""
        return self.step, self.micro, PHASES.index(self.doing) if self.doing in PHASES else -1


@dataclass
class Peer:
    """What is known of a rank: its latest beat, and the local times at which beat and place last changed."""

    rank: int
    name: str
    place: Place
    pid: int
    machine: str
    beat: int
    over: bool
    heard: float
    moved: float


class Heartbeat:
    """One thread that says where this rank is and reads where the others are, and one that watches the first.

    Parameters
    ----------
    where : called from the thread: the place of this rank.
    every : seconds between two beats. silence : seconds without one after which a rank counts as gone.
    stall : seconds that the ranks ahead wait for one that is alive but does not get on.
    parent : process that started this one and must outlive it.
    leave : ends this process; called with an exit code.
    """

    def __init__(
        self,
        member: Member,
        store: Store,
        where: Callable[[], Place],
        *,
        every: float = 2.0,
        silence: float = 30.0,
        stall: float = 45.0,
        parent: int | None = None,
        leave: Callable[[int], None] = os._exit,
    ):
        self.member, self.store, self.where = member, store, where
        self.every, self.silence, self.stall = every, silence, stall
        self.parent, self.leave = parent, leave
        self.peers: dict[int, Peer] = {}
        self.answered = time.monotonic()
        self.lost: str | None = None  # what the store said when it failed
        self.stopped = threading.Event()
        self._saying, self._is_over = threading.Lock(), False

    def start(self) -> None:
        """Begin; all ranks call it once they share the store."""
        if self.member.rank == 0:
            for key in ("words", *map(str, range(self.member.size))):
                self.store.set(f"beats/{key}", "")
            self._say(0)  # whoever comes knows it from the first moment: with it, the store would be lost
            self.store.set("beats/open", "")
        else:
            self.store.wait(["beats/open"])
        for work in (self._beat, self._guard):
            threading.Thread(target=work, name=f"heartbeat{work.__name__}", daemon=True).start()

    def stop(self, *, patience: float = 30.0) -> None:
        """End; this rank's part is done. The keeper of the store waits until the others have ended too."""
        if self.stopped.is_set():
            return
        self.stopped.set()
        self._take_leave(patience)

    def tell(self, message: str, code: int, *, first: bool = False, after: float = 0.0) -> None:
        """Say once for all ranks why the job ends, before this rank raises; the others end with `code`.

        Parameters
        ----------
        first : all ranks have the same to say, and the first one speaks.
        after : beats that the first one has to speak before this one does, since it may have the same to say.
        """
        self.stopped.set()
        words = json.dumps({"rank": self.member.rank, "code": code})
        with contextlib.suppress(RuntimeError):
            if self.member.rank:
                deadline = time.monotonic() + (5 if first else after) * self.every
                while time.monotonic() < deadline and not self.store.get("beats/words"):
                    time.sleep(0.1)
            if not (first and self.member.rank):
                held = self.store.compare_set("beats/words", "", words)
                if held == words.encode():
                    _print(message)
        self._take_leave(FAREWELL * self.every)

    def blame(self) -> str | None:
        """Which rank holds up the job, and where it was last; None while all get on."""
        now = time.monotonic()
        others = [peer for peer in self.peers.values() if not peer.over and peer.rank != self.member.rank]
        for peer in others:
            if self.gone(peer):
                return f"{peer.name} has died: its process {peer.pid} is gone; it was last at {peer.place}"
        for peer in others:
            if self.silent(peer):
                silent = f"{peer.name}, process {peer.pid}, has not been heard of for {now - peer.heard:.0f} s"
                return f"{silent}; it was last at {peer.place}"
        standing = sorted((p for p in self.peers.values() if not p.over), key=lambda peer: peer.place.order)
        if not standing or standing[0].place.order == standing[-1].place.order:
            return None
        behind, ahead = standing[0], standing[-1]
        waited = now - max(behind.moved, ahead.moved)
        if behind.place.doing in PHASES and waited > self.stall:
            stuck = f"{behind.name}, process {behind.pid}, is alive but has stood at {behind.place} for {waited:.0f} s"
            return f"{stuck}, while {ahead.name} waits at {ahead.place}"
        return None

    def gone(self, peer: Peer) -> bool:
        """Whether a rank's process, if it is of this machine, has ended."""
        return peer.machine == same_machine() and not lives(peer.pid)

    def silent(self, peer: Peer) -> bool:
        """Whether too long has gone by since its latest beat."""
        return time.monotonic() - peer.heard > self.silence

    def _beat(self) -> None:
        number = 0
        try:
            while not self.stopped.is_set():
                number += 1
                self._say(number)
                code = self._listen()
                self.answered = time.monotonic()
                if code is not None and not self.stopped.is_set():
                    time.sleep(self.every / 2)
                    self._take_leave(FAREWELL * self.every)
                    self.leave(code)
                self.stopped.wait(self.every)
        except RuntimeError as error:  # the server, or the way to it, is gone
            self.lost = str(error)

    def _say(self, number: int, *, over: bool = False) -> None:
        mine = [number, self.member.name, *self.where(), os.getpid(), same_machine(), over]
        with self._saying:  # what is over stays so, whatever beat is on its way
            if not self._is_over:
                self.store.set(f"beats/{self.member.rank}", json.dumps(mine))
                self._is_over = over

    def _take_leave(self, patience: float) -> None:
        """Say that this rank's part is over; the store's keeper waits for all that can still hear it to say so too.

        Else its end would take the store from ranks that have not heard why, and they would blame it.
        """
        deadline = time.monotonic() + patience
        with contextlib.suppress(RuntimeError):
            self._say(10**9, over=True)
            while self.member.keeps_store and time.monotonic() < deadline:
                self._listen()
                if all(peer.over or self.gone(peer) or self.silent(peer) for peer in self.peers.values()):
                    return
                time.sleep(min(0.05, self.every))

    def _listen(self) -> int | None:
        """Take in the others' beats; returns the exit code if one of them has told why the job ends."""
        words, *beats = self.store.multi_get(["beats/words", *(f"beats/{rank}" for rank in range(self.member.size))])
        now = time.monotonic()
        for rank, text in enumerate(beats):
            if not text:
                continue
            number, name, step, micro, doing, pid, machine, over = json.loads(text)
            place, known = Place(step, micro, doing), self.peers.get(rank)
            heard = known.heard if known and known.beat == number else now
            moved = known.moved if known and known.place == place else now
            self.peers[rank] = Peer(rank, name, place, pid, machine, number, over, heard, moved)
        return int(json.loads(words)["code"]) if words else None

    def _guard(self) -> None:
        """End this process, whatever its main thread waits for, once a rank, the store or the parent is gone."""
        while not self.stopped.wait(min(1.0, self.every)):
            found = self._found()
            quiet = time.monotonic() - self.answered
            if self.lost is not None or quiet > self.silence:
                self._end(self._keeper(quiet), reachable=False)
            elif found is not None:
                self._end(found, reachable=True)
            elif self.parent is not None and os.getppid() != self.parent:
                self._end(f"{self.member.name}: the process that launched it is gone", reachable=True)

    def _found(self) -> str | None:
        """`blame` by the newest beats: a rank that has ended since the last ones said so before its process went."""
        found = self.blame()
        if found is None:
            return None
        with contextlib.suppress(RuntimeError):  # where the store is lost, the thread that beats finds it out
            self._listen()
        return self.blame()

    def _keeper(self, quiet: float) -> str:
        """What is said where the store is lost: the rank that kept it, or the launcher that did, is gone."""
        known = self.peers.get(0)
        last = f"; rank 0 was last at {known.place}" if known else ""
        if self.member.agent:
            where = f"{self.member.address}:{self.member.port}"
            return f"the launcher of the first node, which keeps the store at {where}, is gone{last}"
        if known and self.gone(known):
            return f"{known.name} has died: its process {known.pid} is gone; it was last at {known.place}"
        name = f"{known.name}, process {known.pid}," if known else f"rank 0 at {self.member.address}"
        return f"{name} has not been heard of for {max(quiet, 1):.0f} s{last}"

    def _end(self, message: str, *, reachable: bool) -> None:
        if message.startswith(self.member.name):
            time.sleep(2 * self.every)  # it is the one that stands still: another may say so
        words = {"rank": self.member.rank, "code": 1}
        held = self._claimed(words, reachable)
        if self.stopped.is_set():
            return
        if held == words:
            _print(f"{message}. The run continues from its newest checkpoint")
        else:
            time.sleep(self.every)  # whoever speaks finishes its sentence
        if reachable:
            self._take_leave(FAREWELL * self.every)
        self.leave(held["code"])

    def _claimed(self, words: dict[str, int], reachable: bool) -> dict[str, int]:
        """The words of the one rank that speaks: of all, or on each machine where the store is lost."""
        if reachable:
            with contextlib.suppress(RuntimeError):
                return json.loads(self.store.compare_set("beats/words", "", json.dumps(words)))
        here = [p.rank for p in self.peers.values() if p.machine == same_machine() and p.rank and not self.gone(p)]
        return words | {"rank": min(here, default=self.member.rank)}


def _print(message: str) -> None:
    with contextlib.suppress(OSError, ValueError):
        print(f"bakeoff: {message}", file=sys.stderr, flush=True)
        sys.stdout.flush()
