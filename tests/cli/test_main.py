"""The command line: light, and kind to slips."""

import subprocess
import sys

import bakeoff
import pytest
from bakeoff.cli.main import ORDER, main, parse
from bakeoff.interfaces.command import Command


def run(capsys, *words):
    code = main(list(words))
    return code, *capsys.readouterr()


@pytest.mark.parametrize("words", ["--help", "list"])
def test_light_commands_import_no_torch(words):
    code = f"""
import sys
from bakeoff.cli.main import main
try:
    main([{words!r}])
except SystemExit:
    pass
assert "torch" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)


def test_help_names_every_command(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["--help"])
    assert stop.value.code == 0
    shown, warned = capsys.readouterr()
    assert all(entry.name in shown for entry in bakeoff.names("command"))
    assert warned == ""
    assert {e.name for e in bakeoff.names("command") if e.target.startswith("bakeoff.")} == set(ORDER)


def test_list_of_one_kind(capsys):
    code, out, _ = run(capsys, "list", "--kind", "mixer")
    assert code == 0
    assert out.splitlines()[0] == "mixer"
    assert {line.split()[0] for line in out.splitlines()[1:]} >= {"attention", "mamba2", "lstm"}


def test_unknown_kind_is_exit_code_2(capsys):
    code, _, err = run(capsys, "list", "--kind", "mixture")
    assert code == 2
    assert err.startswith("bakeoff: 'mixture' is no kind")
    assert "Traceback" not in err


def test_show_tells_what_is_claimed_always_and_with_some_arguments(capsys):
    _, out, _ = run(capsys, "show", "attention")
    lines = dict(line.split(": ", 1) for line in out.splitlines() if ": " in line)
    assert {"documents", "state", "compile"} <= set(lines["capabilities"].split(", "))
    # with a window; with an op that ranks which share out rows can compute
    assert lines["with some arguments"] == "constant_state, context_parallel"


def test_show(capsys):
    code, out, _ = run(capsys, "show", "gated_mlp")
    assert code == 0
    for expected in (
        "feed_forward",
        "multiple_of: int = 64",
        "capabilities: ",
        "Shazeer (2020)",
        "arxiv.org/abs/2002.05202",
    ):
        assert expected in out


def test_show_of_an_unknown_name(capsys):
    code, _, err = run(capsys, "show", "gated_mpl")
    assert code == 2
    assert "did you mean 'gated_mlp'" in err


def test_cite(capsys):
    code, out, _ = run(capsys, "cite", "bakeoff:models/transformer.yaml")
    assert code == 0
    assert "arxiv.org/abs/2104.09864" in out  # rotary positions, Su et al. 2021


def test_an_argument_may_bear_the_name_of_what_commands_do(capsys, monkeypatch):
    class Walk(Command):
        """Walks."""

        help = "walk"

        def arguments(self, parser):
            parser.add_argument("run")

        def run(self, arguments):
            print(arguments.run)
            return 0

    monkeypatch.setattr("bakeoff.cli.main.find", lambda name, kind: Walk)
    assert run(capsys, "cite", "far")[:2] == (0, "far\n")


def test_show_every_component(capsys):
    for entry in bakeoff.names():
        assert main(["show", entry.name]) == 0
    assert "required" in capsys.readouterr().out


def test_unknown_command(capsys):
    with pytest.raises(SystemExit) as stop:
        main(["trian"])
    assert stop.value.code == 2
    assert "trian" in capsys.readouterr().err


def test_new_refuses_a_taken_name(capsys, tmp_path):
    code, _, err = run(capsys, "new", "mixer", "attention", "--folder", str(tmp_path / "x"))
    assert code == 2
    assert "taken by bakeoff" in err


@pytest.mark.parametrize("name", ["My-Idea", "1st", "_x"])
def test_new_refuses_a_bad_name(capsys, tmp_path, name):
    code, _, err = run(capsys, "new", "mixer", name, "--folder", str(tmp_path / "x"))
    assert code == 2
    assert "snake_case" in err


def test_new_does_not_overwrite(capsys, tmp_path):
    code, _, err = run(capsys, "new", "mixer", "my_idea", "--folder", str(tmp_path))
    assert code == 2
    assert "exists" in err


def test_overrides_may_follow_options(tmp_path):
    arguments = parse(["fit", "recipe.yaml", "model.depth=3", "--folder", str(tmp_path), "seed=4"])
    assert arguments.overrides == ["model.depth=3", "seed=4"]
    assert arguments.recipe == "recipe.yaml"


@pytest.mark.parametrize("words", [["fit", "r.yaml", "--foldr", "x"], ["list", "a=b"], ["fit", "r.yaml", "--x=y"]])
def test_unknown_words_are_refused(words, capsys):
    with pytest.raises(SystemExit) as stop:
        parse(words)
    assert stop.value.code == 2
    assert "unrecognized" in capsys.readouterr().err
