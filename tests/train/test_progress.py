"""What a run shows of itself."""

import io

import pytest
from bakeoff.train import progress
from bakeoff.train.progress import (
    Bar,
    Display,
    Lines,
    Mute,
    Program,
    Scale,
    Speedometer,
    count,
    describe,
    display_for,
    duration,
)
from rich.console import Console


class Clock:
    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(progress.time, "monotonic", lambda: self.now)


def test_speed_utilisation_and_time_left_by_hand(monkeypatch):
    clock = Clock(monkeypatch)
    told = []
    # 100 tokens and 3000 operations a step, ten steps in 2 seconds, on a machine of 60,000 operations a second
    meter = Speedometer(Scale(total=30, tokens=100, flops=3000, peak=60_000.0), Program(told.append))
    meter.start(0, 0.0)
    clock.now = 10.0
    meter.show(10, 2.0, loss=1.5)
    (numbers,) = told
    assert numbers["tokens_per_second"] == pytest.approx(500.0)
    assert numbers["mfu"] == pytest.approx(0.25)
    assert numbers["seconds_left"] == pytest.approx(4.0)
    assert describe(numbers) == "loss 1.500  500 tokens/s  MFU 25 %  0:04 left"


def test_a_display_is_refreshed_four_times_a_second_at_most_and_at_the_end(monkeypatch):
    clock = Clock(monkeypatch)
    told = []
    meter = Speedometer(Scale(total=1000, tokens=1, flops=None, peak=None), Program(told.append))
    meter.start(0, 0.0)
    for step in range(1, 1001):
        clock.now = 100.0 + step / 100
        meter.show(step, step / 100, loss=1.0)
    assert 38 <= len(told) <= 42
    assert told[-1]["step"] == 1000
    assert told[-1]["mfu"] is None


def test_lines_are_seconds_apart(monkeypatch, capsys):
    clock = Clock(monkeypatch)
    lines = Lines()
    for step in range(1, 101):
        clock.now = float(step) / 5
        lines.update({"phase": "training", "step": step, "total": 100, "loss": 2.0})
    printed = capsys.readouterr().err.splitlines()
    assert len(printed) == 5
    assert printed[-1] == "step 100/100  loss 2.000"


def test_the_bar_draws_and_says(monkeypatch):
    monkeypatch.setattr(progress, "Console", lambda stderr: Console(file=io.StringIO(), force_terminal=True, width=120))
    bar = Bar()
    bar.start(10, 2)
    bar.update({"phase": "training", "step": 5, "total": 10, "loss": 1.25, "seconds_left": 65.0})
    bar.say("a word")
    bar.close()
    drawn = bar.console.file.getvalue()
    assert "50%" in drawn
    assert "loss 1.250" in drawn
    assert "1:05 left" in drawn
    assert "a word" in drawn


def test_who_sees_what(capsys):
    assert type(display_for(True)) is Lines  # standard error is no terminal here
    assert type(display_for(False)) is Display
    assert type(display_for(True, main=False)) is Mute
    assert type(display_for(print)) is Program
    Mute().say("nothing")
    Display().say("a warning")
    assert capsys.readouterr().err == "a warning\n"


def test_numbers_in_few_digits():
    assert [count(n) for n in (12, 1234, 2.5e6, 3e9)] == ["12", "1.23k", "2.5M", "3G"]
    assert [duration(s) for s in (4, 65, 3903)] == ["0:04", "1:05", "1:05:03"]
