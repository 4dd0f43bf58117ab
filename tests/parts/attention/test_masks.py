import pytest
import torch
from bakeoff.interfaces import Past, Sequence
from bakeoff.parts.attention.masks import VisibleKeys, held_keys


def rows(T, B=1):
    return torch.zeros(B, T, dtype=torch.long)


def keys_seen(mask):
    return [row.nonzero()[:, 0].tolist() for row in mask[0, 0]]


def test_a_window_counts_the_query_itself():
    mask = VisibleKeys(4).derive(Sequence(rows(8))).mask
    seen = keys_seen(mask)
    assert seen[0] == [0]
    assert seen[2] == [0, 1, 2]
    assert seen[7] == [4, 5, 6, 7]
    assert mask.sum() == 26


def test_a_bidirectional_window_reaches_as_far_on_either_side():
    seen = keys_seen(VisibleKeys(3).derive(Sequence(rows(6), visibility="bidirectional")).mask)
    assert seen[0] == [0, 1, 2]
    assert seen[3] == [1, 2, 3, 4, 5]


def test_prefix_of_each_document_is_seen_whole():
    documents = torch.tensor([[0, 0, 0, 1, 1, 1]])
    prefix = torch.tensor([[2, 2, 2, 1, 1, 1]])
    sequence = Sequence(rows(6), documents=documents, visibility="prefix", prefix=prefix)
    assert keys_seen(VisibleKeys(None).derive(sequence).mask) == [[0, 1], [0, 1], [0, 1, 2], [3], [3, 4], [3, 4, 5]]


def test_no_prefix_is_causal_and_all_prefix_is_bidirectional():
    def seen(length):
        sequence = Sequence(rows(5), visibility="prefix", prefix=torch.full((1, 5), length))
        return VisibleKeys(None).derive(sequence).mask[0, 0]

    assert torch.equal(seen(0), torch.ones(5, 5, dtype=torch.bool).tril())
    assert seen(5).all()


@pytest.mark.parametrize(
    ("window", "longest", "T", "what", "expected"),
    [
        (None, 0, 7, {}, (None, True)),
        (9, 5, 1, {}, (None, False)),
        (None, 5, 1, {}, (None, False)),
        (None, 0, 7, {"visibility": "bidirectional"}, (None, False)),
    ],
)
def test_plain_cases_need_no_mask(window, longest, T, what, expected):
    past = Past(2, 16, slots=True)
    if longest:
        past = past.advance(Sequence(rows(longest, 2), past=past))
    assert VisibleKeys(window).derive(Sequence(rows(T, 2), past=past, **what)) == expected


def test_decoding_in_a_full_rolling_cache_needs_no_mask():
    past = Past(2, 16, slots=True)
    past = past.advance(Sequence(rows(9, 2), past=past))
    assert VisibleKeys(4, rolling=True).derive(Sequence(rows(1, 2), past=past)) == (None, False)


@pytest.mark.parametrize("split", [(6, 1, 3, 1), (1, 1, 1, 1, 1, 1, 1, 3, 1), (9, 2), (2, 6, 3)])
def test_keys_of_a_rolling_cache_are_the_last_ones(split):
    window, past = 4, Past(1, 16, slots=True)
    for T in split:
        sequence = Sequence(rows(T), past=past)
        seen = VisibleKeys(window, rolling=True).derive(sequence)
        keys = held_keys(sequence, window, rolling=True)
        first = int(past.length)
        assert keys.index.shape[1] <= window + T
        mask = seen.explicit(T, keys.index.shape[1], torch.device("cpu"))
        for t in range(T):
            at = keys.index[0] if mask is None else keys.index[0][mask.expand(1, 1, -1, -1)[0, 0, t]]
            assert sorted(at.tolist()) == list(range(max(0, first + t - 3), first + t + 1))
        past = past.advance(sequence)


def test_padding_is_seen_by_none_and_counts_in_no_window():
    real = torch.tensor([[0, 0, 1, 1, 1, 1], [1, 1, 1, 1, 0, 0]], dtype=torch.bool)
    mask = VisibleKeys(3).derive(Sequence(rows(6, 2), real=real)).mask[:, 0]
    assert not mask[0, :, :2].any()
    assert not mask[1, :, 4:].any()
    assert mask[0, 5].tolist() == [False, False, False, True, True, True]
    assert mask[0, 3].tolist() == [False, False, True, True, False, False]


def test_documents_do_not_see_each_other():
    documents = torch.tensor([[3, 3, 3, 7, 7]])
    seen = keys_seen(VisibleKeys(None).derive(Sequence(rows(5), documents=documents)).mask)
    assert seen == [[0], [0, 1], [0, 1, 2], [3], [3, 4]]
