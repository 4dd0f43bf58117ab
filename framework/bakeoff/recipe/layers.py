"""Layers laid over each other; each value keeps its source."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from omegaconf import DictConfig, ListConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from bakeoff.errors import RecipeError
from bakeoff.recipe.interpolation import check_interpolations
from bakeoff.recipe.places import at, inner_paths, placed
from bakeoff.recipe.reading import join


class Tree:
    """A recipe in the making: values, and where each of them comes from."""

    def __init__(self) -> None:
        self.config: DictConfig = OmegaConf.create({})
        self.places: dict[str, str] = {}

    def lay(self, values: Mapping[str, Any], places: Mapping[str, str] | str) -> None:
        """Lay a layer on top: mappings merge key by key, unless they name another class; all else replaces.

        Only `imports` add up: what stands below needs its scripts.
        """
        for key, value in values.items():
            if key == "imports" and isinstance(value, list):
                below = OmegaConf.to_container(self.config).get(key) or []  # type: ignore[union-attr]
                value = [*below, *(script for script in value if script not in below)]
            self.set(key, value, places)

    def set(self, path: str, value: Any, places: Mapping[str, str] | str) -> None:
        """Lay one value at a path. Another class in a node drops the arguments of the old one."""
        parent, _, last = path.rpartition(".")
        self._write_out(path if isinstance(value, Mapping) else parent)
        if last == "use" and self._names_another(parent, {"use": value}):
            self._put(parent, {"use": value}, places)
            return
        both = isinstance(value, Mapping) and isinstance(self.raw(path), DictConfig)
        if not both or self._names_another(path, value):
            self._put(path, value, places)
            return
        self.places[path] = placed(places, path)
        for key in sorted(value, key="use".__ne__):
            self.set(join(path, key), value[key], places)

    def resolved(self) -> dict[str, Any]:
        """Plain values, every interpolation filled in."""
        check_interpolations(OmegaConf.to_container(self.config, resolve=False), self.places)
        try:
            return OmegaConf.to_container(self.config, resolve=True)  # type: ignore[return-value]
        except (OmegaConfBaseException, RecursionError) as error:
            path = str(getattr(error, "full_key", "") or "")
            raise RecipeError(f"{path}{at(self.places, path)}: {str(error).partition(chr(10))[0]}") from None

    def raw(self, path: str) -> Any:
        """What was written at a path, interpolations filled in; None where nothing was."""
        return OmegaConf.select(self.config, path, throw_on_resolution_failure=False)

    def copy(self) -> Tree:
        """A tree of its own, for another set of overrides."""
        other = Tree()
        other.config, other.places = copy.deepcopy(self.config), dict(self.places)
        return other

    def _write_out(self, path: str) -> None:
        """Write out every interpolation that a path goes through, since what it stands for is about to differ there."""
        parent: Any = self.config
        inner = ""
        for word in path.split(".") if path else ():
            inner = join(inner, word)
            held = self.raw(inner)
            if not OmegaConf.is_config(held):
                return
            if OmegaConf.is_interpolation(parent, int(word) if isinstance(parent, ListConfig) else word):
                OmegaConf.update(self.config, inner, OmegaConf.to_container(held, resolve=False), merge=False)
            parent = self.raw(inner)

    def _names_another(self, path: str, value: Mapping[str, Any]) -> bool:
        node = self.raw(path) if path else None
        return isinstance(node, DictConfig) and "use" in value and node.get("use") != value["use"]

    def _put(self, path: str, value: Any, places: Mapping[str, str] | str) -> None:
        self._check_lists(path, places)
        held = self.raw(path)
        try:
            OmegaConf.update(self.config, path, value, merge=False, force_add=True)
        except (OmegaConfBaseException, ValueError) as error:
            raise RecipeError(f"{path}{at(places, path)}: {str(error).partition(chr(10))[0]}") from None
        if OmegaConf.is_config(held):
            inside = f"{path}."
            self.places = {p: place for p, place in self.places.items() if not p.startswith(inside)}
        self.places |= {p: placed(places, p) for p in inner_paths(value, path)}

    def _check_lists(self, path: str, places: Mapping[str, str] | str) -> None:
        words = path.split(".")
        for i in range(1, len(words)):
            held = OmegaConf.select(self.config, ".".join(words[:i]), throw_on_resolution_failure=False)
            if isinstance(held, ListConfig) and not (words[i].isdigit() and int(words[i]) < len(held)):
                raise RecipeError(
                    f"{path}{at(places, path)}: {'.'.join(words[:i])} is a list of {len(held)}; its places are "
                    f"{', '.join(map(str, range(len(held)))) or 'none'}, not '{words[i]}'"
                )
