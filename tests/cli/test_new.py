"""A package written by `bakeoff new`, built, installed into an environment of its own, tested and trained."""

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from bakeoff.cli.main import main


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """A fresh environment that sees what is installed here through one .pth file."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    python = folder / "bin" / "python"
    site = subprocess.run(
        [python, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    here = sysconfig.get_path("purelib")
    (Path(site) / "beside.pth").write_text(f"import site; site.addsitedir({here!r})\n")
    return python


def run(python, *words, cwd):
    done = subprocess.run(
        [python, "-m", *words],
        capture_output=True,
        text=True,
        cwd=cwd,
        timeout=240,
        env={**os.environ, "PYTHONPATH": ""},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["mixer", "feed_forward"])
def test_a_new_package_installs_keeps_the_laws_and_trains(kind, environment, tmp_path):
    name = f"fresh_{kind}"
    folder = tmp_path / "package"
    assert main(["new", kind, name, "--folder", str(folder)]) == 0
    run(environment, "pip", "wheel", "-q", "--no-deps", "--no-build-isolation", "-w", "dist", ".", cwd=folder)
    (wheel,) = (folder / "dist").glob("*.whl")
    run(environment, "pip", "install", "-q", "--no-deps", str(wheel), cwd=tmp_path)
    assert f"{name}" in run(environment, "bakeoff", "list", "--kind", kind, cwd=tmp_path)
    assert "passed" in run(environment, "pytest", "-q", "-p", "no:cacheprovider", "tests", cwd=folder)
    out = run(environment, "bakeoff", "fit", str(folder / "recipe.yaml"), "trainer.max_steps=3", cwd=tmp_path)
    assert list((tmp_path / "runs").glob("*/*/model.pt")), out


def test_the_written_mixer_is_what_the_readme_shows(tmp_path):
    folder = tmp_path / "package"
    assert main(["new", "mixer", "my_idea", "--folder", str(folder)]) == 0
    source = (folder / "bakeoff_my_idea" / "my_idea.py").read_text()
    assert "class MyIdea(SequenceMixer)" in source
    assert "$" not in source
    compile(source, "my_idea.py", "exec")
    assert sys.version_info >= (3, 10)
