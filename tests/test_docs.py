"""What README and docs show is true: their commands run, their recipes check, their code is the code."""

import os
import re
import shlex
import subprocess
import sysconfig
import venv
from pathlib import Path

import pytest
from bakeoff.cli.new import write_package

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

#: Appended to the commands that train, so that a page runs in seconds.
SHORT = {
    "fit": "trainer.max_steps=2 data.batch_tokens=1024 data.micro_batch=null data.length=64 validation.tokens=4096",
    "compare": (
        "budget.tokens=512 seeds=[0] measure=[validation] base.data.batch_tokens=256 base.data.length=64"
        " base.data.micro_batch=null base.validation.tokens=512"
    ),
}


def blocks(page, language):
    return [body for found, body in BLOCK.findall(page.read_text()) if found == language]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Variables of a fresh environment that sees what is installed here, but not the `bakeoff` command."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    site = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    Path(site, "beside.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    return {**os.environ, "PATH": f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}", "VIRTUAL_ENV": str(folder)}


def shortened(line):
    """The command as shown, made short: pip takes nothing from elsewhere, training is a few steps."""
    command = line.split("#")[0].strip()
    words = shlex.split(command)
    if words[0] == "pip":
        place = f"-e {ROOT}" if words[-1].startswith(".") else f"./{words[-1]}"
        return f"pip install -q --no-deps --no-build-isolation {place}"
    if words[:2] == ["pytest", "bakeoff-my-idea"]:
        return f"python -m {command} -q -p no:cacheprovider"
    if words[0] == "bakeoff" and words[1] in SHORT:
        return f"{command} {SHORT[words[1]]}"
    return command


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "console")], ids=lambda page: page.name)
def test_commands_run_as_they_stand(page, environment, tmp_path):
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    for body in blocks(page, "yaml"):
        named = re.match(r"# file: (\S+)\n", body)
        if named:
            (tmp_path / named[1]).write_text(body)
    for body in blocks(page, "console"):
        for line in body.splitlines():
            assert line.startswith("$ "), line
            command = shortened(line[2:])
            done = subprocess.run(command, shell=True, cwd=tmp_path, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    for body in blocks(page, "python"):
        if "import bakeoff\n" in body:
            done = subprocess.run(["python", "-c", body], cwd=tmp_path, env=environment, capture_output=True, text=True)
            assert done.returncode == 0, f"{body}\n{done.stderr}"


def test_the_plugin_shown_is_the_one_that_is_written(tmp_path):
    write_package("mixer", "my_idea", tmp_path / "package")
    source = (tmp_path / "package" / "bakeoff_my_idea" / "my_idea.py").read_text()
    assert source in blocks(ROOT / "README.md", "python")
    assert len(source.splitlines()) <= 40


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text()):
        assert target.startswith("http") or (page.parent / target).exists(), f"{page.name}: {target}"


@pytest.mark.parametrize("word", ["/" + "work/", "/" + "tmp/", "/" + "root/"])
def test_no_path_of_a_machine_stands_in_the_project(word):
    found = subprocess.run(["git", "grep", "-lF", word, "--", "framework", "plugins", "recipes", "docs", "README.md"],
                           cwd=ROOT, capture_output=True, text=True)  # fmt: skip
    assert found.stdout == ""
