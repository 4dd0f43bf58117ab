"""Who is blamed for what, without processes: heartbeats of several ranks on one store in memory."""

import os
import subprocess
import sys
import threading
import time

import pytest
from bakeoff.parallel.heartbeat import Heartbeat, Place
from bakeoff.parallel.member import Member, lives
from torch.distributed import HashStore


class Job:
    """Ranks that beat when told to, each at the place that it is given."""

    def __init__(self, size, **options):
        store, self.left = HashStore(), []
        self.places = [Place(0, 0, "starting")] * size
        self.hearts = [
            Heartbeat(
                Member(rank, size, "127.0.0.1", 1, device=f"cuda:{rank}", host="box"),
                store,
                lambda rank=rank: self.places[rank],
                leave=lambda code, rank=rank: self._leave(rank, code),
                **options,
            )
            for rank in range(size)
        ]
        for key in ("words", *map(str, range(size))):
            store.set(f"beats/{key}", "")

    def _leave(self, rank, code):
        self.left.append((rank, code))
        self.hearts[rank].stopped.set()

    def beat(self, number, *ranks):
        """Beats of these ranks reach all."""
        for rank in ranks:
            self.hearts[rank]._say(number)
        for heart in self.hearts:
            heart._listen()

    def later(self, seconds):
        """Time goes by."""
        for heart in self.hearts:
            for peer in heart.peers.values():
                peer.heard -= seconds
                peer.moved -= seconds


def test_nobody_is_blamed_while_all_get_on():
    job = Job(3)
    for step in range(3):
        job.later(20)
        job.places = [Place(step, 0, "forward")] * 3
        job.beat(step, 0, 1, 2)
        assert [heart.blame() for heart in job.hearts] == [None] * 3


def test_a_silent_rank_is_named_with_its_last_place():
    job = Job(3)
    job.places = [Place(12, 1, "backward")] * 3
    job.beat(1, 0, 1, 2)
    job.later(31)
    job.beat(2, 0, 2)
    told = f"rank 1 (host box, device cuda:1), process {os.getpid()}, has not been heard of for 31 s"
    for rank in (0, 2):
        assert job.hearts[rank].blame() == f"{told}; it was last at step 12, micro-batch 1 (backward)"


def test_a_rank_that_is_alive_but_behind_is_named_once_the_others_have_waited():
    job = Job(2)
    job.places = [Place(5, 0, "backward"), Place(5, 0, "forward")]
    job.beat(1, 0, 1)
    job.later(44)
    job.beat(2, 0, 1)
    assert job.hearts[0].blame() is None
    job.later(2)
    job.beat(3, 0, 1)
    for heart in job.hearts:  # the one that stands still knows it too
        assert "rank 1 (host box, device cuda:1)" in heart.blame()
        assert "alive but has stood at step 5 (forward) for 46 s" in heart.blame()
        assert "while rank 0 (host box, device cuda:0) waits at step 5 (backward)" in heart.blame()


@pytest.mark.parametrize("doing", ["saving", "validating", "starting", "compiling"])
def test_work_that_may_take_long_is_waited_for(doing):
    job = Job(2)
    job.places = [Place(5, 0, doing), Place(5, 0, "forward")]
    job.beat(1, 0, 1)
    job.later(1000)
    job.beat(2, 0, 1)
    assert job.hearts[1].blame() is None


def test_ranks_that_stand_at_the_same_place_compute():
    job = Job(2)
    job.places = [Place(5, 0, "forward")] * 2
    job.beat(1, 0, 1)
    job.later(1000)
    job.beat(2, 0, 1)
    assert job.hearts[0].blame() is None


def test_a_rank_that_has_ended_its_part_is_not_missed():
    job = Job(2)
    job.beat(1, 0, 1)
    job.hearts[1].stop()
    job.later(1000)
    job.beat(2, 0)
    assert job.hearts[0].blame() is None
    job.hearts[0].stop()
    assert job.left == []


def test_a_dead_process_is_named_at_once():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    assert lives(os.getpid())
    assert not lives(child.pid)
    job = Job(2)
    job.beat(1, 0, 1)
    job.hearts[0].peers[1].pid = child.pid
    assert job.hearts[0].blame() == (
        f"rank 1 (host box, device cuda:1) has died: its process {child.pid} is gone; it was last at step 0 (starting)"
    )


def test_a_process_that_ended_its_part_since_the_last_beats_is_not_missed():
    child = subprocess.Popen([sys.executable, "-c", ""])
    child.wait()
    job = Job(2)
    job.beat(1, 0, 1)
    job.hearts[1].stop()
    job.hearts[0].peers[1].pid = child.pid
    assert "has died" in job.hearts[0].blame()  # as far as the last beats tell
    assert job.hearts[0]._found() is None


def wait_for(condition):
    end = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_a_silent_rank_ends_the_others_and_is_named_once(capfd):
    job = Job(3, every=0.05, silence=0.5)
    job.beat(1, 0, 1, 2)
    for rank in (0, 2):
        job.hearts[rank].start()
    job.hearts[0]._listen()
    wait_for(lambda: len(job.left) >= 2)
    for heart in job.hearts:
        heart.stopped.set()
    assert {(0, 1), (2, 1)} == set(job.left)
    shown = capfd.readouterr().err
    assert shown.count("rank 1 (host box, device cuda:1)") == 1
    assert "has not been heard of" in shown


def test_what_one_rank_tells_ends_the_others_with_its_code_and_is_said_once(capfd):
    job = Job(3, every=0.05)
    for heart in job.hearts:
        heart.start()
    job.hearts[2].tell("rank 2: no such file", 2)
    job.hearts[1].tell("rank 1: connection closed by peer", 1)
    wait_for(lambda: job.left)
    job.hearts[0].stopped.set()
    assert job.left[0] == (0, 2)
    assert capfd.readouterr().err == "bakeoff: rank 2: no such file\n"


def test_the_keeper_of_the_store_leaves_after_those_that_have_yet_to_hear_why(capfd):
    job = Job(3, every=0.2)
    job.beat(1, 0, 1, 2)
    job.hearts[0].peers[1].heard -= 31
    job.hearts[0].start()  # it is the first to find rank 1 silent
    wait_for(lambda: job.hearts[0].store.get("beats/words"))
    time.sleep(0.5)
    assert job.left == []
    job.hearts[2].start()
    wait_for(lambda: (0, 1) in job.left)
    assert job.left[0] == (2, 1)
    assert capfd.readouterr().err.count("bakeoff: ") == 1


def test_a_rank_that_was_told_ends_after_the_others_have_read_it_where_it_keeps_the_store(capfd):
    job = Job(2, every=0.2)
    job.beat(1, 0, 1)
    job.hearts[0].store.set("beats/open", "")
    told = threading.Thread(target=job.hearts[0].tell, args=("rank 0: no such file", 2))
    told.start()
    time.sleep(0.6)
    assert told.is_alive()
    job.hearts[1].start()
    told.join(20)
    wait_for(lambda: job.left == [(1, 2)])
    assert capfd.readouterr().err == "bakeoff: rank 0: no such file\n"


def test_a_beat_on_its_way_does_not_call_back_what_is_over():
    job = Job(2)
    job.beat(1, 0, 1)
    job.hearts[1].stop()
    job.beat(2, 1)
    assert job.hearts[0].peers[1].over
