"""The script for one GPU, its whole path in small on the CPU."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).resolve().parents[2]


def script(*arguments: str, root: Path = ROOT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "benchmarks.gpu", *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=root, capture_output=True, text=True, timeout=200, env=environment)


def records(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a GPU here")
def test_without_a_gpu_it_says_so_in_one_line(tmp_path):
    done = script("--results", str(tmp_path / "results.jsonl"))
    assert done.returncode == 2
    assert done.stderr == "no CUDA device here; `--device cpu --quick` runs the whole path in small\n"
    assert not (tmp_path / "results.jsonl").exists()


def test_an_unknown_family_is_named():
    done = script("--families", "attention,atention")
    assert done.returncode == 2
    assert done.stderr.startswith("no family is called atention; families: attention, window,")


def test_a_rerun_begins_nothing_again(tmp_path):
    root, results = tmp_path / "root", tmp_path / "results.jsonl"
    shutil.copytree(ROOT / "benchmarks", root / "benchmarks")  # sources that nobody edits meanwhile
    told = ("--device", "cpu", "--quick", "--families", "bf16", "--results", str(results))
    assert script(*told, root=root).returncode == 0
    (first,) = records(results)
    assert (first["status"], first["case"]["candidate"]) == ("done", "attention"), first["reason"]
    assert first["versions"]["torch"] == torch.__version__

    again = script(*told, root=root)
    assert again.returncode == 0
    assert again.stdout.splitlines() == [f"1 cases, 1 of them in {results}"]
    assert records(results) == [first]

    with (root / "benchmarks" / "gpu" / "cases.py").open("a") as file:
        file.write("# changed\n")
    assert script(*told, root=root).stdout.startswith(f"1 cases, 0 of them in {results}\n")
    assert len(records(results)) == 2


@pytest.mark.slow
def test_a_family_ends_in_figures(tmp_path):
    results = tmp_path / "results.jsonl"
    told = ("--device", "cpu", "--quick", "--families", "experts", "--uncompiled", "--results", str(results))
    assert script(*told, "--case-seconds", "100").returncode == 0
    first = records(results)
    by_name = {(r["case"]["what"], r["case"]["candidate"]): r for r in first}
    assert len(first) == len(by_name) == 5
    assert {r["status"] for r in first} == {"done"}, [r["reason"] for r in first]

    ours, theirs = by_name["training", "bakeoff"]["figures"], by_name["training", "transformers grouped_mm"]["figures"]
    assert ours["parameters"] == theirs["parameters"]
    # by hand, of 64 tokens of d 64: three layers of four projections, a router of 8 and two of eight experts of three
    # products by 64 columns each; (64 * 65 / 2) visible pairs, twice; the readout of 512; three times a pass
    products = 2 * (4 * 64 * 64 + 64 * 8 + 2 * 3 * 64 * 64) * 64 * 3 + 2 * 2 * 64 * (64 * 65 // 2) * 3
    assert ours["flops_per_token"] == theirs["flops_per_token"] == 3 * (products + 2 * 64 * 512 * 64) / 64
    assert by_name["decoding", "bakeoff"]["figures"]["peak_bytes"] > 0

    shown = script("--table", "--results", str(results)).stdout
    assert "| experts: transformers grouped_mm | tiny | 64 | eager |" in shown
    assert "| product | grouped |" in shown


def test_what_takes_too_long_or_is_missing_is_a_result_and_the_run_goes_on(tmp_path):
    results = tmp_path / "results.jsonl"
    results.write_text('{"case": {"fam')  # a run that was killed as it wrote
    told = ("--device", "cpu", "--quick", "--families", "mamba2", "--uncompiled", "--results", str(results))
    done = script(*told, "--case-seconds", "0.5")
    assert done.returncode == 0, done.stderr
    cut, *kept = results.read_text().splitlines()
    assert cut == '{"case": {"fam'
    by_name = {(r["case"]["what"], r["case"]["candidate"]): r for r in map(json.loads, kept)}
    assert by_name["training", "bakeoff"]["status"] == "timeout"
    assert by_name["training", "bakeoff"]["reason"] == "no result after 0.5 s"
    if by_name["training", "mamba_ssm"]["status"] == "missing":
        assert by_name["training", "mamba_ssm"]["reason"] == "mamba_ssm not installed"
    assert ("decoding", "fla") in by_name
    assert "timeout: no result after 0.5 s" in script("--table", "--results", str(results)).stdout
