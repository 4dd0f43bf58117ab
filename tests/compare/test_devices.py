"""Trials that run at once have GPUs of their own; the number of GPUs is made up."""

import pytest
import torch
from bakeoff.compare import devices
from bakeoff.compare.devices import devices_of, slot_environments
from bakeoff.errors import UserError
from bakeoff.train.folder import write_yaml


@pytest.fixture(autouse=True)
def gpus(monkeypatch):
    """`gpus(n)`: so many there are."""
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    monkeypatch.delenv("MASTER_PORT", raising=False)

    def set_to(number):
        monkeypatch.setattr(torch.cuda, "device_count", lambda: number)

    set_to(0)
    return set_to


def shown(slots, wanted):
    return [environment.get("CUDA_VISIBLE_DEVICES") for environment in slot_environments(slots, wanted)]


def test_nothing_changes_on_a_cpu(gpus):
    assert slot_environments(2, [2, "auto"]) == [{}, {}]
    gpus(8)
    assert slot_environments(2, [0, 0]) == [{}, {}]


def test_each_slot_has_as_many_as_its_largest_trial_wants(gpus):
    gpus(8)
    assert shown(2, [2, 4, 1]) == ["0,1,2,3", "4,5,6,7"]
    assert shown(3, ["2"]) == ["0,1", "2,3", "4,5"]


def test_an_equal_share_where_it_is_left_to_the_machine(gpus):
    gpus(8)
    assert shown(2, ["auto", -1]) == ["0,1,2,3", "4,5,6,7"]
    gpus(2)
    assert shown(4, ["auto"]) == ["0", "1", "0", "1"]
    assert shown(1, ["auto"]) == [None]


def test_gpus_that_this_process_sees_are_handed_on(gpus, monkeypatch):
    gpus(4)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "6,7,GPU-a,GPU-b")
    assert shown(2, [2]) == ["6,7", "GPU-a,GPU-b"]


def test_more_than_there_are_is_refused_with_both_numbers(gpus):
    gpus(4)
    with pytest.raises(UserError, match=r"3 slots x trainer\.devices 2 = 6 GPUs .* shows 4; set executor\.slots=2, or"):
        slot_environments(3, [1, 2])
    with pytest.raises(UserError, match=r"trainer\.devices 8 GPUs .* shows 4; set trainer\.devices=4"):
        slot_environments(1, [8])
    with pytest.raises(UserError, match="by number"):
        slot_environments(2, [[0, 1]])


def test_slots_do_not_meet_at_one_port(monkeypatch):
    monkeypatch.setenv("MASTER_PORT", "29500")
    assert [environment["MASTER_PORT"] for environment in slot_environments(2, [2])] == ["29500", "29501"]


@pytest.mark.parametrize(
    ("trainer", "wanted"),
    [({}, "auto"), ({"devices": 4}, 4), ({"devices": 2, "accelerator": "cpu"}, 0), ({"devices": None}, "auto")],
)
def test_a_trial_wants_what_its_recipe_says(tmp_path, trainer, wanted):
    (tmp_path / "run").mkdir()
    write_yaml(tmp_path / "run" / "recipe.yaml", {"trainer": trainer})
    assert devices_of(tmp_path) == wanted


def test_nothing_starts_if_too_many_are_wanted(toys, gpus, monkeypatch):
    local, folder = toys
    gpus(2)
    monkeypatch.setattr("bakeoff.compare.local.devices_of", lambda folder: 2)
    path = folder("t", "count")
    with pytest.raises(UserError, match=r"= 4 GPUs .* shows 2"):
        next(local(slots=2).run([path], lambda *_: None))
    assert not (path / "count").exists()
    assert devices.visible() == ["0", "1"]
