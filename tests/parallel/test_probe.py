"""The way between ranks, looked at by `bakeoff doctor --distributed`."""

import pytest
import torch
from bakeoff.cli.doctor_ranks import ranks
from bakeoff.cli.main import main
from bakeoff.errors import UserError
from bakeoff.parallel import probe as probing
from bakeoff.parallel.probe import probe, wrong_sums


@pytest.mark.slow
def test_two_ranks_meet_add_up_and_are_timed(capsys):
    assert main(["doctor", "--distributed", "--devices", "2"]) == 0
    shown = capsys.readouterr().out
    for words in ("all-reduce", "all-gather", "all-to-all", "/s", "2 ranks meet over gloo", "add up right"):
        assert words in shown


def test_ranks_that_do_not_answer_are_ended_and_named():
    found = probe(2, device="cpu", seconds=0.1)
    assert found.meeting is None
    assert [line.split(":")[0] for line in found.wrong] == [
        f"rank {rank} did not answer within 0.1 s" for rank in range(2)
    ]


def test_a_wrong_sum_is_shown_beside_the_right_one(monkeypatch):
    monkeypatch.setattr(probing.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(probing.distributed, "get_world_size", lambda: 2)
    monkeypatch.setattr(probing.distributed, "all_reduce", lambda mine: None)
    (line,) = wrong_sums(torch.device("cpu"))
    assert line == "an all-reduce gave [1.0, 0.0, 1.0] in place of [1, 2, 3.0]"
    monkeypatch.setattr(probing.distributed, "all_reduce", lambda mine: mine.copy_(torch.tensor([1.0, 2.0, 3.0])))
    assert wrong_sums(torch.device("cpu")) == []


def test_fewer_than_two_and_more_than_there_are_are_refused(monkeypatch):
    with pytest.raises(UserError, match="--devices is 1"):
        ranks(1)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    with pytest.raises(UserError, match="--devices is 3, but this machine has 2"):
        ranks(3)


def test_devices_without_distributed_are_refused(capsys):
    assert main(["doctor", "--devices", "2"]) == 2
    assert "--distributed" in capsys.readouterr().err
