"""What README and docs show is true: their commands run, their recipes check, their code is the code."""

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

import pytest
from bakeoff.cli.new import write_package
from bakeoff.registry import KINDS, names
from bakeoff.testing.law import laws_for

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
NOTEBOOKS = sorted((ROOT / "docs" / "notebooks").glob("*.ipynb"))
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)

#: Appended to the commands that train, so that a page runs in seconds.
SHORT = {
    "fit": "trainer.max_steps=2 data.batch_tokens=1024 data.micro_batch=null data.length=64 validation.tokens=4096",
    "compare": (
        "budget.tokens=512 seeds=[0] measure=[validation] base.data.batch_tokens=256 base.data.length=64"
        " base.data.micro_batch=null base.validation.tokens=512"
    ),
}

#: An installation that takes nothing from elsewhere.
INSTALL = ["pip", "install", "-q", "--no-deps", "--no-build-isolation"]


def blocks(page, language):
    return [body for found, body in BLOCK.findall(page.read_text()) if found == language]


@pytest.fixture(scope="module")
def environment(tmp_path_factory):
    """Variables of a fresh environment that sees what is installed here and has a `bakeoff` command of its own."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=True)
    site = sysconfig.get_path("purelib", vars={"base": str(folder), "platbase": str(folder)})
    Path(site, "beside.pth").write_text(f"import site; site.addsitedir({sysconfig.get_path('purelib')!r})\n")
    path = f"{folder / 'bin'}{os.pathsep}{os.environ['PATH']}"
    variables = {**os.environ, "PATH": path, "VIRTUAL_ENV": str(folder)}
    subprocess.run([*INSTALL, "-e", str(ROOT)], env=variables, check=True)
    return variables


def adapted(line, *, short):
    """The command as shown, but pip takes nothing from elsewhere; if `short`, training is a few steps."""
    command = line.split("#")[0].strip()
    words = shlex.split(command)
    if words[0] == "pip":
        return shlex.join([*INSTALL, "-e", str(ROOT) if words[-1].startswith(".") else f"./{words[-1]}"])
    if words[0] == "pytest":
        return f"python -m {command} -q -p no:cacheprovider"
    if short and words[0] == "bakeoff" and words[1] in SHORT:
        return f"{command} {SHORT[words[1]]}"
    return command


def follow(page, folder, environment, *, short):
    """Do what a page says from top to bottom: write its files, run its commands and its programs."""

    def run(command):
        done = subprocess.run(command, shell=True, cwd=folder, env=environment, capture_output=True, text=True)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"

    for language, body in BLOCK.findall(page.read_text()):
        named = re.match(r"# file: (\S+)\n", body)
        if named:
            (folder / named[1]).write_text(body)
        elif language == "console":
            for line in body.splitlines():
                assert line.startswith("$ "), line
                run(adapted(line[2:], short=short))
        elif language == "python" and "import bakeoff\n" in body:
            run(f"python -c {shlex.quote(body)}")


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", [p for p in PAGES if blocks(p, "console")], ids=lambda page: page.name)
def test_pages_do_what_they_say(page, environment, tmp_path):
    (tmp_path / "recipes").symlink_to(ROOT / "recipes")
    follow(page, tmp_path, environment, short=page.name != "tutorial.md")


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


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """The built site, notebooks run."""
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "-f", "docs/mkdocs/mkdocs.yml", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder


def installed(kind):
    """What packages register; other tests of this process may have registered more."""
    return [entry for entry in names(kind) if not entry.package.startswith("script ")]


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_site_tells_of_every_kind_its_laws_and_components(site):
    for kind in KINDS:
        page = (site / "kinds" / f"{kind}.html").read_text()
        for law in laws_for(kind, None, slow=True):
            assert f">{law.name}" in page, (kind, law.name)
        for entry in installed(kind):
            assert f">{entry.name}<" in page, (kind, entry.name)
    for entry in installed("command"):
        assert f"usage: bakeoff {entry.name} " in (site / "commands.html").read_text()


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_notebooks_of_the_site_show_what_came_out(site):
    for notebook in NOTEBOOKS:
        page = (site / "notebooks" / f"{notebook.stem}.html").read_text()
        assert "plotly-graph-div" in page
        assert "better than attention by" in page or "no difference" in page or "worse than attention by" in page


@pytest.mark.slow
@pytest.mark.timeout(900)
def test_the_site_fetches_nothing(site):
    loaded = re.compile(r"""<(?:script|img|iframe)[^>]*\bsrc="?(?:https?:)?//|<link[^>]*\bhref="?(?:https?:)?//""")
    pages = sorted(site.rglob("*.html"))
    assert len(pages) > len(KINDS)
    assert [page.name for page in pages if loaded.search(page.read_text())] == []


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(shutil.which("chromium") is None, reason="needs chromium")
def test_search_works_in_pages_opened_as_files(site):
    command = ["chromium", "--headless=new", "--no-sandbox", "--virtual-time-budget=20000", "--dump-dom"]
    page = f"file://{site / 'index.html'}?q=selective+state-space"
    done = subprocess.run([*command, page], capture_output=True, text=True, timeout=120)
    assert "matching document" in done.stdout
    assert "kinds/mixer.html" in re.search(r"md-search-result__list.*", done.stdout, re.DOTALL)[0]


@pytest.mark.parametrize("notebook", NOTEBOOKS, ids=lambda notebook: notebook.name)
def test_notebooks_are_kept_without_outputs(notebook):
    for cell in json.loads(notebook.read_text())["cells"]:
        assert not cell.get("outputs"), cell["source"]
        assert cell.get("execution_count") is None
