import textwrap

import pytest

TOYS = '''
import json, os, signal, subprocess, sys, time
from bakeoff.errors import UserError


def toy(folder, progress):
    """Does what the folder's `do` file says, step by step, and counts its steps in a file that survives."""
    for word in (folder / "do").read_text().split():
        action, _, value = word.partition(":")
        if action == "count":
            (folder / "count").open("a").write("x")
        elif action == "sleep":
            time.sleep(float(value))
        elif action == "say":
            for i in range(int(value)):
                progress({"step": i})
                time.sleep(0.01)
        elif action == "meet":
            while not (folder.parent / value / "pid").exists():
                time.sleep(0.01)
        elif action == "pid":
            (folder / "pid").write_text(str(os.getpid()))
        elif action == "worker":
            worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
            (folder / "worker").write_text(str(worker.pid))
        elif action == "raise":
            raise ValueError("the number 7 is odd")
        elif action == "refuse":
            raise UserError("width 7: must be a multiple of 8")
        elif action == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif action == "exit":
            os._exit(int(value))
        elif action == "silent":
            return
        elif action == "threads":
            import torch
            value = [torch.get_num_threads(), os.environ["OMP_NUM_THREADS"], os.getsid(0) == os.getpid()]
            (folder / "threads").write_text(json.dumps(value))
    (folder / "result.json").write_text(json.dumps({"trial": folder.name}))
'''


@pytest.fixture
def toys(tmp_path, monkeypatch):
    """An executor class whose trials do what the file `do` in their folder says, and a maker of such folders."""
    from bakeoff.compare.local import Local

    (tmp_path / "toys").mkdir()
    (tmp_path / "toys" / "toy_trials.py").write_text(textwrap.dedent(TOYS))
    monkeypatch.syspath_prepend(str(tmp_path / "toys"))
    monkeypatch.setattr(Local, "target", "toy_trials:toy")

    def folder(name, do):
        path = tmp_path / "trials" / name
        path.mkdir(parents=True, exist_ok=True)
        (path / "do").write_text(do)
        return path

    return Local, folder


@pytest.fixture
def made_up():
    """Plan and trials of a comparison that never ran: see `make_up`."""
    return make_up


def make_up(quality=None, seeds=(0, 1, 2), tuned=True):
    """(plan, trials): arms with a level of bits per byte each, a seed effect that all share, and a failed trial."""
    quality = quality or {
        "attention": 2.214,
        "sliding_window": 2.212,
        "mamba2": 2.152,
        "hybrid": 2.131,
        "window_of_4": 2.493,
    }
    arms = [_facts(i, name) for i, name in enumerate(quality)]
    trials = [_trial(i, name, level, seed, tuned) for seed in seeds for i, (name, level) in enumerate(quality.items())]
    if tuned:
        trials += [
            _trial(i, name, level + 0.05 * (lr != 1e-3), 3, tuned, lr)
            for lr in (1e-3, 3e-3)
            for i, (name, level) in enumerate(quality.items())
        ]
    plan = {
        "name": "made up",
        "baseline": next(iter(quality)),
        "arms": arms,
        "seeds": list(seeds),
        "match": {"by": "parameters", "within": 0.02, "adjust": "feed_forward.width"},
        "budget": {"tokens": 5_000_000},
        "tuning": {"grid": {"optimizer.lr": [1e-3, 3e-3]}, "seed": 3} if tuned else None,
        "measures": ["validation", "throughput", "decode", "memory"],
        "data": {"corpus": "sotu", "fingerprint": "0123456789ab", "tokenizer": "bpe, 2048 ids"},
        "executor": {"use": "local", "slots": 1, "threads": 2},
        "environment": {"bakeoff": "0.1.0", "torch": "2.13.0", "python": "3.11.7", "processor": "two cores"},
        "command": "bakeoff compare recipes/made_up.yaml",
        "code": "c0de",
        "begun": "2026-01-31 12:00",
        "notes": ["5000000 tokens are no multiple of 16384 a step: 300 steps, 4915200 tokens."],
        "trials": [t.name for t in trials],
    }
    return plan, trials


def _facts(i, name):
    mixer = {"use": "mamba2", "d_state": 64} if i == 2 else {"use": "attention", **({"window": 4 * i} if i else {})}
    tree = {"model": {"d_model": 128, "blocks": {"layer": {"mixer": mixer}}}, "optimizer": {"lr": 1e-3}}
    default = {} if i == 2 else {"window": None, "bias": False}
    return {
        "name": name,
        "steps": 300,
        "tokens": 4_915_200,
        "parameters": 1_243_520 + 4096 * i,
        "parameters_without_embedding": 981_376 + 4096 * i,
        "flops_per_token": 2_400_000 + 150_000 * i,
        "state_bytes": 65_536 * (9 - i),
        "matched": {"knob": "feed_forward.width", "value": 344 + 8 * i, "by": "parameters", "target": 981_376,
                    "reached": 981_376 + 4096 * i, "error": 4096 * i / 981_376},
        "refused": None,
        "tokenizer": "bpe-2048",
        "code": "c0de",
        "tree": tree,
        "full": {"model": {"d_model": 128, "blocks": {"layer": {"mixer": default | mixer}}}, "optimizer": {"lr": 1e-3}},
    }  # fmt: skip


def _trial(i, name, level, seed, tuned, lr=None):
    import random

    from bakeoff.compare.store import Record

    draw = random.Random(f"{name}{seed}")
    bits = level + 0.02 * seed + draw.gauss(0.0, 0.004)
    curve = [
        {
            "step": step,
            "tokens": 16384 * step,
            "seconds": step * (0.06 + 0.01 * i),
            "flops": 3 * 16384 * step * (2_400_000 + 150_000 * i),
            "loss": (bits + 6.0 * (step + 1) ** -0.7 + draw.gauss(0.0, 0.02)) * 2.1,
            "bits_per_byte": bits + 6.0 * (step + 1) ** -0.7 - 6.0 * 301**-0.7 if step % 50 == 0 else None,
        }
        for step in range(10, 301, 10)
    ]
    measures = {
        "validation.bits_per_byte": bits,
        "validation.nats_per_token": bits * 2.1,
        "validation.tokens": 100_000.0,
        "throughput.tokens_per_second": 41_000.0 - 4_300 * i + 100 * seed,
        "decode.tokens_per_second": 510.0 + 90 * i + seed,
        "memory.peak_bytes": (310 + 40 * i) * 2.0**20,
    }
    machine = {"processor": "some processor", "devices": [], "threads": 2}
    result = {"measures": measures, "curve": curve, "seconds": 21.5 + i, "code": ["c0de"]}
    result |= {"machine": machine, "unmeasured": {}}
    point = {"optimizer.lr": lr or 1e-3} if tuned else {}
    stage = "tune" if lr else "run"
    return Record(f"{name}-seed{seed}-{stage}{lr}", name, seed, stage, point, "done", None, result)


@pytest.fixture(scope="session")
def words(tmp_path_factory):
    """A folder of small text files, some of which are held out."""
    folder = tmp_path_factory.mktemp("words")
    for i in range(8):
        lines = [f"In year {1800 + i * j} the committee of {i} said that item {j} was lost." for j in range(60)]
        (folder / f"{i}.txt").write_text("\n".join(lines))
    return folder


@pytest.fixture
def tiny(words, tmp_path, monkeypatch):
    """A comparison as a mapping: two arms of one small layer on bytes, ten steps, two seeds."""
    monkeypatch.setenv("BAKEOFF_CACHE", str(words / "cache"))
    monkeypatch.chdir(tmp_path)
    return tiny_comparison(words)


def tiny_comparison(words):
    mixer = {"use": "attention", "n_heads": 2}
    layer = {"use": "pre_norm", "mixer": mixer, "feed_forward": {"use": "mlp", "width": 32}}
    corpus = {"use": "text_files", "path": str(words)}
    base = {
        "model": {"d_model": 16, "depth": 1, "pattern": ["layer"], "blocks": {"layer": layer}},
        "data": {"corpus": corpus, "tokenizer": {"use": "byte"}, "length": 32, "batch_tokens": 256},
        "validation": {"every_steps": 5, "tokens": 512},
        "trainer": {"accelerator": "cpu", "log_every_n_steps": 1},
    }
    return {
        "name": "tiny",
        "base": base,
        "arms": {"attention": {}, "window": {"model.blocks.layer.mixer.window": 4}},
        "budget": {"tokens": 2560},
        "seeds": [0, 1],
        "measure": ["validation"],
        "executor": {"use": "local", "threads": 1},
    }
