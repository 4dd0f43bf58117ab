"""One of the processes that train together: its rank, its name, and the store at which all of them meet."""

from __future__ import annotations

import contextlib
import os
import socket
from dataclasses import dataclass, field
from datetime import timedelta
from pathlib import Path

from torch.distributed import DistNetworkError, DistStoreError, PrefixStore, Store, TCPStore

from bakeoff.errors import UserError


class NoMeeting(UserError):
    """The ranks cannot meet at the address and port that they were given."""


@dataclass(frozen=True)
class Member:
    """A rank of `size`.

    Parameters
    ----------
    address, port : where all ranks meet. device : what it computes on.
    agent : whether the launcher keeps the store there, as torchrun does; else rank 0 keeps it.
    attempt : how often the launcher has started the ranks anew.
    """

    rank: int
    size: int
    address: str
    port: int
    device: str = "cpu"
    agent: bool = False
    attempt: int = 0
    host: str = field(default_factory=socket.gethostname)

    @property
    def name(self) -> str:
        """How messages name it."""
        return f"rank {self.rank} (host {self.host}, device {self.device})"

    @property
    def keeps_store(self) -> bool:
        """Whether the store ends with this process."""
        return self.rank == 0 and not self.agent

    def meet(self, seconds: float) -> Store:
        """The store that all ranks share; the process group that is made later uses the same server.

        Raises `NoMeeting` if the port is in use by another program, or nobody answers there for so long.
        """
        place = f"{self.address}:{self.port}"
        try:
            store = TCPStore(
                self.address,
                self.port,
                self.size,
                is_master=self.keeps_store,
                timeout=timedelta(seconds=seconds),
                wait_for_workers=False,
                multi_tenant=True,
            )
        except (DistNetworkError, DistStoreError) as error:
            if self.keeps_store:
                raise NoMeeting(
                    f"the ranks cannot meet at {place}: port {self.port} is in use by another program, or cannot be "
                    "opened; set MASTER_PORT to a free port, the same for all nodes"
                ) from error
            raise NoMeeting(
                f"{self.name}: nobody answers at {place}, where the ranks meet, for {seconds:.0f} s; MASTER_ADDR and "
                "MASTER_PORT must be those of the first node, and reachable from here"
            ) from error
        return PrefixStore(f"bakeoff/{self.attempt}", store)


def same_machine() -> str:
    """What two processes have in common exactly if each can see whether the other lives."""
    space = Path("/proc/self/ns/pid")
    return f"{socket.gethostname()} {os.readlink(space) if space.exists() else ''}"


def lives(pid: int) -> bool:
    """Whether a process of this machine is there and has not ended."""
    if Path("/proc/self/stat").exists():
        with contextlib.suppress(OSError):
            return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
        return False
    with contextlib.suppress(PermissionError):
        try:
            os.kill(pid, 0)
        except ProcessLookupError:
            return False
    return True
