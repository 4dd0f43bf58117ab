"""The generation loop, on a model that says what it is told to, and on small real ones."""

from __future__ import annotations

from typing import Any, NamedTuple

import pytest
import torch
from bakeoff.errors import CapabilityError, UserError
from bakeoff.interfaces import Backbone, Capabilities, Head, LayerContext, Past, Result, Sequence, SequenceMixer
from bakeoff.model import LanguageModel
from bakeoff.model.generate import complete, generate
from bakeoff.model.reply import Reply
from bakeoff.parts.blocks.pre_norm import PreNorm
from bakeoff.parts.decoder import Decoder
from bakeoff.parts.feed_forwards.mlp import MLP
from bakeoff.parts.samplers import Sample
from bakeoff.parts.tokenizers.byte import ByteTokenizer
from torch import Tensor, nn

TOKENIZER = ByteTokenizer()
END, PAD, V = TOKENIZER.end, TOKENIZER.padding, TOKENIZER.vocab_size


class ScriptState(NamedTuple):
    row: Tensor
    step: Tensor
    past: Past


class Script(Backbone):
    """Row i says script[i], id by id; notes what it is fed."""

    capabilities = Capabilities(padding=True, state=True)

    def __init__(self, context: LayerContext, script: list[list[int]]):
        super().__init__(context)
        self.embed = nn.Embedding(context.vocab_size, context.d_model)
        self.script, self.fed = script, []

    embedding = property(lambda self: self.embed.weight)
    layers = property(lambda self: nn.ModuleList())

    def empty_state(self, batch: int, max_length: int, dtype: Any = None, device: Any = None) -> ScriptState:
        return ScriptState(torch.arange(batch), torch.zeros(batch, dtype=torch.long), Past(batch, max_length))

    def forward(self, sequence: Sequence, state: Any = None) -> Result:
        self.fed.append((state.row.tolist(), sequence.tokens.tolist(), self.training))
        said = [self.script[i][min(s, len(self.script[i]) - 1)] for i, s in zip(state.row, state.step, strict=True)]
        y = torch.tensor(said, dtype=torch.float32)[:, None, None].expand(-1, sequence.length, 1)
        return Result(y, ScriptState(state.row, state.step + 1, state.past.advance(sequence)))


class Says(Head):
    """Logits 20 for the id that the backbone names, else 0."""

    def forward(self, hidden: Tensor, *_: Any, **__: Any) -> Tensor:  # type: ignore[override]
        return 20 * nn.functional.one_hot(hidden[..., 0].long(), V).float()


def scripted(*script: list[int], max_length: int = 64) -> LanguageModel:
    return LanguageModel(
        d_model=1,
        vocab_size=V,
        max_length=max_length,
        backbone=lambda context: Script(context, list(script)),
        head=Says,
        tied_embedding=False,
    )


def test_each_row_ends_at_its_own_end_and_the_loop_when_all_have():
    model = scripted([65, END, 90, 90], [66, 67, 68, END])
    found = complete(model, TOKENIZER, ["x", "y"], max_new_tokens=20, log_probabilities=True)
    assert [c.tokens for c in found] == [[65, END], [66, 67, 68, END]]
    assert [c.text for c in found] == ["A", "BCD"]
    assert [c.reason for c in found] == ["end", "end"]
    assert [len(c.log_probabilities) for c in found] == [2, 4]
    # of 20 against 256 zeros: padding and mask are never drawn
    assert found[0].log_probabilities == pytest.approx(
        [20 - torch.tensor(20.0).exp().add(V - 3).log().item()] * 2, abs=1e-6
    )
    assert len(model.backbone.fed) == 4  # the prompts, and three steps: the last end is not taken in


def fed(model: LanguageModel) -> list[tuple[list[int], list[int]]]:
    """Rows of the prompts, and the last id that each took, of every call."""
    return [(rows, [row[-1] for row in tokens]) for rows, tokens, _ in model.backbone.fed]


def test_rows_that_have_ended_take_padding_until_that_was_as_much_work_as_dropping_them():
    model = scripted([65, END], [66, 66, 66, 66, END], [67, 67, 67, 67, END], max_length=8)
    complete(model, TOKENIZER, ["x", "y", "z"])
    assert fed(model)[1:] == [
        ([0, 1, 2], [65, 66, 67]),
        ([0, 1, 2], [PAD, 66, 67]),  # one step of one row that has ended, and two would be copied
        ([1, 2], [66, 67]),
        ([1, 2], [66, 67]),
    ]
    model = scripted([65, END], [66, 66, 66, END])
    complete(model, TOKENIZER, ["x", "y"], max_new_tokens=20)
    assert [rows for rows, _ in fed(model)] == [[0, 1], [0, 1], [1], [1]]


def test_a_row_that_ends_first_neither_ends_the_others_nor_goes_on():
    """Trap of batched generation: the first end stops all, or finished rows go on sampling."""
    model = scripted([END, 90, 90, 90], [66, 10, 90, 90], [END, 90, 90, 90], [67, 68, END, 90], [69, 68, 67, 66, 65])
    found = complete(model, TOKENIZER, [[END, 65, END]] * 4, max_new_tokens=20, end=[END, 10], log_probabilities=True)
    assert [(c.tokens, c.reason) for c in found] == [
        ([END], "end"),
        ([66, 10], "end"),
        ([END], "end"),
        ([67, 68, END], "end"),
    ]
    assert [c.text for c in found] == ["", "B", "", "CD"]
    assert [len(c.log_probabilities) for c in found] == [1, 2, 1, 3]
    assert fed(model) == [([0, 1, 2, 3], [END] * 4), ([1, 3], [66, 67]), ([3], [68])]  # nothing after the last end


def test_an_end_inside_the_prompt_does_not_stop_and_other_ends_do():
    model = scripted([65, 10, 66, END])
    assert complete(model, TOKENIZER, [[END, 65, END]])[0].tokens == [65, 10, 66, END]
    assert complete(model, TOKENIZER, ["x"], end=[END, 10])[0].tokens == [65, 10]


def test_max_new_tokens_ends_a_row_and_nothing_is_run_after_the_last():
    model = scripted([65])
    (found,) = complete(model, TOKENIZER, ["x"], max_new_tokens=3)
    assert (found.text, found.reason, len(model.backbone.fed)) == ("AAA", "length", 3)
    assert len(complete(scripted([65], max_length=10), TOKENIZER, ["xyz"])[0].tokens) == 7


def test_a_row_may_go_on_until_its_own_prompt_and_answer_fill_the_model():
    model = scripted([65], [66], [67], max_length=10)
    found = complete(model, TOKENIZER, ["x" * 7, "x" * 9, "xx"])
    assert [(len(c.tokens), c.reason) for c in found] == [(3, "length"), (1, "length"), (8, "length")]
    # row 1 takes one id of padding; then it is full, and dropped whatever that costs
    assert [rows for rows, _ in fed(model)] == [[0, 1, 2], [0, 1, 2], [0, 2], [2], [2], [2], [2], [2]]
    found = complete(scripted([65], [66], max_length=10), TOKENIZER, ["x" * 8, "xx"], max_new_tokens=4)
    assert [len(c.tokens) for c in found] == [2, 4]
    found = complete(scripted([65], [66, END], max_length=10), TOKENIZER, ["xx", "x" * 8])
    assert [(len(c.tokens), c.reason) for c in found] == [(8, "length"), (2, "end")]


def test_copies_of_a_prompt_stand_beside_each_other_and_it_is_read_once():
    model = scripted([65, END], [66, 67, 67, END])
    heard: list[tuple[int, str]] = []
    found = complete(model, TOKENIZER, ["x", "yz"], copies=3, stream=lambda row, piece: heard.append((row, piece)))
    assert [c.text for c in found] == ["A"] * 3 + ["BCC"] * 3
    assert [(rows, len(tokens[0])) for rows, tokens, _ in model.backbone.fed] == [
        ([0, 1], 2),
        ([0, 0, 0, 1, 1, 1], 1),
        ([1, 1, 1], 1),
        ([1, 1, 1], 1),
    ]
    assert [row for row, piece in heard if piece == "B"] == [3, 4, 5]


def test_an_empty_prompt_begins_after_an_end():
    model = scripted([65, END], [66, END])
    assert generate(model, TOKENIZER, ["", "ab"]) == ["A", "B"]
    assert model.backbone.fed[0][1] == [[PAD, END], [97, 98]]


def test_stop_strings_may_span_tokens_and_are_cut_off():
    text = list(b"one. two. three")
    (found,) = complete(scripted(text), TOKENIZER, "x", stop=[". th", "zzz"])
    assert (found.text, found.reason) == ("one. two", "stop")
    assert bytes(found.tokens) == b"one. two. th"
    assert generate(scripted(text), TOKENIZER, "x", stop="e") == ["on"]


def test_a_stop_string_in_the_prompt_or_across_its_end_does_not_stop():
    assert generate(scripted(list(b"bc"), max_length=6), TOKENIZER, "ab", stop=["ab"], max_new_tokens=2) == ["bc"]


def test_streamed_text_keeps_whole_characters_and_hides_stop_strings():
    heard: list[tuple[int, str]] = []
    script = [*"€é🤗".encode(), *b" a##b###c"]
    (text,) = generate(
        scripted(script), TOKENIZER, "x", stop="###", stream=lambda row, piece: heard.append((row, piece))
    )
    assert text == "€é🤗 a##b"
    assert [piece for _, piece in heard] == ["€", "é", "🤗", " ", "a", "##b"]


def test_what_is_held_back_comes_at_the_end():
    heard: list[str] = []
    (text,) = generate(
        scripted(list(b"ab##")), TOKENIZER, "x", stop="###", max_new_tokens=4, stream=lambda _, s: heard.append(s)
    )
    assert text == "".join(heard) == "ab##"
    cut = list("é".encode())[:1]
    assert generate(scripted(cut), TOKENIZER, "x", max_new_tokens=1) == ["\ufffd"]


def test_the_first_of_several_stop_strings_wins():
    reply = Reply(TOKENIZER, ["bcd", "c"])
    assert "".join(reply.push(token) for token in b"abc") == "ab"
    assert reply.stopped


def test_padding_and_mask_are_never_chosen():
    assert complete(scripted([PAD]), TOKENIZER, "x", max_new_tokens=1)[0].tokens == [0]
    assert complete(scripted([TOKENIZER.mask]), TOKENIZER, "x", max_new_tokens=1)[0].tokens == [0]


def test_the_mode_of_every_module_is_restored_also_after_an_error():
    model = scripted([65])
    model.train()
    model.head.eval()

    def fail(row: int, text: str) -> None:
        raise RuntimeError("enough")

    with pytest.raises(RuntimeError, match="enough"):
        generate(model, TOKENIZER, "x", stream=fail)
    assert model.training
    assert model.backbone.training
    assert not model.head.training
    assert not any(training for _, _, training in model.backbone.fed)


@pytest.mark.parametrize(
    ("prompts", "options", "words"),
    [
        ("x" * 64, {}, "prompt 0 has 64 tokens; the model's max_length is 64, so a prompt has at most 63"),
        (["x", "x" * 70], {}, "prompt 1 has 70 tokens"),
        ("x" * 60, {"max_new_tokens": 5}, "max_new_tokens is 5; .*60 tokens .* 64 leaves room for 1 to 4"),
        ("x", {"max_new_tokens": 0}, "max_new_tokens is 0"),
        (["x" * 62, "x" * 60], {"max_new_tokens": 5}, "max_new_tokens is 5; .*60 tokens .* 64 leaves room for 1 to 4"),
        ("x", {"copies": 0}, "copies is 0; each prompt is answered at least once"),
        ([[1, V]], {}, f"prompt 0 holds id {V}; the tokenizer has ids 0 to {V - 1}"),
        ("x", {"stop": ["a", ""]}, "a stop string is empty"),
    ],
)
def test_what_does_not_fit_is_refused(prompts: Any, options: dict, words: str):
    with pytest.raises(UserError, match=words):
        generate(scripted([65]), TOKENIZER, prompts, **options)


def test_no_prompts_no_completions():
    assert complete(scripted([65]), TOKENIZER, []) == []


# --- models with parts ---------------------------------------------------------------------------------------------


class RunningMean(SequenceMixer):
    """The mean of all real tokens so far: the smallest mixer with a state."""

    capabilities = Capabilities(padding=True, state=True, constant_state=True)

    def forward(self, x: Tensor, sequence: Sequence, state: Any = None) -> Result:
        total, count = state or (x.new_zeros(x.shape[0], x.shape[-1]), x.new_zeros(x.shape[0]))
        real = torch.ones_like(sequence.tokens) if sequence.real is None else sequence.real
        sums = total[:, None] + (x * real[..., None]).cumsum(1)
        counts = count[:, None] + real.cumsum(1)
        return Result(sums / counts[..., None].clamp_min(1), None if state is None else (sums[:, -1], counts[:, -1]))

    def empty_state(self, batch: int, max_length: int, dtype: Any = None, device: Any = None) -> Any:
        return torch.zeros(batch, 16), torch.zeros(batch)

    def flops(self, queries: int, keys: int) -> int:
        return 0


class Stateless(SequenceMixer):
    def forward(self, x: Tensor, sequence: Sequence, state: Any = None) -> Result:
        return Result(x)


class NoPadding(RunningMean):
    capabilities = Capabilities(state=True)


def model_of(mixer: Any) -> LanguageModel:
    def block(context: LayerContext) -> PreNorm:
        return PreNorm(context, mixer=mixer, feed_forward=MLP)

    return LanguageModel(
        d_model=16,
        vocab_size=V,
        max_length=64,
        backbone=lambda context: Decoder(context, depth=2, pattern=["layer"], blocks={"layer": block}),
    ).initialise(seed=0)


PROMPTS = ["Friends", "of all countries", "a"]
WARM = Sample(temperature=2.0, repetition_penalty=1.2)


def test_greedy_equals_a_plain_forward_over_all_that_was_said():
    model = model_of(RunningMean)
    (found,) = complete(model, TOKENIZER, "Friends", max_new_tokens=16, log_probabilities=True)
    ids = TOKENIZER.encode("Friends") + found.tokens
    logits = model.logits(torch.tensor([ids]))[0][0, 6:-1].detach()
    logits[:, [PAD, TOKENIZER.mask]] = -torch.inf  # what is never drawn is no part of what is said
    wanted = logits.log_softmax(-1).gather(1, torch.tensor(found.tokens)[:, None])[:, 0]
    torch.testing.assert_close(torch.tensor(found.log_probabilities), wanted, atol=1e-5, rtol=0)
    assert logits.argmax(-1).tolist() == found.tokens


def test_a_row_in_a_batch_says_what_it_says_alone():
    model = model_of(RunningMean)
    together = complete(model, TOKENIZER, PROMPTS, max_new_tokens=12)
    alone = [complete(model, TOKENIZER, [prompt], max_new_tokens=12)[0] for prompt in PROMPTS]
    assert [c.tokens for c in together] == [c.tokens for c in alone]


def test_what_a_row_draws_depends_on_the_seed_and_its_number_only():
    model = model_of(RunningMean)
    options: dict[str, Any] = {"sampler": WARM, "max_new_tokens": 12}
    first = generate(model, TOKENIZER, PROMPTS, seed=1, **options)
    assert generate(model, TOKENIZER, [PROMPTS[0], "other", PROMPTS[2]], seed=1, **options)[::2] == first[::2]
    assert generate(model, TOKENIZER, PROMPTS[:1], seed=1, **options) == first[:1]
    assert generate(model, TOKENIZER, PROMPTS, seed=2, **options) != first
    twins = generate(model, TOKENIZER, ["same", "same"], seed=1, **options)
    assert twins[0] != twins[1]


def test_one_generation_leaves_nothing_behind_for_the_next():
    model = model_of(RunningMean)
    first = generate(model, TOKENIZER, PROMPTS[:1], max_new_tokens=8)
    generate(model, TOKENIZER, PROMPTS, max_new_tokens=8)
    assert generate(model, TOKENIZER, PROMPTS[:1], max_new_tokens=8) == first


def test_prefill_in_chunks_changes_nothing(monkeypatch: pytest.MonkeyPatch):
    model = model_of(RunningMean)
    whole = complete(model, TOKENIZER, PROMPTS, max_new_tokens=8)
    for most in (1, 9, 12):  # single tokens, three, and four a call
        monkeypatch.setattr("bakeoff.model.decoding.PREFILL_TOKENS", most)
        assert [c.tokens for c in complete(model, TOKENIZER, PROMPTS, max_new_tokens=8)] == [c.tokens for c in whole]


def test_parts_that_cannot_are_refused_by_name():
    with pytest.raises(CapabilityError, match="Stateless keeps no state"):
        generate(model_of(Stateless), TOKENIZER, "x", max_new_tokens=1)
    with pytest.raises(CapabilityError, match=r"NoPadding does not claim `padding`, .* 1 and 7 tokens"):
        generate(model_of(NoPadding), TOKENIZER, ["a", "Friends"])
    assert len(generate(model_of(NoPadding), TOKENIZER, ["ab", "cd"], max_new_tokens=2)) == 2
