"""`bakeoff new KIND NAME`: an installable package with one component, its test and a recipe."""

from __future__ import annotations

import argparse
from importlib.resources import files
from pathlib import Path
from string import Template

from bakeoff.errors import RegistryError, UserError
from bakeoff.interfaces.command import Command
from bakeoff.registry import API, names

#: Kinds that there is a template for.
KINDS = ("mixer", "feed_forward")


def write_package(kind: str, name: str, folder: Path) -> list[Path]:
    """Write the package into `folder`, which must not exist; returns the files.

    Raises `UserError` if the name is taken or is no snake_case name, or if the folder exists.
    """
    if kind not in KINDS:
        raise UserError(f"there is no template for kind '{kind}'; there is one for: {', '.join(KINDS)}")
    if not (name.isidentifier() and name == name.lower() and not name.startswith("_")):
        raise UserError(f"'{name}' is not a snake_case name; an example: my_idea")
    taken = [entry for entry in names() if entry.name == name]
    if taken:
        raise RegistryError(f"the name '{name}' is taken by {taken[0].package} ({taken[0].kind}); choose another")
    if folder.exists():
        raise UserError(f"{folder} exists; choose another name or --folder")
    class_name = "".join(word.capitalize() for word in name.split("_"))
    values = {
        "api": str(API),
        "class_name": class_name,
        "kind": kind,
        "name": name,
        "package": f"bakeoff_{name}",
        "project": f"bakeoff-{name.replace('_', '-')}",
    }
    sources = files("bakeoff.cli") / "template"
    layout = {
        "pyproject.toml": "pyproject.toml.txt",
        "README.md": "README.md.txt",
        f"{values['package']}/__init__.py": "init.py.txt",
        f"{values['package']}/{name}.py": f"{kind}.py.txt",
        "tests/test_laws.py": "test_laws.py.txt",
        "recipe.yaml": f"{kind}_recipe.yaml.txt",
    }
    written = []
    for target, source in layout.items():
        path = folder / target
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(Template((sources / source).read_text(encoding="utf-8")).substitute(values), encoding="utf-8")
        written.append(path)
    return written


class New(Command):
    """Write an installable package: the class, its entry point, its conformance test, a recipe, a README."""

    help = "start a package with a component of your own"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """Kind and name of the component."""
        parser.add_argument("kind", choices=KINDS)
        parser.add_argument("name", help="snake_case, unique over all components")
        parser.add_argument("--folder", type=Path, help="where to write (default: bakeoff-NAME)")

    def run(self, arguments: argparse.Namespace) -> int:
        """Write the package and say what to do next."""
        folder = arguments.folder or Path(f"bakeoff-{arguments.name.replace('_', '-')}")
        for path in write_package(arguments.kind, arguments.name, folder):
            print(path)
        print(f"\nnext:  pip install -e {folder}  &&  pytest {folder}  &&  bakeoff fit {folder / 'recipe.yaml'}")
        return 0
