"""Truncated backpropagation through time: `trainer.stateful`."""

import functools
import os
import random
import signal

import bakeoff
import pytest
import torch
from bakeoff.errors import CapabilityError, RecipeError, UserError
from bakeoff.interfaces.objective import Objective
from bakeoff.model.carrying import Carried, begin
from bakeoff.parts.causal import Causal
from bakeoff.train import Interrupted, NotFinite, fit, lanes, load_run, resume
from bakeoff.train.module import TrainingModule
from torch import nn
from torch.nn import functional as F

MAMBA2 = {"use": "mamba2", "state_size": 8, "head_width": 8}
LOCAL = {"use": "attention", "n_heads": 2, "window": 6, "position": {"use": "rope"}}
MEMORY = {**LOCAL, "use": "memorizing_attention", "window": 2, "k": 2, "memory": 14}
MIXERS = pytest.mark.parametrize(
    "mixer", [{"use": "lstm"}, MAMBA2, LOCAL, MEMORY], ids=["lstm", "mamba2", "window", "memory"]
)


@pytest.fixture
def stateful(tiny):
    """`stateful(mixer, path=value, …)`: the tiny recipe with a recurrent mixer and states that go on."""

    def make(mixer=None, **overrides):
        mixer = mixer or {"use": "lstm"}
        return tiny(**{"model__blocks__layer__mixer": mixer, "trainer__stateful": True, **overrides})

    return make


@pytest.fixture
def network(stateful):
    """A model of one LSTM between embedding and readout, in float64."""
    made = stateful(model__depth=1, model__blocks__layer__feed_forward=None, model__blocks__layer__dropout=0.0)
    return made.build("model", vocab_size=259, max_length=16).initialise(0).double()


def by_hand(network, windows, lengths):
    """Gradients of the mean loss of the last window, by `torch.nn.LSTM`, with states detached between windows."""
    mixer, block = network.backbone.blocks[0].mixer, network.backbone.blocks[0]
    cell = nn.LSTM(mixer.width, mixer.width, batch_first=True).double()
    for name, layer in (("ih", mixer.input), ("hh", mixer.recurrent)):
        getattr(cell, f"weight_{name}_l0").data = layer.weight.detach().clone()
        getattr(cell, f"bias_{name}_l0").data = layer.bias.detach().clone()
    table, first, last = (
        tensor.detach().clone().requires_grad_()
        for tensor in (network.backbone.embedding, block.mixer_norm.weight, network.backbone.norm.weight)
    )
    state, loss = None, None
    for window, length in zip(windows, lengths, strict=True):
        x = table[window[:, :length]]
        mixed, state = cell(F.rms_norm(x, x.shape[-1:], first, block.mixer_norm.eps), state)
        y = F.rms_norm(x + mixed, x.shape[-1:], last, network.backbone.norm.eps)
        loss = F.cross_entropy((y @ table.t()).flatten(0, 1), window[:, 1 : length + 1].flatten())
        state = tuple(part.detach() for part in state)
    loss.backward()
    return table.grad, cell.weight_ih_l0.grad, cell.weight_hh_l0.grad, first.grad, last.grad


def by_us(network, windows):
    network.zero_grad()
    carried = Carried(network)
    for window in windows:
        network.zero_grad()
        terms, _ = carried.run(Causal(), {"tokens": window}, 0)
        total, weight = terms["loss"]
        (total / weight).backward()
        carried.commit()
    block = network.backbone.blocks[0]
    parameters = (
        network.backbone.embedding,
        block.mixer.input.weight,
        block.mixer.recurrent.weight,
        block.mixer_norm.weight,
        network.backbone.norm.weight,
    )
    return [parameter.grad for parameter in parameters]


def test_gradients_end_at_the_border_of_a_window(network):
    tokens = torch.randint(259, (3, 21), generator=torch.Generator().manual_seed(0))
    windows = [tokens[:, :11], tokens[:, 10:]]
    ours = by_us(network, windows)
    for mine, theirs in zip(ours, by_hand(network, windows, [10, 10]), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-9, atol=1e-12)
    forgetful = by_us(network, windows[1:])
    whole = by_hand(network, [tokens], [20])
    for mine, alone, longer in zip(ours, forgetful, whole, strict=True):
        assert not torch.allclose(mine, alone, rtol=1e-3)
        assert not torch.allclose(mine, longer, rtol=1e-3)


@MIXERS
def test_windows_that_go_on_cost_what_one_long_window_costs(stateful, mixer):
    goes_on(stateful(mixer))


def test_windows_of_several_widths_go_on_beside_a_recurrence(stateful):
    block = stateful().tree["model"]["blocks"]["layer"]
    blocks = {name: {**block, "mixer": mixer} for name, mixer in {"a": LOCAL, "b": {**LOCAL, "window": 3}}.items()}
    goes_on(stateful(model__blocks={"r": block, **blocks}, model__pattern=["r", "a", "b"], model__depth=3))


def goes_on(recipe):
    """Three windows cost the tokens what one long window costs them."""
    network = recipe.build("model", vocab_size=259, max_length=16).initialise(0).double().eval()
    tokens = torch.randint(259, (2, 25), generator=torch.Generator().manual_seed(0))
    documents = torch.tensor([[3] * 9 + [4] * 12 + [5] * 4, [3] * 25])  # one ends in a window, one at its border
    whole = Causal().token_losses(network, {"tokens": tokens, "documents": documents})
    carried, nats = Carried(network), []
    for start in (0, 8, 16):
        window = {"tokens": tokens[:, start : start + 9], "documents": documents[:, start : start + 9]}
        before = carried.states.get(0, begin(network, 2))
        nats.append(Causal().token_losses(network, window, before).nats)
        carried.run(Causal(), window, 0)
        carried.commit()
    torch.testing.assert_close(torch.cat(nats, 1), whole.nats, rtol=1e-9, atol=1e-9)


@MIXERS
def test_a_lane_that_begins_anew_has_an_empty_state(stateful, mixer):
    network = stateful(mixer).build("model", vocab_size=259, max_length=16).initialise(0).double().eval()
    tokens = torch.randint(259, (2, 17), generator=torch.Generator().manual_seed(0))
    first, second = {"tokens": tokens[:, :9]}, {"tokens": tokens[:, 8:]}
    carried = Carried(network)
    carried.run(Causal(), first, 0)
    carried.commit()
    carried.run(Causal(), second | {"fresh": torch.tensor([True, False])}, 0)
    fresh, gone_on = Carried(network), Carried(network)
    fresh.run(Causal(), second, 0)
    for batch in (first, second):
        gone_on.run(Causal(), batch, 0)
        gone_on.commit()
    third = {"tokens": tokens[:, :9]}
    mixed, alone, on = (
        Causal().token_losses(network, third, held).nats
        for held in (carried.after[0], fresh.after[0], gone_on.states[0])
    )
    torch.testing.assert_close(mixed[0], alone[0])
    torch.testing.assert_close(mixed[1], on[1])
    assert not torch.allclose(alone, on)


def kept(run, step=8):
    return torch.load(run.folder / "checkpoints" / f"step-{step}.ckpt", weights_only=True)[lanes.LANES]


@MIXERS
def test_killed_in_a_step_it_continues_exactly(stateful, tmp_path, monkeypatch, in_child, same_run, mixer):
    recipe = stateful(mixer)
    whole = fit(recipe, folder=tmp_path / "whole", progress=False)
    backward = TrainingModule.backward

    def dying(self, loss):
        if self.clock.step == 5 and self.clock.micro == 2:
            os.kill(os.getpid(), signal.SIGKILL)
        backward(self, loss)

    with monkeypatch.context() as patched:
        patched.setattr(TrainingModule, "backward", dying)
        assert in_child(lambda: fit(recipe, folder=tmp_path / "killed", progress=False)) == -signal.SIGKILL
    killed = fit(recipe, folder=tmp_path / "killed", progress=False)
    same_run(whole, killed)
    assert all(map(torch.equal, kept(whole), kept(killed)))


def test_stopped_in_a_step_it_makes_that_step_again(stateful, tmp_path, monkeypatch, same_run):
    whole = fit(stateful(), folder=tmp_path / "whole", progress=False)
    step = TrainingModule.training_step

    def asking(self, batch, batch_idx):
        if self.clock.step == 5 and self.clock.micro == 0:
            os.kill(os.getpid(), signal.SIGINT)
        return step(self, batch, batch_idx)

    with monkeypatch.context() as patched, pytest.raises(Interrupted):
        patched.setattr(TrainingModule, "training_step", asking)
        fit(stateful(), folder=tmp_path / "stopped", progress=False)
    assert (tmp_path / "stopped" / "checkpoints" / "step-5.ckpt").exists()
    same_run(whole, fit(stateful(), folder=tmp_path / "stopped", progress=False))


def test_other_micro_batches_continue_with_the_same_states(stateful, tmp_path, monkeypatch):
    plain = {"model__blocks__layer__dropout": 0.0}
    whole = fit(stateful(**plain), folder=tmp_path / "whole", progress=False)
    step = TrainingModule.training_step

    def stopping(self, batch, batch_idx):
        if self.clock.step == 4:
            raise KeyError("stopped")
        return step(self, batch, batch_idx)

    with monkeypatch.context() as patched, pytest.raises(KeyError):
        patched.setattr(TrainingModule, "training_step", stopping)
        fit(stateful(**plain), folder=tmp_path / "other", progress=False)
    other = fit(stateful(**plain, data__micro_batch=1), folder=tmp_path / "other", progress=False)
    for mine, theirs in zip(kept(whole), kept(other), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-4, atol=1e-5)


def damaged(path, change):
    held = torch.load(path, weights_only=True)
    change(held)
    torch.save(held, path)


def without(held):
    del held[lanes.LANES]


def not_finite(held):
    held[lanes.LANES][0][1, 3] = torch.nan


def fewer_lanes(held):
    held[lanes.LANES][1] = held[lanes.LANES][1][:3]


def fewer_tensors(held):
    held[lanes.LANES].pop()


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (without, "of the 4 lanes .*: none"),
        (not_finite, "1 values that are no finite numbers"),
        (fewer_lanes, r"tensor 1 as \(3, 16\) torch.float32, where it is \(4, 16\)"),
        (fewer_tensors, "8 tensors, where the model's state has 9"),
    ],
)
def test_states_that_cannot_be_continued_are_refused(stateful, tmp_path, monkeypatch, change, said):
    fit(stateful(trainer__max_steps=2), folder=tmp_path, progress=False)
    (tmp_path / "summary.json").unlink()
    damaged(tmp_path / "checkpoints" / "step-2.ckpt", change)
    monkeypatch.setattr(resume, "FREE", (*resume.FREE, "trainer.max_steps"))
    with pytest.raises(UserError, match=said):
        fit(stateful(trainer__max_steps=4), folder=tmp_path, progress=False)


def test_a_state_that_is_not_finite_stops_the_run_before_it_is_used(stateful, tmp_path, monkeypatch):
    run = Carried.run

    def spoiling(self, objective, batch, number):
        found = run(self, objective, batch, number)
        if len(self.states) == 2 and number == 1:  # in the second step
            self.after[number].layers[0]["mixer"].c[0, 3] = torch.inf
        return found

    monkeypatch.setattr(Carried, "run", spoiling)
    with pytest.raises(NotFinite, match=r"before optimizer step 2: 1 values of the states for the next window"):
        fit(stateful(), folder=tmp_path, progress=False)


def test_bf16_keeps_states_in_float32(stateful, tmp_path):
    run = fit(stateful(MAMBA2, trainer__precision="bf16-mixed"), folder=tmp_path, progress=False)
    assert {leaf.dtype for leaf in kept(run)} == {torch.float32, torch.int64}


class Stateless(Objective):
    """Knows no states."""

    def tokens_wanted(self, length):
        return length + 1

    def forward(self, model, batch):
        return Causal()(model, batch)

    def token_losses(self, model, batch):
        return Causal().token_losses(model, batch)


def test_what_cannot_carry_a_state_is_refused_by_name(tiny, stateful):
    said = r"mixer.*: attention does not claim `constant_state`, which trainer.stateful: true demands"
    with pytest.raises(CapabilityError, match=f"{said}.*attention with other arguments, .*mamba2"):  # with a window
        tiny(trainer__stateful=True).demands()
    objective = {"use": f"{__name__}.Stateless"}
    with pytest.raises(CapabilityError, match=r"objective.*: .*Stateless takes no state.*`carries_state` \(causal\)"):
        stateful(objective=objective).demands()
    stateful(LOCAL).demands()


def test_a_corpus_of_too_few_windows_is_refused(stateful, tmp_path):
    with pytest.raises(UserError, match=r"the 512 rows of a step .* 1024 in all, but the train split has \d+; give"):
        fit(stateful(data__batch_tokens=16 * 512), folder=tmp_path, progress=False)


@pytest.mark.parametrize(("value", "said"), [("yes", "takes true or false"), (None, "takes true or false")])
def test_the_setting_is_checked(tiny, value, said):
    with pytest.raises(RecipeError, match=f"trainer.stateful.*{said}"):
        tiny(trainer__stateful=value).check()


def test_a_near_miss_is_told(tiny):
    with pytest.raises(RecipeError, match="did you mean 'stateful'"):
        tiny(trainer__statefull=True).check()


def test_the_setting_is_saved_and_is_none_of_lightning_s(stateful):
    assert bakeoff.recipe(stateful().saved()).stateful
    assert "stateful" not in stateful().build("trainer")


def test_it_changes_the_run(tiny, stateful):
    assert stateful().hash() != stateful(trainer__stateful=False).hash()


@pytest.fixture
def keys(tmp_path):
    """Documents of different lengths that repeat a letter of their own every sixth token, in a folder of text."""
    folder, draw = tmp_path / "keys", random.Random(0)
    folder.mkdir()
    for number in range(60):
        (folder / f"{number:02}.txt").write_text(f"....:{draw.choice('abcdefgh')}" * (20 + number))
    return folder


def test_what_lies_farther_back_than_a_window_is_known_with_a_state_only(stateful, keys, tmp_path):
    changes = {
        "data__corpus": {"use": "text_files", "path": str(keys)},
        "data__length": 8,
        "data__batch_tokens": 128,
        "data__micro_batch": 16,
        "model__d_model": 32,
        "model__depth": 1,
        "model__blocks__layer__feed_forward": None,
        "model__blocks__layer__dropout": 0.0,
        "schedule": {"use": "constant"},
        "trainer__max_steps": 80,
        "trainer__log_every_n_steps": 80,
        "validation": {"every_steps": None, "tokens": None},
    }
    mixer = {"use": "mamba2", "state_size": 16, "head_width": 16}
    nats = {}
    for told in (True, False):
        made = stateful(mixer, trainer__stateful=told, **changes)
        nats[told] = fit(made, folder=tmp_path / str(told), progress=False).metrics["nats_per_token"]
    # a window of 8 shows one key in four its last occurrence; guessing the others costs 3/4 log(8) / 6 nats a token
    assert nats[False] > 0.26
    assert nats[True] < 0.2


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_compiled_blocks_go_on_with_the_same_states(stateful, tmp_path, monkeypatch):
    monkeypatch.setattr(nn.Module, "compile", functools.partialmethod(nn.Module.compile, backend="aot_eager"))
    few = {"data__batch_tokens": 16 * 32, "data__micro_batch": 16, "validation__every_steps": None}  # 8 steps an epoch
    made = stateful(LOCAL, model__blocks__layer__dropout=0.0, **few)
    graphs = {}
    for steps in (3, 10):  # within the first epoch, and with lanes that begin anew
        torch._dynamo.reset()
        torch._dynamo.utils.counters.clear()
        told = {"compile": True, "trainer.max_steps": steps}
        compiled = fit(made.override(told), folder=tmp_path / str(steps), progress=False)
        graphs[steps] = torch._dynamo.utils.counters["stats"]["unique_graphs"]
    assert graphs[3] == graphs[10] > 0
    plain = fit(made.override({"trainer.max_steps": 10}), folder=tmp_path / "plain", progress=False)
    for mine, theirs in zip(compiled.curve, plain.curve, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-4)
    with pytest.raises(CapabilityError, match="layers 0, 1"):
        fit(stateful(compile=True), folder=tmp_path / "lstm", progress=False)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_killed_at_random_moments(stateful, tmp_path, in_child, same_run):
    made = stateful(MAMBA2, trainer__max_steps=60, checkpoint__every_steps=3, validation__every_steps=5)
    whole = fit(made, folder=tmp_path / "whole", progress=False)
    draw, folder, kills = random.Random(0), tmp_path / "killed", 0
    while not (folder / "summary.json").exists():
        after = draw.randint(8, 30)
        kills += in_child(lambda after=after: dying_after(after, made, folder)) == -signal.SIGKILL
    assert kills >= 4  # 120 micro-batches
    again = load_run(folder)
    same_run(whole, again)
    assert all(map(torch.equal, kept(whole, 60), kept(again, 60)))


def dying_after(count, made, folder):
    backward, left = TrainingModule.backward, iter(range(count))

    def dying(self, loss):
        if next(left, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)
        backward(self, loss)

    TrainingModule.backward = dying
    fit(made, folder=folder, progress=False)


TWO = {"trainer__devices": 2, "trainer__strategy": "ddp", "trainer__accelerator": "cpu"}


@pytest.mark.slow
@pytest.mark.timeout(900)
@MIXERS
def test_two_ranks_are_one_process_and_continue_as_one(stateful, tmp_path, mixer):
    plain = {"model__blocks__layer__dropout": 0.0, "data__micro_batch": 1, "trainer__max_steps": 12}
    alone = fit(stateful(mixer, **plain), folder=tmp_path / "alone", progress=False)
    two = fit(stateful(mixer, **plain, **TWO), folder=tmp_path / "two", progress=False)
    for mine, theirs in zip(alone.curve, two.curve, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=1e-5)
        if mine["bits_per_byte"] is not None:
            assert mine["bits_per_byte"] == pytest.approx(theirs["bits_per_byte"], rel=1e-5)
    for mine, theirs in zip(kept(alone, 12), kept(two, 12), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-5)
    # from two ranks to one, in the middle
    for path in (tmp_path / "two" / "summary.json", tmp_path / "two" / "checkpoints" / "step-12.ckpt"):
        path.unlink()
    continued = fit(stateful(mixer, **plain), folder=tmp_path / "two", progress=False)
    assert continued.curve[-1]["loss"] == pytest.approx(alone.curve[-1]["loss"], rel=1e-5)
    for mine, theirs in zip(kept(alone, 12), kept(continued, 12), strict=True):
        torch.testing.assert_close(mine, theirs, rtol=1e-3, atol=1e-5)


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_two_ranks_that_are_stopped_continue_bit_for_bit(stateful, tmp_path, same_run):
    made = stateful(MAMBA2, trainer__max_steps=12, **TWO)
    whole = fit(made, folder=tmp_path / "whole", progress=False)
    fit(made, folder=tmp_path / "stopped", progress=False)
    for path in (tmp_path / "stopped" / "summary.json", tmp_path / "stopped" / "checkpoints" / "step-12.ckpt"):
        path.unlink()
    again = fit(made, folder=tmp_path / "stopped", progress=False)
    same_run(whole, again)
    assert all(map(torch.equal, kept(whole, 12), kept(again, 12)))
