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
