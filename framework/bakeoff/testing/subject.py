"""The part under test: built small, in float64 where it can, called in a given mode with fixed noise."""

from __future__ import annotations

import copy
import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from itertools import islice
from typing import Any, TypeVar
from unittest.mock import patch

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

from bakeoff.errors import MissingExtra
from bakeoff.interfaces.component import Capabilities
from bakeoff.interfaces.context import LayerContext
from bakeoff.interfaces.neighbours import EMBEDDED, NEIGHBOURS
from bakeoff.interfaces.part import Part, StatefulPart
from bakeoff.interfaces.past import Past
from bakeoff.interfaces.result import Result
from bakeoff.interfaces.sequence import Sequence
from bakeoff.interfaces.state import carried
from bakeoff.model.casting import cast
from bakeoff.parts.needs import gather
from bakeoff.testing.batch import Batch, Held, Place, Run, first_place, moved, pulled, scale
from bakeoff.testing.law import Raised
from bakeoff.testing.retrieved import embedded, retrieved
from bakeoff.testing.values import attributes, fixed_noise, noise

C = TypeVar("C")

MODES = ("evaluation", "training")

#: Attributes whose numbers are lengths at which something changes along the sequence.
_LENGTHS = re.compile(r"chunk|window|block|kernel|conv|segment|patch")
_LONGEST = 128


class _Quiet(TorchFunctionMode):
    """Dropout that drops nothing, Gaussian noise of zeros and uniform noise of halves."""

    def __torch_function__(self, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = dict(kwargs or {})
        if function is torch.randn_like:
            return torch.zeros_like(*args, **kwargs)
        if function is torch.rand_like:
            return torch.zeros_like(*args, **kwargs) + 0.5
        if function in (torch.dropout, nn.functional.dropout):
            return args[0] if args else kwargs["input"]
        if function is nn.functional.scaled_dot_product_attention:
            args = args if len(args) < 5 else (*args[:4], 0.0, *args[5:])
            kwargs |= {} if len(args) > 4 else {"dropout_p": 0.0}
        return function(*args, **kwargs)


@contextmanager
def _quiet() -> Iterator[None]:
    """`_Quiet`, in what backward runs anew too: torch takes a mode off while it differentiates."""
    run = torch.autograd._engine_run_backward

    def quietly(*args: Any, **kwargs: Any) -> Any:
        with _Quiet():
            return run(*args, **kwargs)

    with _Quiet(), patch.object(torch.autograd, "_engine_run_backward", quietly):
        yield


class Subject:
    """A part as a map of batches.

    Attributes
    ----------
    root, module : the part, in float64 where its mathematics allows, inside what stands beside it.
    claims : its capabilities.
    device : where it stands; inputs come from the CPU and outputs go back, states stay.
    chunk : tokens of a chunk whose neighbours its parts read; None: they read none.
    untouched : what stood in the attributes of its modules before the first call.
    brief : some laws try one input only in training mode, where a part rarely does another thing.
    tolerance : what two ways to the same number may differ by, relative to the largest.
    """

    def __init__(
        self, root: nn.Module, module: StatefulPart, place: LayerContext, *, seed: int = 0, double: bool = True
    ):
        self.root, self.module, self.place, self.seed = root, module, place, seed
        self.claims: Capabilities = module.capabilities
        self.device = next((p.device for p in root.parameters()), torch.device("cpu"))
        self.needs = gather(root)
        self.reads = [name for part in root.modules() for name in getattr(part, "reads", ())]
        chunks = [part.neighbours_of for part in root.modules() if isinstance(part, Part)]
        self.chunk = next((chunk for chunk in chunks if chunk is not None), None)
        self.untouched = attributes(root)
        self.brief = False
        self.dtype, self.tolerance = torch.float32, 1e-4
        if double and self._runs_in_double():
            self.dtype, self.tolerance = torch.float64, 1e-6

    def _runs_in_double(self) -> bool:
        single = {name: value.clone() for name, value in self.root.state_dict().items()}
        self.root.double()
        self.dtype = torch.float64
        try:
            with torch.no_grad():
                self.run(self.batch(1, 2))
        except Raised:  # it may insist on another type
            self.dtype = torch.float32
            self.root.float().load_state_dict(single)
            return False
        return True

    def cast(self, dtype: torch.dtype) -> Subject:
        """A copy whose parameters and inputs are of `dtype`, but for what its parts name in `keep_float32`."""
        other = copy.copy(self)
        other.root, other.dtype = copy.deepcopy(self.root), dtype
        path = next(path for path, module in self.root.named_modules() if module is self.module)
        other.module = other.root.get_submodule(path)  # type: ignore[assignment]
        other.needs = gather(other.root)
        cast(other.root, dtype)
        return other

    def parameters(self) -> dict[str, nn.Parameter]:
        """What is learnt, by name."""
        named = self.root.named_parameters()
        return {name.removeprefix("part."): p for name, p in named if p.requires_grad}

    def inner(self, part: StatefulPart) -> Subject:
        """A part inside this one, where it stands."""
        other = Subject.__new__(Subject)
        other.__dict__.update(self.__dict__)
        other.module, other.claims = part, part.capabilities
        return other

    @contextmanager
    def mode(self, mode: str, *, quiet: bool = False) -> Iterator[None]:
        """Training or evaluation; `quiet` takes dropout and noise away, for calls of different shapes."""
        self.root.train(mode == "training")
        try:
            with _quiet() if quiet and self._noisy() else nullcontext():
                yield
        finally:
            self.root.eval()

    def _noisy(self) -> bool:
        """Whether the present mode draws random numbers."""
        batch = self.batch(1, 2)
        with torch.no_grad(), fixed_noise(self.seed):
            before = noise()
            self.call(batch.x, self.sequence(batch))
            return any(not torch.equal(one, other) for one, other in zip(before, noise(), strict=True))

    def tried(self, cases: Iterable[C], mode: str) -> Iterable[C]:
        """The inputs that a law tries in a mode."""
        return islice(cases, 1) if self.brief and mode == "training" else cases

    def claimed(self, capability: str, mode: str) -> bool:
        """Whether the class claims a capability for this mode."""
        return getattr(self.claims.training if mode == "training" else self.claims, capability)

    def modes_claiming(self, capability: str) -> list[str]:
        """The modes for which the class claims a capability."""
        return [mode for mode in MODES if self.claimed(capability, mode)]

    @property
    def now(self) -> str:
        """The mode that the part is in."""
        return MODES[self.module.training]

    def batch(self, B: int, T: int, **places: Tensor | None) -> Batch:
        """Random inputs (B, T, D), the same for the same shape."""
        generator = torch.Generator().manual_seed(self.seed)
        x = torch.randn(B, T, self.place.d_model, generator=generator, dtype=torch.float64).to(self.dtype)
        return Batch(x, torch.randint(self.place.vocab_size // 2 * 2, (B, T), generator=generator), **places)

    def begin(self, rows: int, length: int, dtype: torch.dtype | None = None) -> Held:
        """An empty state for `length` tokens, in the layout of the gradient mode."""
        state = self.module.empty_state(rows, length, dtype or self.dtype, self.device)
        return Held(state, Past(rows, length, self.device))

    def carried(self, held: Held) -> Held:
        """The state as the beginning of a training window."""
        assert held.past is not None
        places = max(part.reach for part in self.module.modules() if isinstance(part, StatefulPart))
        return Held(carried(held.state, places), held.past.carried(places))

    def run(self, batch: Batch, held: Held | None = None, *, naive: bool = False, **visibility: Any) -> Run:
        """One call, with the same noise every time; of the naive form on request."""
        sequence = self.sequence(batch, held, **visibility)
        with fixed_noise(self.seed):
            if naive:
                state = None if held is None else held.state
                with told(batch.x, held):
                    x = batch.x.to(self.device)
                    result = self._back(self.module.naive(x, sequence.prepare(self.needs), state))
            else:
                result = self.call(batch.x, sequence, held)
        return Run(result.y, result.aux, None if held is None else self._after(result.state, held, sequence))

    def sequence(self, batch: Batch, held: Held | None = None, **visibility: Any) -> Sequence:
        """What the part is told of a batch."""
        past = None if held is None else self._past(held)
        given = {"documents": batch.documents, "real": batch.real, **visibility}
        there: dict[str, Any] = {
            name: value.to(self.device) if isinstance(value, Tensor) else value for name, value in given.items()
        }
        memory = dict.fromkeys(("embedding", *self.reads), batch.x.to(self.device))
        made = Sequence(batch.tokens.to(self.device), past=past, memory=memory, **there)
        if self.chunk is not None:
            found = retrieved(made, self.chunk, self.place.vocab_size)
            made.memory |= {NEIGHBOURS: found, EMBEDDED: embedded(found, self.place.d_model).to(batch.x)}
        return made

    def run_split(self, batch: Batch, lengths: list[int], held: Held | None = None) -> Run:
        """The same tokens in consecutive calls of the given lengths, through the state; aux is added up."""
        held = held or self.begin(batch.x.shape[0], batch.length)
        ys: list[Tensor] = []
        aux: dict[str, Tensor] = {}
        start = 0
        for length in lengths:
            y, extra, held = self.run(batch.cut(slice(start, start + length)), held)
            ys.append(y)
            aux = {key: value + aux[key] if aux else value for key, value in extra.items()}
            start += length
        return Run(torch.cat(ys, 1), aux, held)

    def held(self, batch: Batch, length: int) -> Held:
        """What a state made for `length` tokens holds after the batch."""
        held = self.run(batch, self.begin(len(batch.x), length)).held
        assert held is not None
        return held

    def _past(self, held: Held) -> Past | None:
        return held.past

    def _after(self, state: Any, before: Held, sequence: Sequence) -> Held:
        assert before.past is not None
        return Held(state, before.past.advance(sequence))

    def call(self, x: Tensor, sequence: Sequence, held: Held | None = None) -> Any:
        """What `forward` returns."""
        with told(x, held):
            state = None if held is None else held.state
            return self._back(self.module(x.to(self.device), sequence.prepare(self.needs), state))

    def _back(self, result: Any) -> Any:
        """The result with its outputs on the CPU; where it is none, whatever it is."""
        if self.device.type == "cpu" or not isinstance(result, Result):
            return result
        aux = {name: value.cpu() for name, value in result.aux.items()}
        return result._replace(y=result.y.cpu(), aux=aux)

    def changed(self, before: Tensor, after: Tensor, among: Tensor | None = None) -> Place | None:
        """The first place, of those `among` (B, T) marks, that moved: at all, or by over 8 eps of the scale."""
        allowed = 0.0 if self.claims.exact_rows else self.slack * max(scale(before), scale(after))
        places = moved(before, after, allowed)
        return first_place(places if among is None else places.masked_fill(~among, 0.0))

    @property
    def slack(self) -> float:
        """What may move, relative to the scale, where rows are not computed alone; layers of a backbone add up."""
        return (8 if self.module.kind != "backbone" else 512) * torch.finfo(self.dtype).eps

    def apart(self, one: Tensor, other: Tensor) -> Place | None:
        """The first place at which two ways to the same (B, T, D) differ by more than `tolerance` of the scale."""
        return first_place(moved(one, other, self.tolerance * scale(one)))

    def gradient(self, batch: Batch, outputs: Tensor) -> Tensor:
        """The gradient (B, T, D) of the outputs that (B, T) marks, weighted unevenly, with respect to `x`."""
        x = batch.x.clone().requires_grad_()
        y = self.run(replace(batch, x=x)).y
        if not y.requires_grad:
            return torch.zeros_like(x)
        return pulled(y * outputs[..., None], [x])[0]

    def landmarks(self) -> list[int]:
        """Lengths at which something changes along the sequence, by the parts' attributes, ascending; 4 if none.

        Only those that a sequence of the longest length holds twice, and some tokens more.
        """
        longest = min(_LONGEST, (self.place.max_length - 5) // 2)
        found = set()
        for module in self.root.modules():
            for name, value in vars(module).items():
                if _LENGTHS.search(name) and isinstance(value, int) and 2 <= value <= longest:
                    found.add(value)
        return sorted(found) or [4]


class BackboneSubject(Subject):
    """A backbone as a map of token embeddings: `x` stands in for what its embedding gives."""

    def begin(self, rows: int, length: int, dtype: torch.dtype | None = None) -> Held:
        """The backbone's own empty state."""
        return Held(self.module.empty_state(rows, length, dtype or self.dtype, self.device), None)

    def carried(self, held: Held) -> Held:
        """As the backbone does it."""
        return Held(self.module.carry(held.state), None)  # type: ignore[operator]

    def _past(self, held: Held) -> Past | None:
        return held.state.past

    def _after(self, state: Any, before: Held, sequence: Sequence) -> Held:
        return Held(state, None)

    def call(self, x: Tensor, sequence: Sequence, held: Held | None = None) -> Any:
        """What `forward` returns with `x` in place of the embeddings."""
        table = self.module.embedding
        owner = next(m for m in self.module.modules() if any(p is table for p in m.parameters(recurse=False)))
        hook = owner.register_forward_hook(lambda module, inputs, output: x.to(self.device))
        try:
            with told(x, held):
                return self._back(self.module(sequence, None if held is None else held.state))
        finally:
            hook.remove()


@contextmanager
def told(x: Tensor, held: Held | None) -> Iterator[None]:
    """Errors of a part say what it was called with."""
    try:
        yield
    except MissingExtra:
        raise
    except Exception as error:
        size = f"B={x.shape[0]}, T={x.shape[1]}{'' if held is None else ' through the state'}"
        raise Raised(f"{size}: {type(error).__name__}: {error}") from error
