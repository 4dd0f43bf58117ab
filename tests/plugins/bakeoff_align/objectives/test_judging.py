"""What judging objectives read of dialogues, and what they cost, by hand."""

import math
from types import SimpleNamespace

import pytest
import torch
from bakeoff.errors import CapabilityError, UserError
from bakeoff.interfaces import Dialogue, Turn
from bakeoff.parts.tokenizers.bpe import BPETokenizer
from bakeoff.parts.tokenizers.byte import ByteTokenizer
from bakeoff.testing.host import model
from bakeoff.testing.values import jitter
from bakeoff_align.objectives.judging.bradley_terry import BradleyTerry
from bakeoff_align.objectives.judging.process import Process
from bakeoff_align.objectives.judging.verifying import Verifying
from bakeoff_align.scored import Scored
from bakeoff_align.steps import cut, ends_of
from bakeoff_align.templates import Plain

BYTES, PLAIN = ByteTokenizer(), Plain(separator="")
NAN = math.nan


class Backbone:
    """Says nothing; the head knows the scores."""

    def __call__(self, sequence):
        return SimpleNamespace(y=torch.zeros(*sequence.tokens.shape, 1), aux={})

    def layer_losses(self, aux):
        return {}


def knowing(scores):
    return SimpleNamespace(backbone=Backbone(), head=SimpleNamespace(score=lambda hidden: torch.tensor(scores)))


def batch_of(real, **more):
    real = torch.tensor(real).bool()
    return {"tokens": torch.zeros_like(real).long(), "weights": real.float(), "real": real, "documents": None, **more}


def asked(**told):
    return Dialogue(prompt=(Turn("user", "q"),), **told)


def same(found, wanted):
    """NaN where NaN is wanted."""
    torch.testing.assert_close(torch.tensor(found), torch.tensor(wanted), equal_nan=True)


def test_bradley_terry_by_hand():
    # rewards are at the last real tokens: 1 and 0.5, 0 and 0; the third pair is none, but fills the batch up
    scores = [[9.0, 1.0, 9.0], [9.0, 9.0, 0.5], [0.0, 9.0, 9.0], [9.0, 9.0, 0.0], [9.0, 9.0, 9.0], [9.0, 9.0, 9.0]]
    real = [[1, 1, 0], [1, 1, 1], [1, 0, 0], [1, 1, 1], [0, 0, 0], [0, 0, 0]]
    batch = batch_of(real, margin=torch.tensor([0.0, 0.0, 0.0]))
    terms, statistics = BradleyTerry(centring=0.1)(knowing(scores), batch)
    first, second = math.log(1 + math.exp(-0.5)), math.log(2)  # equal rewards: ln 2 = .69314718
    assert second == pytest.approx(0.69314718)
    assert terms["loss"][0].item() == pytest.approx(first + second + 0.1 * 1.5**2)
    assert terms["loss"][1].item() == 2
    assert statistics["nats"].item() == pytest.approx(first + second)
    assert statistics["tokens"].item() == 2
    means = {"accuracy": [1, 2], "margin": [0.5, 2], "chosen_reward": [1, 2], "rejected_reward": [0.5, 2]}
    for name, pair in means.items():
        same(statistics[f"mean.{name}"].tolist(), [float(number) for number in pair])


def test_a_margin_is_what_a_reward_must_exceed():
    batch = batch_of([[1], [1]], margin=torch.tensor([0.75]))
    terms, _ = BradleyTerry()(knowing([[1.0], [0.25]]), batch)
    assert terms["loss"][0].item() == pytest.approx(math.log(2))
    terms, _ = BradleyTerry(margins=False)(knowing([[1.0], [0.25]]), batch)
    assert terms["loss"][0].item() == pytest.approx(math.log(1 + math.exp(-0.75)))


def test_what_bradley_terry_reads():
    encoded = BradleyTerry().encode(asked(completion="yes", rejected="n", margin=0.5), PLAIN, BYTES)
    better, worse = encoded.rows
    assert better.tokens == [*b"qyes", BYTES.end]
    assert worse.tokens == [*b"qn", BYTES.end]
    assert better.weights == [0, 1, 1, 1, 1]
    assert worse.weights == [0, 0, 0]  # nothing of it is to be said
    assert encoded.values == {"margin": 0.5}
    assert BradleyTerry().tokens_wanted(8) == 8


def test_cross_entropy_of_labelled_tokens_by_hand():
    # sigma(0) = 1/2, sigma(ln 3) = 3/4, sigma(-ln 3) = 1/4
    scores = [[0.0, math.log(3), 9.0], [-math.log(3), 9.0, math.log(3)]]
    labels = torch.tensor([[1.0, 1.0, NAN], [1.0, NAN, 0.25]])
    batch = batch_of([[1, 1, 1], [1, 1, 1]], labels=labels)
    last = -(0.25 * math.log(0.75) + 0.75 * math.log(0.25))
    nats = -math.log(0.5) - math.log(0.75) - math.log(0.25) + last
    for objective in (Process(), Verifying(language=0.0)):
        terms, statistics = objective(knowing(scores), batch)
        assert terms["loss"][0].item() == pytest.approx(nats)
        assert terms["loss"][1].item() == statistics["tokens"].item() == 4
        same(statistics["mean.probability"].tolist(), [2.25, 4.0])
        same(statistics["mean.right"].tolist(), [3.25, 4.0])
        same(
            statistics["mean.accuracy"].tolist(), [1.0, 4.0]
        )  # only ln 3 against 1: a tie is no agreement with "right"
        losses = objective.token_losses(knowing(scores), batch)
        assert (losses.nats * losses.weights).sum().item() == pytest.approx(nats)


def test_what_process_supervision_reads():
    dialogue = asked(completion="1\n23\n4", steps=("1\n", "23\n", "4"), step_labels=(1.0, 0.25, 0.0))
    ((tokens, weights, labels),) = Process().encode(dialogue, PLAIN, BYTES).rows
    assert tokens == [*b"q1\n23\n4", BYTES.end]
    same(labels, [NAN, NAN, 1.0, NAN, NAN, 0.25, 0.0, NAN])
    assert weights == [0, 1, 1, 0.25, 0.25, 0.25, 0, 0]
    without = asked(steps=("1\n", "23\n", "4"), step_labels=(1.0, 0.25, 0.0))
    assert Process().encode(without, PLAIN, BYTES).rows[0].tokens == tokens


@pytest.mark.parametrize(
    ("level", "labels"),
    [("token", [NAN, 0.5, 0.5, 0.5]), ("solution", [NAN, NAN, NAN, 0.5])],
)
def test_what_a_verifier_reads(level, labels):
    ((tokens, weights, found),) = Verifying(level=level).encode(asked(completion="no", right=0.5), PLAIN, BYTES).rows
    assert tokens == [*b"qno", BYTES.end]
    assert weights == [0, 0.5, 0.5, 0.5]
    same(found, labels)


def test_an_empty_answer_can_be_verified():
    ((tokens, _, labels),) = Verifying().encode(asked(completion="", right=0.0), PLAIN, BYTES).rows
    assert tokens == [*b"q", BYTES.end]
    same(labels, [NAN, 0.0])


def test_steps_end_at_the_token_that_holds_their_last_byte():
    merged = BPETokenizer(vocab_size=300)
    merged.train(["ab ab ab naïve naïve"] * 9)
    text = "ab ab\nnaïve ab"
    steps = cut(text, "\n")
    assert steps == ["ab ab\n", "naïve ab"]
    spoken, ends = ends_of(text, steps, PLAIN, merged)
    assert len(spoken) < len(text)  # merges there were
    for number, end in enumerate(ends, 1):
        read = merged.decode_bytes(spoken[: end + 1])
        wanted = "".join(steps[:number]).encode()
        assert read.startswith(wanted)
        assert not merged.decode_bytes(spoken[:end]).startswith(wanted)


@pytest.mark.parametrize(
    ("text", "steps"), [("", []), ("a", ["a"]), ("a\n", ["a\n"]), ("a\n\nb", ["a\n", "\n", "b"]), ("\n", ["\n"])]
)
def test_steps_are_cut_behind_separators(text, steps):
    assert cut(text, "\n") == steps


def scoring(seed=0):
    network = model("head", Scored).initialise(seed).double()
    jitter(network, seed)
    return network


def test_the_language_loss_is_that_of_each_next_token():
    network, draw = scoring(), torch.Generator().manual_seed(1)
    tokens = torch.randint(64, (2, 6), generator=draw)
    documents = torch.tensor([[0, 0, 0, 1, 1, 1], [0, 0, 0, 0, 0, 0]])
    weights = torch.rand(2, 6, generator=draw)
    labels = torch.full((2, 6), NAN).index_fill_(1, torch.tensor([2, 5]), 1.0)
    batch = {"tokens": tokens, "documents": documents, "real": None, "weights": weights, "labels": labels}
    terms, statistics = Process(language=0.5)(network, batch)
    rows = [(tokens[0, :3], weights[0, :3]), (tokens[0, 3:], weights[0, 3:]), (tokens[1], weights[1])]
    nats = 0.0
    for row, share in rows:
        logits, _ = network.logits(row[None])
        log_p = logits[0, :-1].log_softmax(-1).gather(1, row[1:, None])[:, 0]
        nats = nats - (log_p * share[1:]).sum()
    total = sum(share[1:].sum() for _, share in rows)
    torch.testing.assert_close(terms["language"][0], 0.5 * nats)
    torch.testing.assert_close(terms["language"][1], total)
    same(statistics["mean.language"].tolist(), [nats.item(), total.item()])


@pytest.mark.parametrize("objective", [BradleyTerry(centring=0.1, language=1.0), Process(language=1.0), Verifying()])
def test_padding_changes_nothing(objective):
    network, draw = scoring(), torch.Generator().manual_seed(2)
    tokens = torch.randint(64, (2, 9), generator=draw)
    real = torch.arange(9) < torch.tensor([[6], [5]])
    labels = torch.where(real & (torch.arange(9) % 2 == 0), 1.0, NAN)
    batch = {"tokens": tokens, "real": real, "weights": real.float(), "labels": labels, "documents": None}
    batch["margin"] = torch.zeros(1)
    cut_off = {name: value[:, :6] if value is not None and value.ndim == 2 else value for name, value in batch.items()}
    for (name, long), short in zip(
        objective(network, batch)[0].items(), objective(network, cut_off)[0].values(), strict=True
    ):
        for one, other in zip(long, short, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-9, atol=1e-9, msg=name)


def test_a_head_that_scores_nothing_is_named():
    network = model("objective", None).initialise(0)
    batch = batch_of([[1], [1]], margin=torch.zeros(1))
    with pytest.raises(CapabilityError, match=r"Vocabulary says what comes next and scores nothing: use .*scored"):
        BradleyTerry()(network, batch)


@pytest.mark.parametrize(
    ("objective", "told", "reason"),
    [
        (BradleyTerry(), {"completion": "a"}, "`rejected` is missing; BradleyTerry learns from pairs"),
        (BradleyTerry(), {"rejected": "a"}, "`completion` is missing"),
        (BradleyTerry(), {"completion": "", "rejected": "a"}, "`completion` is empty"),
        (BradleyTerry(), {"completion": "a", "rejected": ""}, "`rejected` is empty"),
        (BradleyTerry(), {"completion": "a", "rejected": "a"}, "are the same, 'a'"),
        (Process(), {"completion": "a"}, "`steps` is empty"),
        (Process(), {"steps": ("a", "b"), "step_labels": (1.0,)}, "2 steps and 1 step_labels"),
        (Process(), {"steps": ("a", ""), "step_labels": (1.0, 1.0)}, "step 2 of 2 is empty"),
        (Process(), {"steps": ("a", "b"), "step_labels": (1.0, 2.0)}, "the label of step 2 is 2.0"),
        (Process(), {"steps": ("a",), "step_labels": (NAN,)}, "the label of step 1 is nan"),
        (
            Process(),
            {"completion": "abc", "steps": ("a", "b"), "step_labels": (1.0, 1.0)},
            "2 characters that are not the 3",
        ),
        (Verifying(), {"right": 1.0}, "`completion` is not there"),
        (Verifying(), {"completion": "a"}, "`right` is None"),
        (Verifying(), {"completion": "a", "right": 1.5}, "`right` is 1.5"),
    ],
)
def test_dialogues_that_teach_nothing_are_refused(objective, told, reason):
    with pytest.raises(UserError, match=reason):
        objective.encode(asked(**told), PLAIN, BYTES)


def test_two_steps_that_end_in_one_token_are_refused():
    merged = BPETokenizer(vocab_size=300)
    merged.train(["abcd abcd abcd"] * 9)
    with pytest.raises(UserError, match="steps 1 and 2 end in the same token"):
        Process().encode(asked(steps=("ab", "cd"), step_labels=(1.0, 1.0)), PLAIN, merged)


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (lambda: BradleyTerry(centring=-1.0), "centring is -1.0; it must be 0 or more"),
        (lambda: Process(language=-1.0), "language is -1.0; it must be 0 or more"),
        (lambda: Verifying(level="step"), "level is 'step'; it is one of token, solution"),
    ],
)
def test_slips_are_named(make, reason):
    with pytest.raises(UserError, match=reason):
        make()
