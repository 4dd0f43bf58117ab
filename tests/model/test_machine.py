from __future__ import annotations

import pytest
import torch
from bakeoff.model import machine


def cpuinfo(flags: str, cores: list[int], vendor: str = "GenuineIntel", family: int = 6) -> str:
    lines = []
    for i, core in enumerate(cores):
        lines += [f"processor\t: {i}", f"vendor_id\t: {vendor}", f"cpu family\t: {family}", "cpu MHz\t\t: 2500.000"]
        lines += ["physical id\t: 0", f"core id\t\t: {core}", f"flags\t\t: {flags}", ""]
    return "\n".join(lines)


def test_a_promise_is_cores_times_clock_times_operations_a_cycle():
    assert machine.cpu_promise(cpuinfo("sse2 avx avx2 fma", [0, 1]), 2).flops == 2 * 2.5e9 * 32
    assert machine.cpu_promise(cpuinfo("sse2 avx avx2 fma avx512f", [0, 1]), 1).flops == 2.5e9 * 64
    assert machine.cpu_promise(cpuinfo("avx fma avx512f", [0], "AuthenticAMD", 25), 1).flops == 2.5e9 * 32
    assert machine.cpu_promise(cpuinfo("avx fma avx512f", [0], "AuthenticAMD", 26), 1).flops == 2.5e9 * 64
    assert "estimate" in machine.cpu_promise(cpuinfo("sse2", [0]), 1).source


def test_threads_of_one_core_count_once():
    assert machine.cpu_promise(cpuinfo("fma", [0, 0, 1, 1]), 4).flops == 2 * 2.5e9 * 32


@pytest.mark.parametrize(
    ("name", "ridge"),
    [("NVIDIA H100 80GB HBM3", "295.3731"), ("NVIDIA H200", "206.1"), ("NVIDIA A100-SXM4-80GB", "153.0")],
)
def test_operations_a_byte_at_which_a_gpu_is_no_longer_bound_by_memory(
    monkeypatch: pytest.MonkeyPatch, name: str, ridge: str
):
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: name)
    promise = machine.promised("cuda")
    assert promise.flops is not None
    assert promise.bandwidth is not None
    digits = len(ridge.partition(".")[2])
    assert f"{promise.flops / promise.bandwidth:.{digits}f}" == ridge


@pytest.mark.parametrize("text", ["", "processor: 0\n", cpuinfo("mmx", [0])])
def test_what_is_not_known_is_not_invented(text: str):
    promise = machine.cpu_promise(text, 1)
    assert promise.flops is None
    assert promise.source


def test_measurements_are_plausible_and_made_once(monkeypatch: pytest.MonkeyPatch):
    peak = machine.measured_peak()
    assert 1e9 < peak < 1e14
    assert 1e8 < machine.measured_bandwidth() < 1e13
    monkeypatch.setattr(machine, "best_time", lambda *_: pytest.fail("measured again"))
    assert machine.measured_peak("cpu", torch.float32) == peak
