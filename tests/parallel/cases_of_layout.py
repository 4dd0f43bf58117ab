"""What ranks do in the tests of layouts: a step of a model on a mesh beside the step of one process on all rows."""

from pathlib import Path

import torch
from bakeoff.data import Data
from bakeoff.model import LanguageModel
from bakeoff.parallel import checkpoints
from bakeoff.parallel.gradients import Gradients
from bakeoff.parallel.layout import Layout, Learner, pieces
from bakeoff.parallel.mesh import Mesh, Sizes
from bakeoff.parts.causal import Causal
from bakeoff.parts.corpora.text_files import TextFiles
from bakeoff.parts.tokenizers.byte import ByteTokenizer
from bakeoff.testing.build import resolved
from bakeoff.train.optimizers import build_optimizer
from torch import distributed

ATTENTION = {"use": "attention", "n_heads": 4, "position": {"use": "rope"}}
GPT = {"layer": {"use": "pre_norm", "mixer": ATTENTION, "feed_forward": {"use": "mlp", "width": 24}}}


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


def tied_after_a_step(sizes, folder):
    """After a step, and after a reload: one tensor for embedding and head, which the optimizer has once."""
    mesh, tied = Mesh(Sizes(**sizes), "cpu"), "model.head.projection.weight"

    def made(seed):
        layout = Layout(mesh)
        with torch.device("meta"):
            trained = Learner(unfilled(GPT), Causal())
        layout.lay_out(trained, torch.device("cpu"), seed)
        gradients = Gradients(layout.leaves(trained), mesh)
        return (
            trained,
            gradients,
            build_optimizer(torch.optim.AdamW, trained, {x.name: x.own for x in gradients.leaves}),
        )

    def held_once(trained, optimizer):
        assert trained.model.head.projection.weight is trained.model.backbone.embed.weight
        assert torch.equal(pieces(trained)[tied].local, pieces(trained)["model.backbone.embed.weight"].local)
        counted = [parameter for group in optimizer.param_groups for parameter in group["params"]]
        assert len(counted) == len({id(parameter) for parameter in counted}) == len(dict(trained.named_parameters()))
        assert tied not in dict(trained.named_parameters())

    trained, gradients, optimizer = made(1)
    before = pieces(trained)[tied].local.clone()
    learned(trained, {"tokens": torch.arange(8)[None], "real": torch.ones(1, 8, dtype=torch.bool)})
    gradients.adopt()
    gradients.add_up()
    optimizer.step()
    held_once(trained, optimizer)
    assert not torch.equal(pieces(trained)[tied].local, before)
    checkpoints.write(pieces(trained), Path(folder), group=None)
    again, _, other = made(2)
    checkpoints.read(Path(folder), pieces(again))
    held_once(again, other)
    for name, piece in pieces(trained).items():
        assert torch.equal(pieces(again)[name].local, piece.local), name


def rows_of_each_step(sizes, folder, steps=3):
    """The global batch of each step is that of one process, and ranks that differ in `tensor` only read the same."""
    mesh = Mesh(Sizes(**sizes), "cpu")
    corpus, tokenizer = TextFiles(path=str(Path(folder) / "texts")), ByteTokenizer()
    described = {"length": 4, "batch_tokens": 64, "micro_batch": 2, "cache": str(Path(folder) / "cache")}
    data = Data(corpus=corpus, tokenizer=tokenizer, **described).prepare(progress=False)

    def read(ranks, rank):
        batches = iter(data.training(tokens_wanted=5, seed=3, ranks=ranks, rank=rank))
        return [[row for _ in range(data.accumulation(ranks)) for row in next(batches)["tokens"].tolist()]
                for _ in range(steps)]  # fmt: skip

    every = [None] * mesh.sizes.ranks
    distributed.all_gather_object(every, (mesh.batch_rank, read(mesh.sizes.batch, mesh.batch_rank)))
    by_rank = {}
    for batch_rank, rows in every:
        assert by_rank.setdefault(batch_rank, rows) == rows
    assert sorted(by_rank) == list(range(mesh.sizes.batch))
    for step, wanted in enumerate(read(1, 0)):
        assert len({tuple(row) for row in wanted}) > 8
        assert sorted(row for rows in by_rank.values() for row in rows[step]) == sorted(wanted)


def same(trained, whole):
    for name, piece in pieces(trained).items():
        assert piece.whole == whole[name].shape, name
        for box in piece.boxes:
            expected = whole[name][tuple(slice(a, a + n) for a, n in zip(box.whole, box.size, strict=True))]
            assert torch.equal(piece.view(box), expected), name


def learned(trained, batch):
    terms, _ = trained(batch)
    sum(total for total, _ in terms.values()).backward()
