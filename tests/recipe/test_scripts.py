"""Parts that live in a script."""

import pytest
from bakeoff.errors import RecipeError
from bakeoff.recipe import import_scripts, recipe

SCRIPT = """\
from bakeoff import register
from bakeoff.interfaces import Result, SequenceMixer


@register("{name}")
class Idea(SequenceMixer):
    def __init__(self, context, *, gain: float = {gain}):
        super().__init__(context)
        self.gain = gain

    def forward(self, x, sequence, state=None):
        return Result(self.gain * x, state)
"""
OVERRIDE = ["model.blocks.layer.mixer={use: %s}", "data.isolate_documents=false"]


@pytest.fixture
def uses(write, small):
    """A recipe in a folder of its own that imports a script beside it and uses its mixer."""

    def made(name, gain=2.0):
        write(f"own/{name}.py", SCRIPT.format(name=name, gain=gain))
        return write(f"own/{name}.yaml", f"extends: {small}\nimports: [{name}.py]\n")

    return made


def overridden(path, name):
    return recipe(path, [text.replace("%s", name) for text in OVERRIDE])


def test_a_script_beside_the_recipe_is_found_from_anywhere(uses, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    made = overridden(uses("script_found"), "script_found")
    assert made.full["model"]["blocks"]["layer"]["mixer"] == {"use": "script_found", "gain": 2.0}
    assert made.build("model", vocab_size=16) is not None


def test_reading_a_recipe_runs_nothing(write, small):
    write("own/loud.py", "raise SystemExit('ran')\n")
    made = recipe(write("own/loud.yaml", f"extends: {small}\nimports: [loud.py]\n"))
    assert [path.rpartition("/")[2] for path in made.scripts] == ["loud.py"]
    with pytest.raises(RecipeError, match=r"imports: .*loud\.py:1 failed: SystemExit: ran"):
        made.check()


def test_scripts_of_the_extended_recipe_are_kept(uses, write):
    below = uses("script_below")
    write("other.py", SCRIPT.format(name="script_above", gain=1.0))
    made = recipe(write("top.yaml", f"extends: {below}\nimports: [other.py]\n"))
    assert [path.rpartition("/")[2] for path in made.scripts] == ["script_below.py", "other.py"]


def test_a_saved_recipe_names_the_content_and_refuses_another(uses, tmp_path):
    path = uses("script_saved")
    made = overridden(path, "script_saved")
    saved = made.saved()
    assert saved["model"]["init_args"]["blocks"]["layer"]["init_args"]["mixer"]["class_path"] == "script_saved"
    assert recipe(saved).full["model"] == made.full["model"]
    assert recipe(saved).hash() == made.hash()
    script = tmp_path / "own" / "script_saved.py"
    script.write_text(script.read_text() + "\n# changed\n")
    with pytest.raises(RecipeError, match=r"script_saved\.py has changed: its hash is"):
        recipe(saved).check()


def test_the_content_of_a_script_is_part_of_the_hash(uses, tmp_path):
    path = uses("script_hashed")
    before = overridden(path, "script_hashed").hash()
    script = tmp_path / "own" / "script_hashed.py"
    script.write_text(script.read_text() + "\n# another\n")
    assert overridden(path, "script_hashed").hash() != before


def test_a_copy_runs_no_second_time(uses, tmp_path):
    first = tmp_path / "own" / "script_copied.py"
    overridden(uses("script_copied"), "script_copied").check()
    copy = tmp_path / "copy.py"
    copy.write_text(first.read_text())
    assert import_scripts({"imports": ["copy.py"]}, tmp_path).keys() == {"copy.py"}


def test_two_scripts_that_own_one_name_are_an_error(write, tmp_path):
    write("one.py", SCRIPT.format(name="script_twice", gain=1.0))
    write("two.py", SCRIPT.format(name="script_twice", gain=3.0))
    with pytest.raises(ValueError, match="'script_twice' has more than one owner"):
        import_scripts({"imports": ["one.py", "two.py"]}, tmp_path)


@pytest.mark.parametrize(
    ("imports", "said"),
    [
        ("[nowhere.py]", "nowhere.py cannot be read"),
        ("{a: b}", "is neither the path of a script"),
        ("3", "is a list of scripts"),
        ("[3]", "is neither the path of a script"),
        ("[{path: a.py, md5: x}]", "is neither the path of a script"),
    ],
)
def test_imports_that_are_none(extended, imports, said):
    with pytest.raises(RecipeError, match=said):
        extended(f"imports: {imports}\n").check()


def test_expected_hashes_are_compared_before_anything_runs(write, tmp_path):
    write("never.py", "raise SystemExit('ran')\n")
    with pytest.raises(RecipeError, match="has changed"):
        import_scripts({"imports": ["never.py"]}, tmp_path, {"never.py": "0" * 64})
