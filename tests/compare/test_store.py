import multiprocessing
import os
import sqlite3
import threading

import pytest
from bakeoff.compare.store import Record, Store, only_one
from bakeoff.errors import UserError

FIRST = Record("attention-0-abc", "attention", 0, "run", {"optimizer.lr": 1e-3}, "waiting")


def test_what_is_entered_comes_back(tmp_path):
    store = Store(tmp_path)
    store.add(FIRST)
    store.finish(FIRST.name, {"measures": {"a.b": 1.5}}, None)
    store.note("plan", {"seeds": [0, 1]})
    store.close()
    again = Store.open(tmp_path)
    (record,) = again.trials()
    assert (record.state, record.result, record.point) == ("done", {"measures": {"a.b": 1.5}}, {"optimizer.lr": 1e-3})
    assert again.noted("plan") == {"seeds": [0, 1]}
    assert again.noted("nothing", 7) == 7


def test_entering_a_known_trial_again_keeps_its_result(tmp_path):
    store = Store(tmp_path)
    store.add(FIRST)
    store.finish(FIRST.name, {"measures": {}}, None)
    store.add(FIRST)
    assert [r.state for r in store.trials()] == ["done"]


def test_failed_trials_keep_their_reason_until_retried(tmp_path):
    store = Store(tmp_path)
    store.add(FIRST)
    store.finish(FIRST.name, None, "loss is not finite at step 7")
    assert [(r.state, r.reason) for r in store.trials()] == [("failed", "loss is not finite at step 7")]
    store.retry(FIRST.name)
    assert [(r.state, r.reason) for r in store.trials()] == [("waiting", None)]


def test_readers_do_not_block_the_writer(tmp_path):
    store = Store(tmp_path)
    store.add(FIRST)
    reader = sqlite3.connect(tmp_path / "comparison.sqlite")
    reader.execute("BEGIN")
    reader.execute("SELECT * FROM trials").fetchall()
    store.finish(FIRST.name, {}, None)
    reader.close()


def test_folder_without_a_comparison_is_the_users_error(tmp_path):
    with pytest.raises(UserError, match="holds no comparison"):
        Store.open(tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_second_comparison_on_a_folder_says_who_holds_it_and_waits(tmp_path):
    said: list[str] = []
    heard, entered = threading.Event(), threading.Event()

    def second():
        with only_one(tmp_path, lambda message: (said.append(message), heard.set())):
            entered.set()

    with only_one(tmp_path, said.append):
        thread = threading.Thread(target=second)
        thread.start()
        assert heard.wait(5)
        assert not entered.wait(0.1)
    assert entered.wait(5)
    thread.join()
    assert len(said) == 1
    assert str(os.getpid()) in said[0]


def _hold_and_die(folder):
    with only_one(folder, print):
        os._exit(9)


def test_lock_of_a_dead_process_is_free(tmp_path):
    process = multiprocessing.get_context("fork").Process(target=_hold_and_die, args=(tmp_path,))
    process.start()
    process.join()
    with only_one(tmp_path, lambda message: pytest.fail(message)):
        pass


def test_store_of_another_form_is_the_users_error(tmp_path):
    Store(tmp_path).close()
    database = sqlite3.connect(tmp_path / "comparison.sqlite")
    database.execute("PRAGMA user_version=99")
    database.close()
    with pytest.raises(UserError, match="its form is 99, this one reads 2"):
        Store(tmp_path)
