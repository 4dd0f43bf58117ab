"""Pages that stand at the top of the repository, where readers of the source expect them."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path, PurePosixPath

#: Title -> page of the site, after the home page.
PAGES = {
    "Benchmarks": "benchmarks.md",
    "Benchmarks on one GPU": "benchmarks_gpu.md",
    "Changelog": "changelog.md",
    "Contributing": "contributing.md",
}

#: File of the repository -> page of the site; docs/ itself is the site's root.
SOURCES = {
    "README.md": "index.md",
    "benchmarks/README.md": "benchmarks.md",
    "benchmarks/gpu/README.md": "benchmarks_gpu.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
}

#: Files that pages link to, offered as they are.
ATTACHED = {"NOTICE": "NOTICE.txt", "CITATION.cff": "CITATION.cff", "LICENSE": "LICENSE.txt"}

_TARGET = re.compile(r"(\]\()([^)#\s]+)((?:#[^)\s]*)?\))")


def pages(root: Path) -> Mapping[str, str]:
    """Each page's text, its links led to pages of the site."""
    found = {uri: relinked((root / source).read_text(), source, uri) for source, uri in SOURCES.items()}
    return {**found, "index.md": f"---\nhide: [navigation]\n---\n\n{found['index.md']}"}


def attachments(root: Path) -> Mapping[str, Path]:
    """Files that are copied."""
    return {uri: root / name for name, uri in ATTACHED.items()}


def relinked(text: str, source: str, uri: str) -> str:
    """The text with the links of repository file `source` made those of page `uri`; mkdocs judges the others."""
    known = {**SOURCES, **ATTACHED}

    def lead(found: re.Match[str]) -> str:
        target = found[2]
        path = os.path.normpath(PurePosixPath(source).parent / target)
        place = known.get(path) or (path.removeprefix("docs/") if path.startswith("docs/") else None)
        if target.startswith("http") or place is None:
            return found[0]
        return found[1] + os.path.relpath(place, PurePosixPath(uri).parent) + found[3]

    return _TARGET.sub(lead, text)
