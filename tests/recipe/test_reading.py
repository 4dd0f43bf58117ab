"""YAML is read strictly, safely and within bounds."""

import pytest
from bakeoff.errors import RecipeError
from bakeoff.recipe.reading import MAX_BYTES, parse_value, read


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("3e-4", 3e-4),  # YAML 1.1 reads text here
        ("1e-3", 1e-3),
        ("5e6", 5e6),
        ("+1E3", 1e3),
        ("1.0e-4", 1e-4),
        (".5", 0.5),
        ("1.", 1.0),
        ("1_000", 1000),
        ("-7", -7),
        ("0x10", 16),
        ("true", True),
        ("null", None),
        ("~", None),
        ("", None),
    ],
)
def test_numbers_and_words(text, value):
    found = parse_value(text, "test")
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("text", ["yes", "on", "no", "1:30", "2024-01-01", "007", "1e", "e5", "0o7", "1.2.3", "'3e-4'"])
def test_what_looks_like_a_number_to_yaml_1_1_is_text(text):
    assert isinstance(parse_value(text, "test"), str)


def test_places_of_nested_values(write):
    path = write("a.yaml", "model:\n  blocks:\n    layer: {use: x}\n  pattern:\n    - layer\n    - other\n")
    layer = read(path, "a.yaml")
    assert layer.places["model"] == "a.yaml:1"
    assert layer.places["model.blocks.layer.use"] == "a.yaml:3"
    assert layer.places["model.pattern.1"] == "a.yaml:6"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("model:\n  depth: 1\n  depth: 2\n", "a.yaml:3: the key 'depth' stands twice in one mapping (first at line 2)"),
        ("model: !!python/object/apply:os.system ['true']\n", "a.yaml:1: the tag"),
        ("model: !custom 3\n", "a.yaml:1: the tag !custom is not allowed"),
        ("a: &x {b: 1}\nc:\n  <<: *x\n", "a.yaml:3: merge keys"),
        ("a: &x [*x]\n", "a.yaml:1: an alias stands inside what it stands for"),
        ("1: 2\n", "a.yaml:1: the key 1 is no text"),
        ("? [a, b]\n: 2\n", "a.yaml:1: the key"),
        ("model: [1, 2\n", "is not YAML"),
        ("model: {a: 1\nb: 2\n", "is not YAML"),
        ("\tmodel: 1\n", "a.yaml:1: is not YAML"),
        ("a: 1\n---\nb: 2\n", "is not YAML"),
        ("", "a.yaml: holds nothing"),
        ("# only this\n", "a.yaml: holds nothing"),
        ("- 1\n- 2\n", "a.yaml: holds a list"),
        ("just words\n", "a.yaml: holds one value"),
        ("a: " + "[" * 1500 + "]" * 1500, "a.yaml: holds values nested deeper than 64"),
        ("a: " + "[" * 65 + "]" * 65, "a.yaml:1: holds values nested deeper than 64"),
        ("a: [1, .inf]", "a.yaml:1: '.inf' is no value of a recipe: inf is not a finite number"),
        ("a: .nan", "nan is not a finite number"),
        ("a: 1e999", "inf is not a finite number"),
        ("a: 9223372036854775808", "a whole number takes 64 bits at most"),
        ('a: "b\\0c"', "text holds no character NUL"),
        ("k" * 201 + ": 1", "is longer than 200, so it is no name"),
        ("a: " + "9" * 5000, "a.yaml:1:"),
        ("a: \x07\n", "is not YAML"),
    ],
)
def test_slips_name_file_and_line(write, text, said):
    with pytest.raises(RecipeError) as error:
        read(write("a.yaml", text), "a.yaml")
    assert said in str(error.value)
    assert "\n" not in str(error.value)


def test_an_alias_may_stand_for_a_value(write):
    assert read(write("a.yaml", "a: &x {b: 1}\nc: *x\n")).values == {"a": {"b": 1}, "c": {"b": 1}}


def test_aliases_that_grow_without_bound_are_refused(write):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 10)]
    with pytest.raises(RecipeError, match="holds more than 10000 values"):
        read(write("bomb.yaml", "\n".join(lines)))


def test_files_that_are_no_recipes(tmp_path):
    with pytest.raises(RecipeError, match="there is no such file"):
        read(tmp_path / "none.yaml")
    with pytest.raises(RecipeError, match="is a directory"):
        read(tmp_path)
    (tmp_path / "latin.yaml").write_bytes(b"name: caf\xe9\n")
    with pytest.raises(RecipeError, match=r"is not UTF-8 text \(byte 9\)"):
        read(tmp_path / "latin.yaml")
    (tmp_path / "big.yaml").write_bytes(b"#" * (MAX_BYTES + 1))
    with pytest.raises(RecipeError, match="is larger than"):
        read(tmp_path / "big.yaml")
    (tmp_path / "bom.yaml").write_bytes(b"\xef\xbb\xbfname: a\n")
    assert read(tmp_path / "bom.yaml").values == {"name": "a"}
