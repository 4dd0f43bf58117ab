"""What is collected: answers of small models, judged, and looked at once more."""

from functools import partial

import pytest
import torch
from bakeoff.errors import UserError
from bakeoff.interfaces import Collecting, Dialogue, Reward, Turn
from bakeoff.model import LanguageModel
from bakeoff.parts.attention.mixer import Attention
from bakeoff.parts.blocks.pre_norm import PreNorm
from bakeoff.parts.decoder import Decoder
from bakeoff.parts.feed_forwards.mlp import MLP
from bakeoff.parts.samplers import Greedy, Sample
from bakeoff.parts.tokenizers.byte import ByteTokenizer
from bakeoff_align.objectives.policy.expert_iteration import ExpertIteration
from bakeoff_align.objectives.policy.grpo import GRPO
from bakeoff_align.objectives.policy.ppo import PPO
from bakeoff_align.objectives.policy.rloo import RLOO
from bakeoff_align.templates import Plain
from bakeoff_griffin import RGLRU

from tests.plugins.bakeoff_align.policy.models_of_policy import chain

TOKENIZER = ByteTokenizer()
END, PAD, V = TOKENIZER.end, TOKENIZER.padding, TOKENIZER.vocab_size
LENGTH = 16


class Noted(Reward):
    """What `judge` says of a sample; keeps what it was asked."""

    def __init__(self, judge=lambda sample: float(len(sample.tokens))):
        self.judge, self.asked = judge, []

    def score(self, samples):
        self.asked += samples
        return [self.judge(sample) for sample in samples]


def table(*likely, other=0.0):
    """Logits of what comes after what: 30 for each `(before, after)`."""
    made = torch.full((V, V), other)
    for before, after in likely:
        made[_id(before), _id(after)] = 30.0
    return made


def said(logits):
    """Log-probabilities among what may be drawn: all but padding and mask."""
    never = torch.zeros(V, dtype=logits.dtype)
    never[[PAD, TOKENIZER.mask]] = -torch.inf
    return (logits + never).log_softmax(-1)


def _id(token):
    return ord(token) if isinstance(token, str) else token


def asking(*prompts, sampler=None, seed=0, length=LENGTH):
    """Dialogues, and with what answers are collected; prompts are read as they stand."""
    template = Plain(separator="")
    told = Collecting(TOKENIZER, template, sampler or Sample(), length=length, seed=seed)
    return [Dialogue(prompt=(Turn("user", prompt),)) for prompt in prompts], told


def test_an_answer_ends_with_its_end_and_what_follows_is_padding():
    # "a" is answered b and the end, after which the model would go on; "x" is answered until there is no more room
    model = chain(table(("a", "b"), ("b", END), (END, "c"), ("x", "y"), ("y", "y"), (PAD, "c")), max_length=LENGTH)
    reward = Noted()
    rows = GRPO(reward=reward, max_new_tokens=4, group=2).collect(model, *asking("a", "__x"))
    a, b, x, y, u = map(ord, "abxy_")
    L = LENGTH + 1
    assert (
        rows["tokens"].tolist() == [[a, b, END] + [PAD] * (L - 3)] * 2 + [[u, u, x, y, y, y, y] + [PAD] * (L - 7)] * 2
    )
    assert rows["weights"].tolist() == [[0, 1, 1] + [0] * (L - 3)] * 2 + [[0, 0, 0, 1, 1, 1, 1] + [0] * (L - 7)] * 2
    assert rows["real"].sum(1).tolist() == [3, 3, 7, 7]
    assert rows["length"].tolist() == [2, 2, 4, 4]
    assert [(s.text, s.tokens, s.reason) for s in reward.asked[1:3]] == [
        ("b", [b, END], "end"),
        ("yyyy", [y] * 4, "length"),
    ]
    assert [(s.prompt, s.dialogue.prompt[0].text) for s in reward.asked[1:3]] == [([a], "a"), ([u, u, x], "__x")]
    assert rows["reward"].tolist() == [2, 2, 4, 4]


def test_log_probabilities_stand_at_their_tokens_and_are_the_models_own():
    torch.manual_seed(0)
    logits = torch.randn(V, V).double()
    model = chain(logits)
    rows = GRPO(reward=Noted(), max_new_tokens=5, group=3).collect(model, *asking("ab", "c"))
    log_p, tokens = said(logits), rows["tokens"]
    wanted = torch.zeros_like(rows["old"])
    wanted[:, 1:] = log_p[tokens[:, :-1], tokens[:, 1:]]
    wanted = torch.where(rows["weights"] > 0, wanted, 0)
    torch.testing.assert_close(rows["old"], wanted, atol=1e-12, rtol=0)
    assert float(rows["gap"].max()) < 1e-5  # sampling notes float32 numbers
    assert rows["length"].sum() > 6  # else nothing was drawn


@pytest.mark.parametrize("pattern", [["attention"], ["recurrent"], ["recurrent", "attention"]])
def test_any_backbone_reads_its_answers_as_it_drew_them(pattern):
    blocks = {
        "attention": partial(PreNorm, mixer=partial(Attention, n_heads=2), feed_forward=MLP),
        "recurrent": partial(PreNorm, mixer=RGLRU, feed_forward=MLP),
    }
    backbone = partial(Decoder, depth=2, pattern=pattern, blocks={name: blocks[name] for name in pattern})
    model = LanguageModel(d_model=16, vocab_size=V, max_length=LENGTH, backbone=backbone).initialise(0)
    objective = PPO(reward=Noted(), max_new_tokens=8, group=4)
    objective.attach(model, 0)
    rows = objective.collect(model, *asking("ab", "c", "defgh"))
    rows |= objective.credit(rows)
    assert float(rows["gap"].max()) < 1e-4
    _, statistics = objective(model, rows)
    total, weight = statistics["mean.ratio"].tolist()
    assert total / weight == pytest.approx(1, abs=1e-5)
    assert statistics["mean.kl"][0].item() == 0


def test_a_model_that_decodes_otherwise_than_it_reads_shows_in_the_gap():
    torch.manual_seed(0)
    logits = torch.randn(V, V).double()
    model = chain(logits)
    plain = model.backbone.forward

    def warmer(sequence, state=None):
        result = plain(sequence, state)
        return result if state is None else result._replace(y=0.5 * result.y)

    model.backbone.forward = warmer
    rows = GRPO(reward=Noted(), max_new_tokens=5, group=3, beta=0.0).collect(model, *asking("ab", "c"))
    before, after = rows["tokens"][:, :-1], rows["tokens"][:, 1:]
    apart = (said(logits)[before, after] - said(0.5 * logits)[before, after]).abs()
    wanted = torch.where(rows["weights"][:, 1:] > 0, apart, 0).sum(1)
    torch.testing.assert_close(rows["gap"], wanted, atol=1e-4, rtol=0)
    assert float(wanted.min()) > 0.1


def test_what_is_drawn_is_a_function_of_the_seed_and_leaves_the_model_as_it_was():
    torch.manual_seed(0)
    model = chain(torch.randn(V, V))
    model.train()
    model.head.eval()
    objective = GRPO(reward=Noted(), max_new_tokens=5, group=3, beta=0.0)
    first, again, other = (objective.collect(model, *asking("a", "b", seed=seed)) for seed in (1, 1, 2))
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert not torch.equal(first["tokens"], other["tokens"])
    assert (model.training, model.backbone.training, model.head.training) == (True, True, False)
    assert not any(tensor.requires_grad or tensor.is_inference() for tensor in first.values())


def test_a_reference_is_the_model_as_it_was_attached():
    torch.manual_seed(0)
    logits = torch.randn(V, V).double()
    model = chain(logits)
    objective = RLOO(reward=Noted(), max_new_tokens=5, group=3)
    objective.attach(model, 0)
    rows = objective.collect(model, *asking("a"))
    assert torch.equal(rows["reference"], rows["old"])
    with torch.no_grad():
        model.head.projection.weight.mul_(2)
    rows = objective.collect(model, *asking("a"))
    before, after = rows["tokens"][:, :-1], rows["tokens"][:, 1:]
    wanted = torch.where(rows["weights"][:, 1:] > 0, said(logits)[before, after], 0)
    torch.testing.assert_close(rows["reference"][:, 1:], wanted, atol=1e-12, rtol=0)
    assert not torch.allclose(rows["reference"], rows["old"])


@pytest.mark.parametrize(
    "objective", [PPO, RLOO, partial(GRPO, kl="reward"), GRPO], ids=["ppo", "rloo", "reward", "loss"]
)
def test_what_is_never_drawn_is_no_part_of_the_policy(objective):
    """A policy that thinks much of padding says all else less often than its logits alone tell: if the KL were taken of
    the whole vocabulary, it would earn more and more by thinking more of padding."""
    torch.manual_seed(0)
    logits = torch.randn(V, V).double()
    made = objective(reward=Noted(lambda sample: sum(sample.tokens) % 7), max_new_tokens=5, group=4, beta=0.5)
    model = chain(logits)
    made.attach(model, 0)
    with torch.no_grad():
        model.head.projection.weight[[PAD, TOKENIZER.mask]] += 20.0
    rows = made.collect(model, *asking("ab", "c"))
    assert torch.equal(rows["old"], rows["reference"])
    assert float(rows["gap"].max()) < 1e-5
    terms, statistics = made(model, rows | made.credit(rows))
    assert statistics["mean.kl"][0].item() == 0
    sum(total for total, _ in terms.values()).backward()
    slope = model.head.projection.weight.grad
    assert not slope[[PAD, TOKENIZER.mask]].any()
    assert slope.any()


def test_an_empty_prompt_begins_where_a_document_does():
    model = chain(table((END, "b"), ("b", END)))
    rows = GRPO(reward=Noted(), max_new_tokens=3, group=2).collect(model, *asking(""))
    assert rows["tokens"][:, :3].tolist() == [[END, ord("b"), END]] * 2
    assert rows["weights"].sum(1).tolist() == [2, 2]


@pytest.mark.parametrize("prompt", ["a" * 13, "a" * 40])
def test_a_prompt_that_leaves_no_room_for_an_answer_is_refused_with_the_numbers(prompt):
    model = chain(torch.zeros(V, V), max_length=LENGTH)
    objective = GRPO(reward=Noted(), max_new_tokens=4, group=2)
    words = f"prompt 1 has {len(prompt)} tokens, and with data.length 16 and max_new_tokens 4 a prompt has at most 12"
    with pytest.raises(UserError, match=words):
        objective.collect(model, *asking("a", prompt))
    assert len(objective.collect(model, *asking("a", "a" * 12))["tokens"]) == 4


@pytest.mark.parametrize(
    ("judge", "words"),
    [
        (lambda sample: float("nan"), "reward Noted is nan for the answer"),
        (lambda sample: 1 / 0, "reward Noted failed: ZeroDivisionError"),
    ],
)
def test_a_reward_that_gives_no_number_ends_the_collection(judge, words):
    model = chain(torch.zeros(V, V))
    objective = PPO(reward=Noted(judge), max_new_tokens=2, target_kl=1.0)
    objective.attach(model, 0)
    before = {name: tensor.clone() for name, tensor in objective.state_dict().items()}
    with pytest.raises(UserError, match=words):
        objective.collect(model, *asking("a"))
    assert all(torch.equal(before[name], tensor) for name, tensor in objective.state_dict().items())


@pytest.mark.parametrize("sampler", [Greedy(), Sample(temperature=0.7), Sample(top_p=0.9)])
def test_answers_of_another_distribution_are_refused_where_means_over_the_models_own_are_meant(sampler):
    for cls in (PPO, GRPO, RLOO):
        with pytest.raises(UserError, match=f"{cls.__name__} learns from answers as the model itself gives them"):
            cls(reward=Noted(), max_new_tokens=2, group=2).check_sampler(sampler)
    ExpertIteration(reward=Noted(), max_new_tokens=2, group=2).check_sampler(sampler)


def test_encoding_is_the_prompt_and_the_completion_that_there_is():
    objective, template = GRPO(reward=Noted(), max_new_tokens=2), Plain(separator="")
    prompt = (Turn("user", "ab"),)
    (row,) = objective.encode(Dialogue(prompt=prompt), template, TOKENIZER).rows
    assert (row.tokens, row.weights) == ([97, 98], [0.0, 0.0])
    (row,) = objective.encode(Dialogue(prompt=prompt, completion="c"), template, TOKENIZER).rows
    assert (row.tokens, row.weights) == ([97, 98, 99, END], [0.0, 0.0, 1.0, 1.0])
    logits = torch.randn(V, V, generator=torch.Generator().manual_seed(0)).double()
    batch = {"tokens": torch.tensor([row.tokens]), "weights": torch.tensor([row.weights]), "real": None}
    nats, targets, weights, _ = objective.token_losses(chain(logits), batch)
    log_p = logits.log_softmax(-1)
    wanted = torch.stack([torch.zeros(()).double(), -log_p[98, 99], -log_p[99, END]])
    torch.testing.assert_close(nats[0], wanted, atol=1e-12, rtol=0)
    assert (targets.tolist(), weights.tolist()) == ([[98, 99, END]], [[0, 1, 1]])


@pytest.mark.parametrize("cls", [PPO, GRPO, RLOO, ExpertIteration])
def test_the_models_answers_become_better(cls):
    """Of four likely answers one is right: from about 0.25 to above 0.7."""
    likely = [("a", after) for after in "bcde"]
    model = chain(table(*likely, *((after, END) for after in "bcde")).clamp(max=8.0)).float()
    reward = Noted(lambda sample: float(sample.text == "d"))
    given = {} if cls is ExpertIteration else {"beta": 0.01}
    objective = cls(reward=reward, max_new_tokens=3, group=8, passes=2, **given)
    objective.attach(model, 0)
    learnt = [*model.parameters(), *(p for p in objective.parameters() if p.requires_grad)]
    optimizer = torch.optim.Adam(learnt, lr=0.05)
    means = []
    for step in range(25):
        rows = objective.collect(model, *asking(*"aaaa", seed=step))
        rows |= objective.credit(rows)
        means.append(float(rows["reward"].mean()))
        for _ in range(objective.passes):
            optimizer.zero_grad()
            terms, _ = objective(model, rows)
            sum(total / weight.clamp(min=1) for total, weight in terms.values()).backward()
            optimizer.step()
    assert means[0] < 0.5
    assert means[-1] > 0.7


def test_what_a_collection_takes_is_shared_by_the_steps_that_it_lasts_for():
    given = {"reward": Noted(), "max_new_tokens": 4}
    # answers are drawn, and looked at by the model and by the reference
    assert GRPO(**given, beta=0.1).forwards() == 3
    assert GRPO(**given, beta=0.0).forwards() == 2
    assert PPO(**given, passes=4, beta=0.1).forwards() == 3 / 4
    assert ExpertIteration(**given, passes=2).forwards() == 1
