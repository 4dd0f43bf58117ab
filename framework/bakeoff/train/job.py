"""The ranks of one run: how a process learns that it is one of several, and what binds them while they train."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import cache, partial
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.fabric.plugins.environments import SLURMEnvironment, TorchElasticEnvironment
from lightning.fabric.utilities.distributed import _set_num_threads_if_needed
from lightning.pytorch.strategies.launchers.subprocess_script import _SubprocessScriptLauncher
from torch.distributed import DistError, PrefixStore, Store

from bakeoff.errors import UserError
from bakeoff.parallel.agreement import PATIENCE, Disagreement, agree
from bakeoff.parallel.heartbeat import PHASES, Heartbeat, Place
from bakeoff.parallel.member import Member
from bakeoff.train.failures import NotFinite
from bakeoff.train.module import Clock

#: Set for the processes that the first one of a machine starts: its own rank, to which they add their local one.
FIRST_RANK = "BAKEOFF_FIRST_RANK"
#: Set by torchrun where it keeps the store at which ranks meet.
AGENT = "TORCHELASTIC_USE_AGENT_STORE"


class Job:
    """One rank's side of what binds the ranks of a run: they meet, compare what they do, and watch each other.

    Parameters
    ----------
    launched : whether another process started this one.
    outside : whether a launcher of other makers started all ranks, so that they share nothing but their words.
    """

    def __init__(self, member: Member, *, launched: bool, outside: bool):
        self.member, self.launched, self.outside = member, launched, outside
        self.clock, self.compiles = Clock(), False
        self.heart: Heartbeat | None = None
        self.runs = self.calls = 0
        self._store: Store | None = None

    def meet(self) -> None:
        """Come to the store that all ranks share, and begin to watch; does nothing the second time."""
        if self.heart is None:
            self._store = self._store or self.member.meet(PATIENCE)
            store = PrefixStore(str(self.runs), self._store)
            self.heart = Heartbeat(self.member, store, self._where, parent=os.getppid() if self.launched else None)
            self.heart.start()

    def agree(self, alike: Mapping[str, str], watch: Callable[[], None] = lambda: None) -> None:
        """Go on only if all ranks say the same of themselves; all ranks call it."""
        agree(self._next(), self.member, alike, watch=watch)

    def share(self, value: str) -> str:
        """The first rank's value; all ranks call it, and wait for the first one."""
        store = self._next()
        if self.member.rank == 0:
            store.set("value", value)
        while not store.check(["value"]):
            time.sleep(0.1)
        return store.get("value").decode()

    def _next(self) -> Store:
        """Where the words of this call stand; ranks make the same calls in the same order."""
        assert self.heart is not None
        self.calls += 1
        return PrefixStore(f"call {self.calls}", self.heart.store)

    def follow(self, clock: Clock, *, compiles: bool) -> None:
        """From now on this clock says where the rank is; its first step may take long if it compiles."""
        self.clock, self.compiles, self._first = clock, compiles, clock.step

    @contextmanager
    def watched(self) -> Iterator[None]:
        """Inside, an error on this rank is told for all ranks and ends them; at the end the watch is over.

        An error that says that the way to another rank is gone waits for the watch to find out which; it ends the
        process.
        """
        try:
            yield
        except (Exception, SystemExit) as error:
            self._failed(error)
            raise
        finally:
            self.end()

    def end(self) -> None:
        """This rank's part is done."""
        if self.heart is not None:
            self.heart.stop()
            self.heart = None
            self.runs += 1
            self.clock, self.compiles = Clock(), False

    def _failed(self, error: BaseException) -> None:
        if self.heart is None or getattr(error, "told", False):
            return
        if _says_connection(error):
            self.heart.stopped.wait(self.heart.silence + self.heart.stall)
        heart, self.heart = self.heart, None
        code = error.code if isinstance(error, SystemExit) and isinstance(error.code, int) else 1
        if isinstance(error, (Disagreement, NotFinite)):  # all ranks have the same to say
            heart.tell(str(error), 2, first=True)
            error.told = True
        elif isinstance(error, UserError):
            heart.tell(f"{self.member.name}: {error}", 2, after=2)
            error.told = True
        else:
            what = " ".join(f"{type(error).__name__}: {error}".split())[:300]
            heart.tell(f"{self.member.name} failed at {self._where()}: {what}", code)

    def _where(self) -> Place:
        clock = self.clock
        doing = "compiling" if self.compiles and clock.step == self._first and clock.doing in PHASES else clock.doing
        return Place(clock.step, clock.micro, doing)


@cache
def launched_job() -> Job | None:
    """The job that this process was launched for as one of several ranks, by torchrun, srun or the first rank."""
    try:
        environment = next((e() for e in (TorchElasticEnvironment, SLURMEnvironment) if e.detect()), None)
    except RuntimeError as error:  # of SLURM's variables, which tell each other lies
        raise UserError(f"SLURM: {error}") from None
    if environment is not None:
        if environment.world_size() == 1:
            return None
        rank, size, local = environment.global_rank(), environment.world_size(), environment.local_rank()
        address, port = environment.main_address, environment.main_port
    elif FIRST_RANK in os.environ:
        local, size = int(os.environ["LOCAL_RANK"]), int(os.environ["WORLD_SIZE"])
        rank = int(os.environ[FIRST_RANK]) + local
        address, port = os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"])
    else:
        return None
    outside = environment is not None
    agent = isinstance(environment, TorchElasticEnvironment) and os.environ.get(AGENT) == "True"
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    device = f"{torch.accelerator.current_accelerator()}:{local}" if torch.accelerator.is_available() else "cpu"
    member = Member(rank, size, address, port, device, agent=agent, attempt=attempt)
    return Job(member, launched=True, outside=outside)


def check_launched(job: Job, trainer: pl.Trainer) -> None:
    """Raise `UserError` if the recipe wants another number of ranks than were launched."""
    size, devices, nodes = job.member.size, trainer.num_devices, trainer.num_nodes
    if devices * nodes != size:
        local = int(os.environ.get("LOCAL_WORLD_SIZE", os.environ.get("SLURM_NTASKS_PER_NODE", size)))
        raise UserError(
            f"{size} ranks were launched, but trainer.devices x trainer.num_nodes is {devices} x {nodes} = "
            f"{devices * nodes}; set trainer.devices={local} trainer.num_nodes={size // local}, or launch "
            f"{devices} on each of {nodes} nodes"
        )


def job_of(trainer: pl.Trainer, alike: Mapping[str, str]) -> Job:
    """The job of the process that starts the other ranks of its machine, once the trainer begins to fit."""
    strategy: Any = trainer.strategy
    environment = strategy.cluster_environment
    member = Member(
        trainer.global_rank,
        trainer.world_size,
        environment.main_address,
        environment.main_port,
        str(strategy.root_device),
    )
    job = Job(member, launched=False, outside=False)
    if isinstance(strategy.launcher, _SubprocessScriptLauncher):
        strategy._launcher = Launcher(strategy.launcher, job, alike)
    return job


class Launcher(_SubprocessScriptLauncher):
    """Starts the other ranks of this machine by this process's command line, as Lightning does, under a job's watch.

    Lightning's own observer kills this process, silently, as soon as another has failed.
    """

    def __init__(self, lightnings: _SubprocessScriptLauncher, job: Job, alike: Mapping[str, str]):
        super().__init__(lightnings.cluster_environment, lightnings.num_processes, lightnings.num_nodes)
        self.job, self.alike = job, alike

    def launch(self, function: Callable[..., Any], *args: Any, trainer: pl.Trainer | None = None, **kwargs: Any) -> Any:
        """Meet, start the others, agree with them, and call the function."""
        self.cluster_environment.validate_settings(num_devices=self.num_processes, num_nodes=self.num_nodes)
        os.environ[FIRST_RANK] = str(self.job.member.rank)
        try:
            self.job.meet()
            heart = self.job.heart
            assert heart is not None
            heart.leave = self._leave
            self._call_children_scripts()
            self.job.agree(self.alike, partial(_all_run, self.job.member, self.procs))
        finally:
            os.environ.pop(FIRST_RANK)
        _set_num_threads_if_needed(num_processes=self.num_processes)
        return function(*args, **kwargs)

    def _leave(self, code: int) -> None:
        for process in self.procs:  # one that is stopped does not end by itself
            process.kill()
        os._exit(code)


def _all_run(member: Member, others: list[subprocess.Popen[bytes]]) -> None:
    for number, process in enumerate(others, start=1):
        if process.poll() is not None:
            error = UserError(f"rank {member.rank + number} ended with exit code {process.returncode} before it began")
            error.told = process.returncode == 2
            raise error


def _says_connection(error: BaseException) -> bool:
    """Whether an error is how another rank's end looks from here."""
    words = ("gloo", "nccl", "connection reset", "connection closed", "broken pipe", "process group", "collective")
    return isinstance(error, DistError) or (
        isinstance(error, RuntimeError) and any(word in str(error).lower() for word in words)
    )
