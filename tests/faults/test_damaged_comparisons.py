"""The store of a comparison, damaged: the report says so, or says what it said."""

import random
import re
import shutil
import sqlite3

import pytest
from bakeoff.compare.store import FILE, Store

from ..compare.conftest import make_up
from .commands import Commands
from .test_damaged_runs import DAMAGES

DAMAGED = 40


@pytest.fixture
def commands():
    running = Commands()
    yield running
    running.close()


@pytest.fixture(scope="module")
def compared(tmp_path_factory):
    """The folder of a comparison that is done."""
    place = tmp_path_factory.mktemp("compared")
    plan, trials = make_up()
    store = Store(place)
    for trial in trials:
        store.add(trial)
        store.finish(trial.name, trial.result, trial.reason)
    store.note("plan", plan)
    store.close()
    return place


def numbers(text):
    """A report's text without the names of folders."""
    return re.sub(r"Report: .*", "", text)


def test_a_damaged_store_is_told_or_reports_what_it_did(compared, tmp_path, commands):
    draw, wrong = random.Random(0), []
    whole = commands.run(["report", str(compared)])
    assert whole.code == 0
    for count in range(DAMAGED):
        place = tmp_path / str(count)
        shutil.copytree(compared, place)
        damage = draw.choice(DAMAGES)
        damage(draw, place / FILE, [place / FILE, place / "report.html"])
        got = commands.run(["report", str(place)])
        same = got.code == 0 and numbers(got.out) == numbers(whole.out)
        fault = got.refused() if got.code else None if same else "it says something else"
        if fault:
            wrong.append(f"{damage.__name__}: {fault}\n{got.err[-800:]}")
        shutil.rmtree(place)
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "statement",
    [
        "UPDATE trials SET result = replace(result, '2.1', '1.1')",
        "UPDATE trials SET seed = 7 WHERE seed = 0",
        "UPDATE trials SET arm = 'mamba2' WHERE arm = 'attention'",
        "UPDATE trials SET state = 'failed', reason = 'too slow' WHERE arm = 'hybrid'",
        "UPDATE comparison SET value = replace(value, '5000000', '9000000')",
        "UPDATE comparison SET value = '[]'",
    ],
)
def test_a_number_that_was_changed_in_the_store_is_told(compared, tmp_path, commands, statement):
    place = tmp_path / "changed"
    shutil.copytree(compared, place)
    database = sqlite3.connect(place / FILE)
    database.execute(statement)
    database.commit()
    database.close()
    got = commands.run(["report", str(place)])
    assert got.refused() is None, got
    assert f"{FILE} is damaged: the checksum of" in got.err


def test_a_store_without_a_plan_is_told(tmp_path, commands):
    Store(tmp_path).close()
    got = commands.run(["report", str(tmp_path)])
    assert got.refused() is None, got
    assert "has not begun" in got.err
