"""The head that asks a datastore, on datastores that are written by hand."""

import copy
import math

import bakeoff_retro.knn.nearest as searching
import numpy as np
import pytest
import torch
from bakeoff.errors import CapabilityError, UserError
from bakeoff.interfaces import LayerContext
from bakeoff.parts.files import write_sealed
from bakeoff.parts.vocabulary import Vocabulary
from bakeoff_retro import KNNLM
from bakeoff_retro.knn.datastore import FORMAT, Datastore, fingerprint
from bakeoff_retro.knn.indexes import write_index
from bakeoff_retro.knn.nearest import nearest
from torch.nn import functional as F
from torch.utils.flop_counter import FlopCounterMode

D, V = 8, 11


def written(folder, inner, keys, values, vocab_size=V):
    """A datastore of the head `inner`."""
    folder.mkdir()
    keys, values = np.asarray(keys), np.asarray(values, "<i4")
    (folder / "keys").write_bytes(keys.tobytes())
    (folder / "values").write_bytes(values.tobytes())
    sizes = {"entries": len(keys), "width": keys.shape[1], "vocab_size": vocab_size, "type": keys.dtype.name}
    prints = {"head": fingerprint(inner.state_dict()), "model": ""}
    write_sealed(folder / "manifest.json", {"format": FORMAT, **sizes, **prints})
    return str(folder)


@pytest.fixture
def place():
    return LayerContext(d_model=D, vocab_size=V, max_length=32)


@pytest.fixture
def inner(place):
    head = Vocabulary(place, bias=True)
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in head.parameters():
            parameter.normal_(generator=draw)
    return head


@pytest.fixture
def entries():
    draw = np.random.default_rng(2)
    return draw.normal(size=(300, D)).astype("<f4"), draw.integers(V, size=300)


@pytest.fixture
def folder(tmp_path, inner, entries):
    return written(tmp_path / "store", inner, *entries)


@pytest.fixture
def make(place, inner, folder):
    """Heads around `inner` that ask the datastore."""

    def made(**arguments):
        options = {"datastore": folder, "k": 20, "weight": 0.3, "temperature": 5.0, **arguments}
        return KNNLM(place, head=lambda _: copy.deepcopy(inner), **options).eval()

    return made


@pytest.fixture
def hidden():
    return torch.randn(2, 5, D, generator=torch.Generator().manual_seed(3))


@pytest.fixture
def targets():
    return torch.randint(V, (2, 5), generator=torch.Generator().manual_seed(4))


def formula(inner, entries, hidden, *, k, weight, temperature):
    """The paper's formula over all keys, one query at a time, in numpy."""
    keys, values = (each.astype(np.float64) for each in entries)
    with torch.no_grad():
        ours = inner(hidden).double().softmax(-1).flatten(0, 1).numpy()
    found = []
    for query, p_lm in zip(hidden.double().flatten(0, 1).numpy(), ours, strict=True):
        squares = ((keys - query) ** 2).sum(1)
        p_knn = np.zeros(V)
        for number in np.argsort(squares)[:k]:
            p_knn[int(values[number])] += math.exp(-squares[number] / temperature)
        found.append(weight * p_knn / p_knn.sum() + (1 - weight) * p_lm)
    return torch.tensor(np.stack(found)).view(*hidden.shape[:2], V)


def test_a_mixture_worked_out_by_hand(tmp_path):
    place = LayerContext(d_model=2, vocab_size=3, max_length=4)
    inner = Vocabulary(place)
    torch.nn.init.zeros_(inner.projection.weight)  # p_LM is 1/3 for each
    keys = np.array([[0, 0], [0, 1], [1, 0], [1, 1]], "<f2")  # squares 0, 1, 1, 2 from the origin: 1, 1/2, 1/2, 1/4
    folder = written(tmp_path / "store", inner, keys, [0, 1, 0, 2], vocab_size=3)
    options = {"datastore": folder, "k": 3, "weight": 0.4, "temperature": 1 / math.log(2)}
    head = KNNLM(place, head=lambda _: inner, **options).eval()
    # p_kNN is 3/4, 1/4, 0: of the fourth key, which is the farthest, nothing is seen
    expected = torch.tensor([0.4 * 3 / 4 + 0.6 / 3, 0.4 / 4 + 0.6 / 3, 0.6 / 3])
    torch.testing.assert_close(head(torch.zeros(1, 1, 2)).exp()[0, 0], expected)
    nats = head(torch.zeros(1, 3, 2), torch.tensor([[0, 1, 2]]), reduce="none")
    torch.testing.assert_close(nats[0], -expected.log())


@pytest.mark.parametrize("k", [1, 20, 300])
def test_equals_the_formula_over_all_keys(make, inner, entries, hidden, k):
    options = {"k": k, "weight": 0.3, "temperature": 5.0}
    p = make(**options)(hidden).exp().double()
    torch.testing.assert_close(p, formula(inner, entries, hidden, **options), rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(p.sum(-1), torch.ones(2, 5, dtype=torch.float64), rtol=1e-5, atol=0)


def test_the_loss_is_that_of_the_logits_and_so_is_its_gradient(make, hidden, targets):
    head = make().double()
    hidden = hidden.double().requires_grad_()
    nats = F.cross_entropy(head(hidden).flatten(0, 1), targets.flatten(), reduction="none").view_as(targets)
    torch.testing.assert_close(head(hidden, targets, reduce="none"), nats)
    weights = (torch.arange(5) % 2).double().expand(2, 5)
    penalised, total = head(hidden, targets, weights, z_loss=0.1)
    torch.testing.assert_close(penalised, (nats * weights).sum())
    torch.testing.assert_close(total, penalised.detach())
    of_loss, of_logits = (
        torch.autograd.grad(loss, [hidden, *head.parameters()]) for loss in (penalised, (nats * weights).sum())
    )
    for one, other in zip(of_loss, of_logits, strict=True):
        torch.testing.assert_close(one, other)


def test_one_token_at_a_time_equals_all_at_once(make, hidden):
    head = make()
    one_by_one = torch.cat([head(hidden[:, t : t + 1]) for t in range(5)], 1)
    torch.testing.assert_close(one_by_one, head(hidden), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("arguments", [{"datastore": None}, {"weight": 0.0}])
def test_without_a_datastore_or_weight_it_is_the_head_inside(make, inner, hidden, targets, arguments):
    head = make(**arguments).train()
    assert torch.equal(head(hidden), inner(hidden))
    assert torch.equal(head(hidden, targets, reduce="none"), inner(hidden, targets, reduce="none"))
    penalties = {"z_loss": 0.1, "label_smoothing": 0.2}
    for one, other in zip(head(hidden, targets, **penalties), inner(hidden, targets, **penalties), strict=True):
        assert torch.equal(one, other)
    assert head.flops(3, 3) == inner.flops(3, 3)


@pytest.mark.parametrize("kind", ["hnsw", "ivf_pq"])
def test_an_index_finds_a_key_that_is_looked_up(make, folder, entries, kind):
    with pytest.raises(UserError, match=f"has no index {kind}; add it: .*--search {kind}"):
        make(search=kind)
    write_index(Datastore(make().store.folder), kind)
    keys = torch.from_numpy(entries[0])[None, :50]
    head = make(search=kind, k=1)
    torch.testing.assert_close(head(keys), make(k=1)(keys))
    assert head.flops(50, 50) == head.inner.flops(50, 50)


def test_the_nearest_are_found_across_blocks(entries, hidden, monkeypatch):
    monkeypatch.setattr(searching, "QUERIES", 3)
    monkeypatch.setattr(searching, "KEYS", 7)
    queries, keys = hidden.flatten(0, 1).double(), torch.from_numpy(entries[0])
    squares = torch.cdist(queries, keys.double()).square()
    wanted = squares.topk(9, largest=False)
    found = nearest(queries, keys, 9)
    torch.testing.assert_close(found.distances, wanted.values)
    assert torch.equal(found.numbers, wanted.indices)


def test_cost_is_that_of_a_counted_run(make, hidden):
    head = make()
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        head(hidden[:1])
    assert head.flops(5, 9) == counter.get_total_flops()


def test_evaluates_in_lower_precision(make, hidden, targets):
    exact = make()(hidden, targets, reduce="none")
    rounded = make().bfloat16()(hidden.bfloat16(), targets, reduce="none")
    torch.testing.assert_close(rounded, exact, rtol=0.1, atol=0.1)
    with torch.autocast("cpu", torch.bfloat16):
        torch.testing.assert_close(make()(hidden, targets, reduce="none"), exact, rtol=0.1, atol=0.1)


def test_refuses_to_train(make, hidden, targets):
    with pytest.raises(CapabilityError, match="knn_lm evaluates a trained model"):
        make().train()(hidden, targets)
    with pytest.raises(CapabilityError, match="knn_lm evaluates a trained model"):
        make()(hidden, targets, label_smoothing=0.1)
    with pytest.raises(ValueError, match="reduce is 'mean'"):
        make()(hidden, targets, reduce="mean")
    assert not make().capabilities.tensor_parallel
    assert make(datastore=None).capabilities.tensor_parallel


def test_notices_other_weights_whenever_they_change(make, hidden):
    head = make()
    head(hidden)
    with torch.no_grad():
        head.inner.projection.weight.mul_(1.1)
    with pytest.raises(UserError, match="datastore of another model: the weights of the head differ"):
        head(hidden)


def test_says_which_size_differs(tmp_path, place, inner, entries, folder, hidden):
    with pytest.raises(UserError, match="states of width 8, and the model's are 4 wide"):
        KNNLM(place.child(d_model=4), datastore=folder, k=2)
    other = written(tmp_path / "other", inner, *entries, vocab_size=12)
    with pytest.raises(UserError, match="a vocabulary of 12, and the model one of 11"):
        KNNLM(place, head=lambda _: inner, datastore=other, k=2).eval()(hidden)
    with pytest.raises(UserError, match=r"k is 301, and .* holds 300 entries"):
        KNNLM(place, datastore=folder, k=301)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"k": 0}, "k is 0"),
        ({"weight": 1.0}, "weight is 1.0"),
        ({"temperature": 0.0}, "temperature is 0.0"),
        ({"search": "tree"}, "search is 'tree'; it is one of flat, hnsw, ivf_pq"),
    ],
)
def test_refuses_arguments_that_mean_nothing(make, arguments, message):
    with pytest.raises(ValueError, match=message):
        make(**arguments)


def test_names_files_that_are_missing_or_cut_short(make, tmp_path, folder):
    with pytest.raises(UserError, match="there is no such datastore; make it first: bakeoff datastore RUN"):
        make(datastore=str(tmp_path / "nowhere"))
    keys = tmp_path / "store" / "keys"
    keys.write_bytes(keys.read_bytes()[:-4])
    with pytest.raises(UserError, match=r"keys is damaged: it holds 9,596 of 9,600 bytes"):
        make()
