"""What ranks do for law 10: a component that they work on together beside the same component whole."""

from __future__ import annotations

import importlib
import importlib.util
import sys
from collections.abc import Callable, Iterable, Mapping
from functools import cache, partial, reduce
from typing import Any

import torch
from torch import Tensor, distributed, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from bakeoff.errors import CapabilityError
from bakeoff.interfaces.cut import Share, shares_of
from bakeoff.interfaces.init import initialise
from bakeoff.interfaces.part import Part
from bakeoff.parallel.tensor import Stream, outermost, share_out, split_model, work_together
from bakeoff.parts.causal import Causal
from bakeoff.parts.needs import gather
from bakeoff.testing.batch import Batch, scale
from bakeoff.testing.build import D_MODEL, VOCABULARY, context
from bakeoff.testing.candidate import Beside, Candidate
from bakeoff.testing.host import host, model
from bakeoff.testing.law import Broken
from bakeoff.testing.subject import Subject
from bakeoff.testing.values import jitter

#: What two sums of the same terms may differ by, relative to the largest, by the type they are computed in.
ALLOWED = {torch.float64: 1e-10, torch.float32: 1e-4}
_LENGTH = 11


def part_equals_one(component: Any, kind: str, arguments: Mapping[str, Any], seed: int) -> None:
    """Outputs, sums and gradients of a part along a sequence, at once and through the state, and its first values."""
    candidates = [Candidate(found(component), kind, arguments, seed) for _ in range(2)]
    whole, share = (candidate.subject for candidate in candidates)
    ours = split(share.root)  # type: ignore[arg-type]
    share.needs = gather(share.root)
    for mode in whole.modes_claiming("tensor_parallel"):
        with whole.mode(mode, quiet=True), share.mode(mode, quiet=True):
            batch = _batch(whole, mode)
            one, many = (_learned(subject, batch) for subject in (whole, share))
            compare(mode, one, many, share.root, ours)
            if whole.claimed("state", mode):
                with torch.no_grad():
                    runs = [subject.run_split(batch, [6, _LENGTH - 6]).y for subject in (whole, share)]
                _same(f"{mode}, in calls of 6 + {_LENGTH - 6} through the state: the output", *runs)
    _begin_alike(candidates[0])


def head_equals_one(component: Any, kind: str, arguments: Mapping[str, Any], seed: int) -> None:
    """Answers of a head; their loss, and its gradients, where they are logits."""
    candidate = Candidate(found(component), kind, arguments, seed)
    whole, share = (candidate.filled().double() for _ in range(2))
    ours = split(share)
    generator = candidate.generator()
    hidden = torch.randn(2, _LENGTH, D_MODEL, generator=generator, dtype=torch.float64)
    targets = torch.randint(VOCABULARY, (2, _LENGTH), generator=generator)
    weights = (torch.arange(2 * _LENGTH) % 3 != 1).double().view(2, -1)
    with torch.no_grad():
        answers = [root.part(hidden) for root in (whole, share)]
    _same("the answer", *answers)
    if answers[0].shape == (2, _LENGTH, VOCABULARY):
        each = [root.part(hidden, targets, reduce="none").detach() for root in (whole, share)]
        _same("the loss of each token", *each)
        one, many = (_of_loss(root, hidden, targets, weights) for root in (whole, share))
        compare("evaluation", one, many, share, ours)
    one, many = (_of_scores(root, hidden) for root in (whole, share))
    if one:
        compare("evaluation", one, many, share, ours)
    _begin_alike(candidate)


def model_equals_one(component: Any, kind: str, arguments: Mapping[str, Any], seed: int) -> None:
    """The loss of a model of two layers with the component in its place, and its gradients."""
    make = partial(model, kind, Candidate(found(component), kind, arguments, seed).build)
    whole, share = (make().initialise(seed).double() for _ in range(2))
    for one in (whole, share):
        jitter(one, seed)
    tokens = torch.randint(VOCABULARY, (2, _LENGTH + 1), generator=torch.Generator().manual_seed(seed))
    ours = split_model(share, _mesh())
    wanted, got = (of_model(each, tokens) for each in (whole, share))
    compare("in a model of 2 layers, evaluation", wanted, got, share, ours)


def split(root: Beside) -> list[nn.Parameter]:
    """Leave on each rank its share of a part and of what stands beside it; the parameters whose gradients to add up."""
    parts = list(outermost(root))
    beside = [part for part in root.shared.children() if isinstance(part, Part) and not list(outermost(part))]
    shares: dict[int, Share] = {}
    for part in [*parts, *beside]:
        share_out(part, _mesh(), shares)
    for part in parts:
        work_together(part, Stream(_mesh()))
    inside = {id(p): p for part in [*parts, *beside] for p in part.parameters()}
    return [parameter for key, parameter in inside.items() if key not in shares]


def _begin_alike(candidate: Candidate) -> None:
    """Split on the meta device and then initialised, it holds its share of what it starts from whole."""
    build = host(candidate.kind, candidate.build) if candidate.kind != "head" else candidate.build
    whole = candidate.filled(build, jittered=False)
    place = context(candidate.kind)
    with torch.device("meta"):
        share = Beside(build(place), place.parts)
    split(share)
    initialise(share.to_empty(device="cpu"), seed=candidate.seed, depth=place.depth)
    shares = _shares(share)
    held = {**dict(share.named_parameters()), **dict(share.named_buffers())}
    for name, tensor in {**dict(whole.named_parameters()), **dict(whole.named_buffers())}.items():
        wanted = shares[name].of(tensor) if name in shares else tensor
        if not torch.equal(held[name], wanted):
            raise Broken(
                f"split on the meta device and then initialised, {_told(name)} is no share of what it is whole: draw "
                "the whole through `init.fill`, from sizes that `narrow` leaves as they are"
            )


def _learned(subject: Subject, batch: Batch) -> dict[str, Tensor]:
    """The output, sums, and gradients of both by what they come from."""
    x = batch.x.clone().requires_grad_()
    run = subject.run(Batch(x, batch.tokens, batch.documents, batch.real))
    y = run.y if batch.real is None else torch.where(batch.real[..., None], run.y, 0)
    sums = {name: value for name, value in run.aux.items() if value.requires_grad}
    weights = torch.linspace(0.5, 1.5, y.numel(), dtype=y.dtype).view_as(y)
    total = reduce(torch.add, (0.1 * value.sum() for value in sums.values()), (y * weights).sum())
    told = {"the output": y.detach()} | {f"the sum '{name}'": value.detach() for name, value in run.aux.items()}
    return told | gradients(total, {"x": x, **dict(subject.root.named_parameters())})


def _of_loss(root: Beside, hidden: Tensor, targets: Tensor, weights: Tensor) -> dict[str, Tensor]:
    hidden = hidden.clone().requires_grad_()
    loss = root.part(hidden, targets, weights)
    loss = loss[0] if isinstance(loss, tuple) else loss
    return {"the loss": loss.detach()} | gradients(loss, {"x": hidden, **dict(root.named_parameters())})


def _of_scores(root: Beside, hidden: Tensor) -> dict[str, Tensor]:
    """Nothing where the head scores nothing."""
    hidden = hidden.clone().requires_grad_()
    try:
        scores = root.part.score(hidden)  # type: ignore[operator]
    except CapabilityError:
        return {}
    total = (scores * torch.linspace(0.5, 1.5, scores.shape[1], dtype=scores.dtype)).sum()
    return {"the scores": scores.detach()} | gradients(total, {"x": hidden, **dict(root.named_parameters())})


def of_model(one: Any, tokens: Tensor) -> dict[str, Tensor]:
    documents = (torch.arange(tokens.shape[1]) > 4).long().expand_as(tokens)
    terms, _ = Causal()(one.eval(), {"tokens": tokens, "documents": documents})
    loss = reduce(torch.add, (total for total, _ in terms.values()))
    return {"the loss": loss.detach()} | gradients(loss, dict(one.named_parameters()))


def gradients(total: Tensor, leaves: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """By name, contiguous, as ranks add up; zeros for what `total` does not depend on."""
    learnt = {name: leaf for name, leaf in leaves.items() if leaf.requires_grad}
    given = torch.autograd.grad(total, list(learnt.values()), allow_unused=True)
    pairs = zip(learnt.items(), given, strict=True)
    return {name: torch.zeros_like(leaf) if own is None else own.contiguous() for (name, leaf), own in pairs}


def compare(
    told: str, one: dict[str, Tensor], many: dict[str, Tensor], root: nn.Module, ours: Iterable[nn.Parameter]
) -> None:
    """What ranks found, where they are to be added up added up, against the shares of what one process found."""
    shares, summed = _shares(root), {id(parameter) for parameter in ours}
    for name, parameter in root.named_parameters():
        if id(parameter) in summed:
            distributed.all_reduce(many[name])
    for name, wanted in one.items():
        what = name if name.startswith("the ") else f"the gradient of {_told(name)}"
        _same(f"{told}: {what}", shares[name].of(wanted) if name in shares else wanted, many[name])


def _same(told: str, one: Tensor, many: Tensor) -> None:
    if one.shape != many.shape:
        raise Broken(f"{told} has shape {tuple(many.shape)}, and {tuple(one.shape)} in one process")
    difference = float((one - many).abs().max()) if one.numel() else 0.0
    if not difference <= ALLOWED.get(one.dtype, 1e-4) * scale(one):
        raise Broken(f"{told} differs by {difference:.2g} from that of one process")


def _batch(subject: Subject, mode: str) -> Batch:
    """Two rows, of packed documents where these are kept apart, padded left and right where padding changes nothing."""
    place = torch.arange(_LENGTH).expand(2, -1)
    documents = (place > torch.tensor([[4], [6]])).long()
    real = torch.stack([place[0] < _LENGTH - 2, place[0] >= 2])
    places = {"documents": documents, "padding": real}
    given = {name: where if subject.claimed(name, mode) else None for name, where in places.items()}
    return subject.batch(2, _LENGTH, documents=given["documents"], real=given["padding"])


def _shares(root: nn.Module) -> dict[str, Share]:
    return {
        f"{path}.{name}" if path else name: share
        for path, owner in root.named_modules()
        for name, share in shares_of(owner).items()
    }


def _told(name: str) -> str:
    return name.removeprefix("part.")


@cache
def _mesh() -> DeviceMesh:
    return init_device_mesh("cpu", (distributed.get_world_size(),), mesh_dim_names=("tensor",))["tensor"]


def found(component: Mapping[str, Any]) -> Callable[..., Any]:
    """The class or factory that stands in a module under a name; scripts that it needs are imported before."""
    sys.path += [path for path in component["paths"] if path not in sys.path]
    for module, file in component["modules"]:
        try:
            importlib.import_module(module)
        except ImportError:
            spec = importlib.util.spec_from_file_location(module, file)
            assert spec is not None, file
            assert spec.loader is not None
            sys.modules[module] = importlib.util.module_from_spec(spec)
            spec.loader.exec_module(sys.modules[module])
    return reduce(getattr, component["name"].split("."), sys.modules[component["modules"][-1][0]])  # type: ignore[return-value]
