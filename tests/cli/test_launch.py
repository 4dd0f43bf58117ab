"""Batch scripts: what they hold, that odd names are safe in them, and that they run, stop and continue."""

import os
import stat
import subprocess
import sys
import textwrap

import pytest
import yaml
from bakeoff.cli.main import main
from bakeoff.train.curve import read_curve

WORDS = "the a model state token reads writes keeps window long short learns value of and to in"

STAND_IN = '''
    """Stands in for srun, sbatch and scontrol on one machine without SLURM."""
    import os, re, shlex, signal, subprocess, sys, time
    from pathlib import Path

    HERE, NAME = Path(__file__).parent, Path(sys.argv[0]).name


    def sbatch(script):
        wanted = {}
        for line in Path(script).read_text().splitlines():
            if line.startswith("#SBATCH --"):
                (word,) = shlex.split(line.removeprefix("#SBATCH --"))
                key, _, value = word.partition("=")
                wanted[key] = value
        nodes, tasks = int(wanted["nodes"]), int(wanted["ntasks-per-node"])
        environment = os.environ | {
            "SLURM_JOB_ID": str(os.getpid()),
            "SLURM_JOB_NAME": wanted["job-name"],
            "SLURM_JOB_NODELIST": "127.0.0.1",
            "SLURM_NNODES": str(nodes),
            "SLURM_NTASKS": str(nodes * tasks),
            "SLURM_NTASKS_PER_NODE": str(tasks),
        }
        with open(re.sub("%(.)", lambda found: {"j": "1", "%": "%"}[found[1]], wanted["output"]), "a") as log:
            while True:
                code = subprocess.call(["bash", script], env=environment, stdout=log, stderr=log)
                try:
                    (HERE / "requeued").unlink()
                except FileNotFoundError:
                    return code


    def scontrol(word, job, *rest):
        if word == "show":
            print("127.0.0.1")
            return 0
        assert (word, rest) == ("requeue", ()) and job == os.environ["SLURM_JOB_ID"]
        (HERE / "requeued").touch()
        with open(HERE / "times", "a") as times:
            times.write("x")
        return 0


    def srun(*words):
        words = [word for word in words if not word.startswith("--kill")]
        size, tasks = int(os.environ["SLURM_NTASKS"]), int(os.environ["SLURM_NTASKS_PER_NODE"])
        ranks = []
        for rank in range(size):
            own = {"SLURM_PROCID": rank, "SLURM_LOCALID": rank % tasks, "SLURM_NODEID": rank // tasks}
            ranks.append(subprocess.Popen(words, env=os.environ | {key: str(value) for key, value in own.items()}))
        folder = Path(words[words.index("--folder") + 1])
        if not (HERE / "times").exists():  # the first start: time is up after a checkpoint
            while not any(folder.glob("checkpoints/step-*.ckpt")) and all(rank.poll() is None for rank in ranks):
                time.sleep(0.05)
            for rank in ranks:
                rank.send_signal(signal.SIGUSR1)
        codes = [rank.wait() for rank in ranks]
        return max(128 - code if code < 0 else code for code in codes)


    sys.exit(globals()[NAME](*sys.argv[1:]))
'''


@pytest.fixture
def recipe(tmp_path, monkeypatch):
    """A small recipe in a folder whose name a careless script stumbles over."""
    place = tmp_path / 'it\'s $HOME; a "b" %j'
    texts = place / "texts"
    texts.mkdir(parents=True)
    for number in range(24):
        (texts / f"{number:02}.txt").write_text(f"{WORDS} {number} " * 4)
    layer = {
        "use": "pre_norm",
        "mixer": {"use": "attention", "n_heads": 2},
        "feed_forward": {"use": "mlp", "width": 16},
    }
    values = {
        "name": "tiny run",
        "model": {"d_model": 16, "depth": 1, "pattern": ["layer"], "blocks": {"layer": layer}},
        "data": {
            "corpus": {"use": "text_files", "path": str(texts)},
            "tokenizer": {"use": "byte"},
            "length": 16,
            "batch_tokens": 64,
        },
        "optimizer": {"use": "torch.optim.AdamW", "lr": 1e-2},
        "trainer": {"max_steps": 30, "accelerator": "cpu", "log_every_n_steps": 1},
        "validation": {"tokens": 64},
        "checkpoint": {"every_steps": 2},
    }
    monkeypatch.chdir(tmp_path)
    path = place / "tiny.yaml"
    path.write_text(yaml.safe_dump(values))
    return path


def launch(recipe, *words):
    script = recipe.with_name("job.sh")
    assert main(["launch", "slurm", str(recipe), *words, "--output", str(script)]) == 0
    return script


def test_the_script_says_what_is_asked_of_the_cluster(recipe):
    words = ("--nodes", "2", "--devices", "2", "--time", "1:00:00", "--partition", "gpu", "--account", "my group")
    script = launch(recipe, *words, "trainer.accelerator=cpu").read_text()
    head = [line for line in script.splitlines() if line.startswith("#SBATCH")]
    for line in ("nodes=2", "ntasks-per-node=2", "time=1:00:00", "partition=gpu", 'account="my group"', "requeue"):
        assert f"#SBATCH --{line}" in head
    assert "#SBATCH --signal=USR1@120" in head
    assert not any("gpus" in line for line in head)
    assert "trainer.devices=2 trainer.num_nodes=2 trainer.strategy=ddp" in script


def test_devices_are_asked_for_unless_the_recipe_computes_on_processors(recipe):
    script = launch(recipe, "--devices", "2", "trainer.accelerator=auto").read_text()
    assert "#SBATCH --gpus-per-node=2" in script


def test_bash_reads_the_script_and_every_word_comes_through(recipe):
    script = launch(recipe, "--folder", str(recipe.with_name("a run")), "name=it's")
    assert subprocess.run(["bash", "-n", str(script)]).returncode == 0
    stand_in = recipe.parent / "bin"
    stand_in.mkdir()
    for name, body in {"srun": 'printf "%s\\n" "$@"; exit 7', "scontrol": "echo node"}.items():
        (stand_in / name).write_text(f"#!/bin/bash\n{body}\n")
        (stand_in / name).chmod(0o755)
    environment = {**os.environ, "PATH": f"{stand_in}:{os.environ['PATH']}", "SLURM_JOB_ID": "5"}
    environment["SLURM_JOB_NODELIST"] = "node"
    done = subprocess.run(["bash", str(script)], env=environment, capture_output=True, text=True)
    assert done.returncode == 7
    words = ["-m", "bakeoff", "fit", str(recipe), "name=it's", "trainer.devices=1", "trainer.num_nodes=1"]
    expected = [*words, "trainer.strategy=auto", "--folder", str(recipe.with_name("a run"))]
    assert done.stdout.splitlines()[2:] == expected


def test_a_batch_that_does_not_divide_is_refused_before_anything_is_written(recipe, capsys):
    assert main(["launch", "slurm", str(recipe), "--devices", "3"]) == 2
    told = capsys.readouterr()
    assert "divide over 3 ranks" in told.err
    assert told.out == ""


def test_a_mesh_of_other_size_is_refused(recipe, capsys):
    mesh = "trainer.strategy={use: mesh, data: 2, tensor: 2}"
    assert main(["launch", "slurm", str(recipe), "--nodes", "2", "--devices", "4", mesh]) == 2
    told = capsys.readouterr().err
    assert "4" in told
    assert "8" in told
    assert main(["launch", "slurm", str(recipe), "--nodes", "2", "--devices", "2", mesh]) == 0


def test_no_devices_are_refused(recipe, capsys):
    assert main(["launch", "slurm", str(recipe), "--nodes", "0"]) == 2
    assert "--nodes is 0" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_job_on_two_nodes_is_stopped_once_and_continues(recipe):
    folder, programs = recipe.with_name("a run"), recipe.parent / "bin"
    script = launch(recipe, "--nodes", "2", "--folder", str(folder), "trainer.max_steps=300")
    programs.mkdir()
    for name in ("srun", "sbatch", "scontrol"):
        path = programs / name
        path.write_text(f"#!{sys.executable}\n{textwrap.dedent(STAND_IN)}")
        path.chmod(path.stat().st_mode | stat.S_IXUSR)
    environment = {**os.environ, "PATH": f"{programs}:{os.environ['PATH']}", "OMP_NUM_THREADS": "1"}
    environment["GLOO_SOCKET_IFNAME"] = "lo"
    done = subprocess.run([programs / "sbatch", script], env=environment, capture_output=True, text=True, timeout=500)
    told = done.stderr + folder.with_name("a run.slurm-1.txt").read_text()
    assert done.returncode == 0, told
    assert (programs / "times").read_text() == "x"
    assert "continuing after step" in told
    assert [row["step"] for row in read_curve(folder / "curve.csv")] == list(range(1, 301))
