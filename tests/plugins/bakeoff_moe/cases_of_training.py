"""What ranks that share out experts train together, beside one process that has the rows of all."""

from __future__ import annotations

import torch
from bakeoff.model import LanguageModel
from bakeoff.parallel.gradients import Gradients
from bakeoff.parallel.layout import Layout, Learner, is_spread, pieces
from bakeoff.parallel.mesh import Mesh, Sizes
from bakeoff.parallel.pieces import block, fill_from
from bakeoff.parts.causal import Causal
from bakeoff.testing.build import resolved
from bakeoff.train.module import all_add
from bakeoff.train.sums import StepSums
from torch import Tensor, distributed

D, E, T = 8, 8, 7
#: Rows of each rank's own batch, by the number of ranks.
ROWS = {2: [3, 1], 4: [3, 1, 0, 2]}


def close(one: Tensor, other: Tensor, what: str) -> None:
    rtol = 0 if one.dtype == torch.float64 else 1e-6  # sums that are kept in float32 whatever is computed in
    torch.testing.assert_close(one, other, rtol=rtol, atol=1e-12, msg=lambda told: f"{what}: {told}")


def batches() -> list[tuple[Tensor, Tensor]]:
    """Tokens (B, T) of each rank, and which are no padding."""
    counts, draw = ROWS[distributed.get_world_size()], torch.Generator().manual_seed(5)
    tokens = torch.randint(E * E, (sum(counts), T), generator=draw)
    real = torch.rand(tokens.shape, generator=draw) < 0.8
    return list(zip(tokens.split(counts), real.split(counts), strict=True))


def model_of() -> LanguageModel:
    """Two layers, of attention and a mixture that has everything, as it is constructed."""
    mixture = {
        "use": "mixture_of_experts",
        "n_experts": E,
        "expert": {"use": "gated_mlp", "width": 6},
        "router": {"use": "bias_balanced", "k": 2, "rate": 0.1},
        "shared": {"use": "mlp", "width": 5},
        "balance": [{"use": "load_balance", "coefficient": 0.1}, {"use": "router_z_loss", "coefficient": 0.1}],
    }
    block = {"use": "pre_norm", "mixer": {"use": "attention", "n_heads": 2}, "feed_forward": mixture}
    backbone = {"use": "decoder", "depth": 2, "pattern": ["layer"], "blocks": {"layer": block}}
    return LanguageModel(d_model=D, vocab_size=E * E + 1, max_length=32, backbone=resolved(backbone))


class _Trained:
    """A model under its objective, with an optimizer: on a mesh, or whole where there is none."""

    def __init__(self, mesh: Mesh | None):
        with torch.device("cpu" if mesh is None else "meta"):
            self.learner = Learner(model_of(), Causal())
        self.gradients = None
        self.own = list(self.learner.parameters())
        if mesh is None:
            self.learner.model.initialise(3)
        else:
            layout = Layout(mesh)
            layout.lay_out(self.learner, torch.device("cpu"), 3)
            self.gradients = Gradients(layout.leaves(self.learner), mesh)
            self.own = [leaf.own for leaf in self.gradients.leaves]
        self.sums = StepSums(nominal=16.0, add_up=None if mesh is None else all_add, together=True)
        self.optimizer = torch.optim.AdamW(self.own, lr=0.01, eps=1e-4)

    def step(self, batches: list[tuple[Tensor, Tensor]]) -> Tensor:
        """One, clipped; returns the norm before."""
        self.optimizer.zero_grad()
        for tokens, real in batches:
            self.sums.enter(*self.learner({"tokens": tokens, "real": real})).backward()
        if self.gradients is not None:
            self.gradients.adopt()
        totals = self.sums.finish(self.own)
        if self.gradients is None:
            norm = torch.nn.utils.get_total_norm([p.grad for p in self.own])
        else:
            self.gradients.add_up()
            norm = self.gradients.norm()
        torch.nn.utils.clip_grads_with_norm_(self.own, 0.5 * float(norm), norm)
        self.optimizer.step()
        sums = {name.removeprefix("aux."): totals[name] for name in totals.places if name.startswith("aux.")}
        backbone = self.learner.model.backbone
        with torch.no_grad():
            backbone.after_step(backbone.layer_statistics(sums))
        return norm


def training_equals_one(data: int) -> None:
    """Three steps, clipped, with unequal numbers of targets; one process takes the ranks' batches one by one."""
    torch.set_default_dtype(torch.float64)
    try:
        _training_equals_one(data)
    finally:
        torch.set_default_dtype(torch.float32)


def _training_equals_one(data: int) -> None:
    n = distributed.get_world_size()
    mesh = Mesh(Sizes(data=data, expert=n // data), "cpu")
    whole, part, rows = _Trained(None), _Trained(mesh), batches()
    assert any(is_spread(owner) for owner in part.learner.modules()) == (n > data)
    for _ in range(3):
        norm = whole.step(rows)
        close(part.step([rows[mesh.batch_rank]]), norm, "norm")
    theirs = whole.learner.state_dict()
    held = pieces(part.learner)
    assert held.keys() == theirs.keys()
    for name, piece in held.items():
        assert piece.whole == theirs[name].shape
        for box in piece.boxes:
            close(piece.view(box), block(theirs[name], box.whole, box.size), name)
    again = _Trained(mesh)
    fill_from(theirs, pieces(again.learner))
    for name, piece in pieces(again.learner).items():
        close(held[name].local, piece.local, name)
