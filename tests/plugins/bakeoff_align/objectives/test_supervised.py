"""Fine-tuning against a Llama of `transformers`, against `causal`, and by hand."""

from __future__ import annotations

from typing import Any

import bakeoff
import pytest
import torch
from bakeoff.errors import UserError
from bakeoff.interfaces import Dialogue, Row, Template, Turn
from bakeoff.parts.causal import Causal
from bakeoff.parts.tokenizers.byte import ByteTokenizer
from bakeoff_align.objectives.supervised import SupervisedFineTuning
from bakeoff_align.templates import Chat, Plain
from torch.nn import functional as F

TOKENIZER = ByteTokenizer()
END, V = TOKENIZER.end, TOKENIZER.vocab_size
CHAT = Chat(openings={"user": "U:", "assistant": "A:"}, roles=[])
TURNS = (Turn("user", "ab"), Turn("assistant", "cde"), Turn("user", ""), Turn("assistant", ""), Turn("user", "f"))
MIXERS = [{"use": "attention", "n_heads": 4, "position": {"use": "rope"}}, {"use": "mamba2"}, {"use": "rg_lru"}]
DIALOGUES = [
    Dialogue(prompt=TURNS, completion="gh"),
    Dialogue(prompt=(Turn("user", "2+2"),), completion="4"),
    Dialogue(prompt=(), completion="hello"),
]


def rows(objective: SupervisedFineTuning, template: Template = CHAT) -> list[Row]:
    return [objective.encode(dialogue, template, TOKENIZER).rows[0] for dialogue in DIALOGUES]


def batch(laid: list[list[Row]], length: int) -> dict[str, Any]:
    """Rows of several dialogues each, padded to `length`."""
    shape = (len(laid), length)
    made = {"tokens": torch.full(shape, TOKENIZER.padding), "documents": torch.zeros(shape, dtype=torch.long)}
    weights, real = torch.zeros(shape), torch.zeros(shape, dtype=torch.bool)
    for number, together in enumerate(laid):
        start = 0
        for document, row in enumerate(together):
            place = slice(start, start + len(row.tokens))
            made["tokens"][number, place] = torch.tensor(row.tokens)
            made["documents"][number, start:] = document
            weights[number, place], real[number, place] = torch.tensor(row.weights), True
            start = place.stop
    return {**made, "weights": weights, "real": real}


def small(mixer: dict[str, Any] | None = None) -> Any:
    """A small Llama, or one with another mixer, and what brings weights to the names of a Llama."""
    mixer = mixer or MIXERS[0]
    recipe = bakeoff.recipe("bakeoff:models/llama_7b.yaml").override(
        {
            "model.d_model": 32, "model.depth": 2, "model.vocab_size": V, "model.blocks.layer.mixer": mixer,
            "model.blocks.layer.feed_forward.width": 40,
        }
    )  # fmt: skip
    return recipe.build("model", vocab_size=V, max_length=64).initialise(0).double(), recipe.build("converter")


def gradients(total: torch.Tensor, model: torch.nn.Module) -> dict[str, torch.Tensor]:
    named = dict(model.named_parameters())
    return dict(zip(named, torch.autograd.grad(total, list(named.values())), strict=True))


def test_every_turn_of_the_assistant_is_a_target_or_the_last_alone() -> None:
    text = [*b"U:ab", END, *b"A:cde", END, *b"U:", END, *b"A:", END, *b"U:f", END, *b"A:gh", END]
    everything = [0] * 5 + [0, 0, 1, 1, 1, 1] + [0] * 3 + [0, 0, 1] + [0] * 4 + [0, 0, 1, 1, 1]
    found = SupervisedFineTuning().encode(DIALOGUES[0], CHAT, TOKENIZER).rows
    assert found == [Row(text, list(map(float, everything)))]
    found = SupervisedFineTuning(train_on="last").encode(DIALOGUES[0], CHAT, TOKENIZER).rows
    assert found == [Row(text, [0.0] * (len(text) - 3) + [1.0] * 3)]


def test_a_dialogue_without_completion_and_another_choice_are_refused() -> None:
    with pytest.raises(UserError, match="it has no completion"):
        SupervisedFineTuning().encode(Dialogue(prompt=TURNS), CHAT, TOKENIZER)
    with pytest.raises(UserError, match=r"train_on is 'first'; it is one of all, last"):
        SupervisedFineTuning(train_on="first")


@pytest.mark.parametrize("options", [{}, {"z_loss": 1e-3, "label_smoothing": 0.1}])
def test_what_is_all_target_costs_what_it_costs_causal_bit_for_bit(options: dict[str, float]) -> None:
    model, _ = small()
    dialogues = [Dialogue(prompt=(), completion=text) for text in ("some words", "and others", "and more")]
    objective = SupervisedFineTuning(**options)
    told = [objective.encode(dialogue, Plain(), TOKENIZER).rows[0] for dialogue in dialogues]
    given = batch([told[:2], told[2:]], 24)
    (terms, statistics), (expected, causal) = (each(model, given) for each in (objective, Causal(**options)))
    assert terms.keys() == expected.keys() == {"loss"}
    for one, other in [*zip(terms["loss"], expected["loss"], strict=True), (statistics["nats"], causal["nats"])]:
        assert torch.equal(one, other)
    found, correct = (gradients(each["loss"][0], model) for each in (terms, expected))
    assert all(torch.equal(found[name], correct[name]) for name in correct)


def test_loss_and_gradients_are_those_of_a_llama_with_labels_of_minus_100() -> None:
    transformers = pytest.importorskip("transformers")
    config = transformers.LlamaConfig(
        hidden_size=32, intermediate_size=40, num_hidden_layers=2, num_attention_heads=4, vocab_size=V,
        max_position_embeddings=64, tie_word_embeddings=False, attn_implementation="sdpa", rms_norm_eps=1e-6,
    )  # fmt: skip
    torch.manual_seed(0)
    theirs = transformers.LlamaForCausalLM(config).double()
    model, converter = small()
    model.load_state_dict(converter.to_ours(theirs.state_dict(), model))
    told = rows(SupervisedFineTuning())
    total = torch.zeros((), dtype=torch.float64)
    for row in told:  # each alone
        tokens = torch.tensor([row.tokens])
        labels = torch.where(torch.tensor([row.weights]) > 0, tokens, -100)
        labels[:, 0] = -100  # what nothing stands before is no target
        total = total + theirs(tokens, labels=labels).loss * (labels != -100).sum()
    terms, statistics = SupervisedFineTuning()(model, batch([told[:2], told[2:]], 60))
    assert terms["loss"][1] == statistics["tokens"] == sum(sum(row.weights) for row in told) == 16
    torch.testing.assert_close(terms["loss"][0], total, rtol=1e-6, atol=0)
    found, correct = gradients(terms["loss"][0], model), gradients(total, theirs)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            parameter.copy_(found[name])
    for name, gradient in converter.to_theirs(model).items():
        torch.testing.assert_close(gradient, correct[name], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("mixer", MIXERS, ids=lambda mixer: mixer["use"])
def test_packed_dialogues_cost_what_each_costs_alone(mixer: dict[str, Any]) -> None:
    model, _ = small(mixer)
    objective = SupervisedFineTuning(train_on="last")
    told = rows(objective)
    alone = [objective(model, batch([[row]], len(row.tokens)))[0]["loss"] for row in told]
    together, _ = objective(model, batch([told], 60))
    assert float(together["loss"][1]) == sum(float(weight) for _, weight in alone) == 11
    total = torch.stack([each for each, _ in alone]).sum()
    torch.testing.assert_close(together["loss"][0], total, rtol=1e-9, atol=0)
    found, correct = gradients(together["loss"][0], model), gradients(total, model)
    for name in correct:
        torch.testing.assert_close(found[name], correct[name], rtol=1e-6, atol=1e-9)


def test_the_first_token_of_a_dialogue_is_predicted_from_no_other_dialogue() -> None:
    model, _ = small()
    objective = SupervisedFineTuning()
    told = [objective.encode(Dialogue(prompt=(), completion=text), Plain(), TOKENIZER).rows[0] for text in ("ab", "cd")]
    losses = objective.token_losses(model, batch([told], 8))
    assert losses.targets.tolist() == [[ord("b"), END, ord("c"), ord("d"), END, TOKENIZER.padding, TOKENIZER.padding]]
    assert losses.weights.tolist() == [[1, 1, 0, 1, 1, 0, 0]]
    _, statistics = objective(model, batch([told], 8))
    logits, _ = model.logits(torch.tensor([[*b"ab"]]))
    nats = F.cross_entropy(logits[0], torch.tensor([ord("b"), END]), reduction="none")
    torch.testing.assert_close(losses.nats[0, :2], nats)
    torch.testing.assert_close((losses.nats * losses.weights).sum(), statistics["nats"])
