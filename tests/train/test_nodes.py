"""Two "nodes" on the loopback interface, each with its own torchrun, train one run."""

import os
import socket
import subprocess
import sys

import pytest
import yaml
from bakeoff.train import load_run

ONE_EACH = ("trainer.devices=1", "trainer.num_nodes=2", "trainer.strategy=ddp", "trainer.accelerator=cpu")


@pytest.fixture
def nodes(values, tmp_path):
    """`nodes(words of one, words of the other)`: run `bakeoff fit` on both; gives exit codes, outputs and errors."""
    path = tmp_path / "tiny.yaml"
    path.write_text(yaml.safe_dump(values))

    def run(*each):
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            port = free.getsockname()[1]
        started = []
        for node, words in enumerate(each):
            launcher = ["--nnodes=2", "--nproc-per-node=1", f"--node-rank={node}", "--master-addr=127.0.0.1"]
            launcher += [f"--master-port={port}", "-m", "bakeoff", "fit", str(path), *words]
            environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
            process = subprocess.Popen(
                [sys.executable, "-m", "torch.distributed.run", *launcher],
                cwd=tmp_path,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            started.append(process)
        try:
            told = [process.communicate(timeout=250) for process in started]
        finally:
            for process in started:
                process.kill()
        return [p.returncode for p in started], [out for out, _ in told], [errors for _, errors in told]

    return run


def messages(errors):
    """What bakeoff itself says, on all nodes."""
    return [line for text in errors for line in text.splitlines() if line.startswith("bakeoff: ")]


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_two_nodes_agree_on_a_new_folder_and_are_one_process(nodes, tiny, tmp_path):
    words = (*ONE_EACH, "model.blocks.layer.dropout=0.0")
    codes, outputs, errors = nodes(words, words)
    assert codes == [0, 0], errors
    (folder,) = (tmp_path / "runs" / "tiny").iterdir()
    assert outputs[0].strip() == str(folder.relative_to(tmp_path))
    assert outputs[1].strip() == ""
    from bakeoff.train import fit

    alone = fit(tiny(model__blocks__layer__dropout=0.0), folder=tmp_path / "alone", progress=False)
    for mine, theirs in zip(load_run(folder).curve, alone.curve, strict=True):
        assert mine["loss"] == pytest.approx(theirs["loss"], rel=2e-5)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_nodes_with_different_recipes_are_refused_by_one_message(nodes, tmp_path):
    folder = ("--folder", str(tmp_path / "run"))
    codes, _, errors = nodes((*ONE_EACH, *folder), (*ONE_EACH, "optimizer.lr=1e-3", *folder))
    assert all(codes)
    (told,) = messages(errors)
    assert "were not started alike" in told
    (line,) = [line for text in errors for line in text.splitlines() if line.startswith("  recipe: ")]
    assert " on rank 0 (host " in line
    assert " on rank 1 (host " in line
    assert not (tmp_path / "run" / "checkpoints").exists() or not any((tmp_path / "run" / "checkpoints").iterdir())


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_other_devices_than_were_launched_are_said_once(nodes):
    codes, _, errors = nodes(("trainer.accelerator=cpu",), ("trainer.accelerator=cpu",))
    assert all(codes)
    (told,) = messages(errors)
    assert "2 ranks were launched, but trainer.devices x trainer.num_nodes is 1 x 1 = 1" in told
    assert "set trainer.devices=1 trainer.num_nodes=2" in told
