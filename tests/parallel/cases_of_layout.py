"""What ranks do in the tests of layouts: a step of a model on a mesh beside the step of one process on all rows."""

import torch
from bakeoff.model import LanguageModel
from bakeoff.parallel.gradients import Gradients
from bakeoff.parallel.layout import Layout, Learner, pieces
from bakeoff.parallel.mesh import Mesh, Sizes
from bakeoff.parts.causal import Causal
from bakeoff.testing.build import resolved


def unfilled(blocks, *, vocab_size=11, depth=2, tied_embedding=True, **decoder):
    """A model as it is constructed."""
    arguments = {"use": "decoder", "depth": depth, "pattern": list(blocks), "blocks": blocks, **decoder}
    sizes = {"d_model": 16, "vocab_size": vocab_size, "max_length": 32}
    return LanguageModel(**sizes, backbone=resolved(arguments), tied_embedding=tied_embedding)


def step_equals_one_process(**case):
    """Values, gradients and their norm, of rows that ranks have unequally many of, one of them none; in float64."""
    torch.set_default_dtype(torch.float64)
    try:
        step(**case)
    finally:
        torch.set_default_dtype(torch.float32)


def step(sizes, blocks, options=None, rows=(3, 0, 1, 2), length=9, **model):
    """The same, in the default type."""
    mesh = Mesh(Sizes(**sizes), "cpu")
    layout = Layout(mesh, **(options or {}))
    with torch.device("meta"):
        trained = Learner(unfilled(blocks, **model), Causal())
    layout.lay_out(trained, torch.device("cpu"), seed=7)
    whole = Learner(unfilled(blocks, **model), Causal())
    whole.model.initialise(7)
    same(trained, dict(whole.state_dict()))
    tokens = torch.randint(0, 11, (sum(rows), length), generator=torch.Generator().manual_seed(1))
    batch = mesh.sizes.batch
    mine = tokens.split([*rows[: batch - 1], sum(rows[batch - 1 :])])[mesh.batch_rank]
    real = torch.ones_like(mine, dtype=torch.bool)
    if not len(mine):
        mine, real = tokens[:1], torch.zeros_like(tokens[:1], dtype=torch.bool)
    for _ in range(2):  # micro-batches
        learned(trained, {"tokens": mine, "real": real})
        learned(whole, {"tokens": tokens, "real": torch.ones_like(tokens, dtype=torch.bool)})
    leaves = list(layout.leaves(trained))
    gradients = Gradients(leaves, mesh)
    gradients.adopt()
    gradients.add_up()
    wanted = {name: parameter.grad for name, parameter in whole.named_parameters()}
    norm = torch.nn.utils.get_total_norm(wanted.values())
    torch.testing.assert_close(gradients.norm(), norm, rtol=1e-10, atol=0)
    described = pieces(trained)
    for leaf in leaves:
        name = leaf.name
        piece = described[name].alike(leaf.own.grad)
        for box in piece.boxes:
            expected = wanted[name][tuple(slice(a, a + n) for a, n in zip(box.whole, box.size, strict=True))]
            torch.testing.assert_close(
                piece.view(box), expected, rtol=1e-10, atol=1e-11, msg=lambda t, n=name: f"{n} {t}"
            )


def same(trained, whole):
    for name, piece in pieces(trained).items():
        assert piece.whole == whole[name].shape, name
        for box in piece.boxes:
            expected = whole[name][tuple(slice(a, a + n) for a, n in zip(box.whole, box.size, strict=True))]
            assert torch.equal(piece.view(box), expected), name


def learned(trained, batch):
    terms, _ = trained(batch)
    sum(total for total, _ in terms.values()).backward()
