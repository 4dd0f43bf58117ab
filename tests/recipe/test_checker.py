"""The strict walker: every slip is reported, with place and near miss; nothing is coerced but whole floats."""

import datetime
import enum
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import pytest
from bakeoff import register
from bakeoff.errors import RecipeError
from bakeoff.interfaces import FeedForward, LayerContext, Norm, Result, SequenceMixer
from bakeoff.recipe import recipe
from bakeoff.recipe.checker import Checker
from bakeoff.recipe.factory import make
from bakeoff.recipe.wanted import Wanted


class Colour(enum.Enum):
    red = 1


@dataclass
class Span:
    begin: int
    end: int = 9


class Base(SequenceMixer):
    def __init__(self, context, *, width: int = 4, rate: float = 0.5):
        super().__init__(context)
        self.width, self.rate = width, rate

    def forward(self, x, sequence, state=None):
        return Result(x, state)


@register("checked_mixer")
class Checked(Base):
    """Takes further arguments by `**kwargs`, which its base class names."""

    def __init__(
        self,
        context: LayerContext,
        *,
        mode: Literal["soft", "hard"] = "soft",
        flag: bool = False,
        sizes: list[int] | None = None,
        pair: tuple[float, float] = (0.0, 1.0),
        inner: Callable[[LayerContext], FeedForward] | None = None,
        many: dict[str, Callable[[LayerContext], Norm]] | None = None,
        either: int | list[str] = 1,
        path: Path | None = None,
        pause: datetime.timedelta | None = None,
        colour: Colour = Colour.red,
        span: Span | None = None,
        name: str = "",
        anything: Any = None,
        **kwargs: Any,
    ):
        super().__init__(context, **kwargs)
        self.given = dict(locals())


def checked(**arguments):
    checker = Checker()
    node = {"use": "checked_mixer", **arguments}
    value = checker.node(node, Wanted(SequenceMixer, 1), "mixer")
    return checker, value


def only_slip(**arguments):
    checker, _ = checked(**arguments)
    assert len(checker.slips) == 1, checker.slips
    return f"{checker.slips[0].path}: {checker.slips[0].message}"


@pytest.mark.parametrize(
    ("arguments", "kept"),
    [
        ({"width": 5e6}, 5_000_000),  # a whole float is a count
        ({"rate": 3}, 3.0),
        ({"flag": True}, True),
        ({"mode": "hard"}, "hard"),
        ({"sizes": [1, 2.0]}, [1, 2]),
        ({"sizes": None}, None),
        ({"either": 3}, 3),
        ({"either": ["a"]}, ["a"]),
        ({"pair": [1, 2]}, [1.0, 2.0]),
        ({"anything": {"free": [1, "x"]}}, {"free": [1, "x"]}),
    ],
)
def test_values_that_fit(arguments, kept):
    checker, value = checked(**arguments)
    assert checker.slips == []
    found = next(value[name] for name in arguments)
    assert found == kept
    assert type(found) is type(kept)


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        ({"width": "4"}, "mixer.width: takes a whole number, not '4' (text)"),
        ({"width": 12.5}, "mixer.width: takes a whole number, not 12.5"),
        ({"width": True}, "mixer.width: takes a whole number, not true"),
        ({"width": None}, "mixer.width: takes a whole number, not null"),
        ({"width": [4]}, "mixer.width: takes a whole number, not a list of 1"),
        ({"width": {"a": 4}}, "mixer.width: takes a whole number, not a mapping of a"),
        ({"width": "???"}, "mixer.width: is left open (???): it takes a whole number"),
        ({"rate": "3e-4"}, "mixer.rate: takes a number, not '3e-4' (text)"),
        ({"flag": "yes"}, "mixer.flag: takes true or false, not 'yes' (text)"),
        ({"flag": 1}, "mixer.flag: takes true or false, not 1"),
        ({"name": 3}, "mixer.name: takes text, not 3"),
        ({"mode": "hrd"}, "mixer.mode: takes one of 'soft', 'hard', not 'hrd' (text); did you mean 'hard'?"),
        ({"sizes": 3}, "mixer.sizes: takes a list of a whole number or null, not 3"),
        ({"sizes": [1, "2"]}, "mixer.sizes.1: takes a whole number, not '2' (text)"),
        ({"pair": [1]}, "mixer.pair: takes 2 values, not 1"),
        ({"either": "a"}, "mixer.either: takes a whole number or a list of text, not 'a' (text)"),
        ({"wdith": 3}, "mixer.wdith: checked_mixer has no argument 'wdith'; did you mean 'width'?"),
        ({"context": 3}, "mixer.context: checked_mixer has no argument 'context'"),
        ({"inner": {"use": "rms_norm"}}, "mixer.inner.use: 'rms_norm' is a norm, not a feed_forward"),
        ({"inner": "mlp"}, "mixer.inner: takes a feed forward, {use: NAME, …} or null, not 'mlp' (text)"),
        (
            {"inner": {"width": 3}},
            "mixer.inner: names no class: `use` is missing (it has width); it takes clamped_glu, ",
        ),
        ({"inner": {"use": "mpl"}}, "mixer.inner.use: no feed_forward is called 'mpl'; did you mean 'mlp'"),
        ({"inner": {"use": "torch.nn.Linear"}}, "mixer.inner.use: torch.nn.Linear is no FeedForward"),
        ({"inner": {"use": "no.such.Class"}}, "mixer.inner.use: no.such.Class cannot be imported"),
        ({"inner": {"use": "os.path.join"}}, "mixer.inner.use: os.path.join is no class"),
        (
            {"inner": {"use": "mlp", "widht": 3}},
            "mixer.inner.widht: mlp has no argument 'widht'; did you mean 'width'?",
        ),
        ({"many": {"a": {"use": "rms_norm", "epps": 1}}}, "mixer.many.a.epps: rms_norm has no argument 'epps'"),
        ({"many": [1]}, "mixer.many: takes a mapping of names to a norm, {use: NAME, …} or null, not a list of 1"),
        ({"span": {"end": 3}}, "mixer.span: span needs 'begin': a whole number"),
        ({"span": {"begin": 1, "ned": 3}}, "mixer.span.ned: span has no argument 'ned'; did you mean 'end'?"),
        ({"pause": "soon"}, "mixer.pause: takes timedelta or null, not 'soon' (text)"),
        ({"colour": "blue"}, "mixer.colour: takes Colour, not 'blue' (text)"),
    ],
)
def test_slips(arguments, said):
    assert only_slip(**arguments).startswith(said)


def test_several_slips_come_at_once():
    checker, _ = checked(widht=1, rate="x", flag=3, sizes=[1, "b", "c"])
    assert [slip.path for slip in checker.slips] == [
        "mixer.widht", "mixer.flag", "mixer.sizes.1", "mixer.sizes.2", "mixer.rate",
    ]  # fmt: skip


def test_what_python_takes_is_made_of_what_yaml_holds():
    given = {
        "pair": [1, 2],
        "path": "some/where",
        "pause": "0:00:05",
        "colour": "red",
        "span": {"begin": 2},
        "inner": {"use": "mlp", "width": 8},
    }
    checker, value = checked(**given)
    assert checker.slips == []
    factory = make(value, "mixer", checker.makers)
    part = factory(LayerContext(d_model=4, vocab_size=8, max_length=8))
    assert part.given["pair"] == (1.0, 2.0)
    assert part.given["path"] == Path("some/where")
    assert part.given["pause"] == datetime.timedelta(seconds=5)
    assert part.given["colour"] is Colour.red
    assert part.given["span"] == Span(2, 9)
    inner = part.given["inner"]
    assert repr(inner) == "MLP(width=8)"
    assert inner(LayerContext(d_model=4, vocab_size=8, max_length=8)).width == 8


def test_each_layer_gets_lists_of_its_own():
    checker, value = checked(sizes=[1, 2])
    factory = make(value, "mixer", checker.makers)
    place = LayerContext(d_model=4, vocab_size=8, max_length=8)
    one, two = factory(place), factory(place)
    assert one.given["sizes"] == two.given["sizes"]
    assert one.given["sizes"] is not two.given["sizes"]


def test_defaults_are_filled_in():
    checker = Checker(fill=True)
    value = checker.node({"use": "checked_mixer"}, Wanted(SequenceMixer, 1), "mixer")
    assert checker.slips == []
    assert value["width"] == 4
    assert value["pair"] == [0.0, 1.0]
    assert value["inner"] is None


def test_a_name_of_another_kind_is_told_by_its_kind(small):
    with pytest.raises(
        RecipeError, match=r"model\.blocks\.layer\.mixer\.use \(override\): 'mlp' is a feed_forward, not a mixer"
    ):
        recipe(small, ["model.blocks.layer.mixer.use=mlp"]).check()


BAD = """\
model:
  d_model: 12.5
  depth: "4"
  dropuot: 0.1
  pattern: [layr]
  blocks:
    layer:
      use: pre_norm
      mixer:
        use: attention
        n_haeds: 4
      feed_forward: {use: rms_norm}
data:
  corpus: {use: sotu}
  tokenizer: byte
  lenght: 64
  batch_tokens: [1024]
trainer: {max_steps: abc, precison: x, max_epochs: 3}
optimizer: {class_path: torch.optim.AdamW, init_args: {lr: 3e-3, lamda: 3}}
objektive: {use: causal}
max_steps: 3
n_heads: 3
schedule: {use: cosin}
"""


def test_all_slips_of_a_recipe_with_file_line_and_near_miss(write, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    write("bad.yaml", BAD)
    with pytest.raises(RecipeError) as error:
        recipe("bad.yaml").check()
    said = str(error.value)
    for line in (
        "bad.yaml has 19 slips:",
        "model.blocks.layer.mixer.n_haeds (bad.yaml:11): attention has no argument 'n_haeds'; did you mean 'n_heads'?",
        "model.blocks.layer.mixer (bad.yaml:9): attention needs 'n_heads': a whole number",
        "model.blocks.layer.feed_forward.use (bad.yaml:12): 'rms_norm' is a norm, not a feed_forward",
        "model.pattern.0 (bad.yaml:5): no block is called 'layr'; blocks has layer; did you mean 'layer'?",
        "model.depth (bad.yaml:3): takes a whole number, not '4' (text)",
        "model.d_model (bad.yaml:2): takes a whole number, not 12.5",
        "model.dropuot (bad.yaml:4): model (decoder) has no argument 'dropuot'; did you mean 'dropout'?",
        "data.lenght (bad.yaml:16): data has no argument 'lenght'; did you mean 'length'?",
        "data (bad.yaml:13): data needs 'length': a whole number",
        "data.tokenizer (bad.yaml:15): takes a tokenizer, {use: NAME, …}; write {use: byte}",
        "data.batch_tokens (bad.yaml:17): takes a whole number, not a list of 1",
        "trainer.max_steps (bad.yaml:18): takes a whole number, not 'abc' (text)",
        "trainer.precison (bad.yaml:18): trainer has no argument 'precison'; did you mean 'precision'?",
        "trainer.max_epochs (bad.yaml:18): 'max_epochs' is not set in a recipe: a run is counted in steps:",
        "optimizer.lamda (bad.yaml:19): torch.optim.AdamW has no argument 'lamda'",
        "objektive (bad.yaml:20): a recipe has no section 'objektive'; did you mean 'objective'?",
        "max_steps (bad.yaml:21): a recipe has no section 'max_steps'; did you mean 'trainer.max_steps'?",
        "n_heads (bad.yaml:22): a recipe has no section 'n_heads'; did you mean 'model.blocks.layer.mixer.n_heads'?",
        "schedule.use (bad.yaml:23): no schedule is called 'cosin'; did you mean 'cosine'?",
    ):
        assert line in said


def test_patterns(extended):
    made = extended("model: {pattern: {first: [layer], repeat: [layer]}}\n").check()
    assert made.tree["model"]["pattern"] == {"first": ["layer"], "repeat": ["layer"]}
    with pytest.raises(RecipeError, match=r"model\.pattern\.frist .*it has first and repeat; did you mean 'first'"):
        extended("model: {pattern: {frist: [layer], repeat: [layer]}}\n").check()
    with pytest.raises(RecipeError, match=r"model\.pattern\.repeat\.1 .*no block is called 'lay'"):
        extended("model: {pattern: {repeat: [layer, lay]}}\n").check()


@pytest.mark.parametrize(
    ("section", "said"),
    [
        ("model: null", "model (.*): takes a mapping"),
        ("model: [1]", "model (.*): takes a mapping"),
        ("data: 3", "data (.*): takes a mapping"),
        ("trainer: null", "trainer (.*): takes a mapping"),
        ("objective: causal", r"write {use: causal}"),
        ("optimizer: {use: AdamW}", "optimizer.use"),
        ("optimizer: {use: torch.nn.Linear}", "torch.nn.Linear is no Optimizer"),
        ("seed: x", "seed (.*): takes a whole number"),
        ("seed: {datta: 3}", "seed.datta (.*): seed has no argument 'datta'; did you mean 'data'"),
        ("compile: 1", "compile (.*): takes true or false"),
        ("validation: {every_steps: 0}", "validation.every_steps (.*): is 0; it must be at least 1"),
        ("checkpoint: {kep: 1}", "did you mean 'keep'"),
        ("name: 3", "name (.*): takes text"),
        (
            "model: {backbone: 3}",
            "model (decoder) has no argument 'backbone'".replace("(", r"\(").replace(")", r"\)"),
        ),
    ],
)
def test_sections(extended, section, said):
    with pytest.raises(RecipeError, match=said):
        extended(section + "\n").check()
