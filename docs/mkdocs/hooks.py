"""What mkdocs asks: the pages that no file holds, and the navigation over all of them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import api
import commands
import kinds
import notebooks
import repository
from mkdocs.structure.files import File, Files

#: Docs' own folder, and the repository's.
DOCS = Path(__file__).parent.parent
ROOT = DOCS.parent

_execute = True


def on_startup(*, command: str, dirty: bool) -> None:
    """A build runs the notebooks; `mkdocs serve`, for writing, shows their code."""
    global _execute
    _execute = command != "serve"


def on_config(config: Any) -> Any:
    """The navigation, of which the kinds are the registry's."""
    config.nav = [
        {"Home": "index.md"},
        {
            "Guides": [
                {"Tutorial": "tutorial.md"},
                {"Recipes": "recipes.md"},
                {"Comparing": "comparing.md"},
                {"Many devices": "parallel.md"},
                {"Long contexts": "long_context.md"},
                {"Retrieval": "retrieval.md"},
                {"Answers and feedback": "feedback.md"},
                {"Contracts": "contracts.md"},
                *({page.title: page.uri} for page in notebooks.sources(DOCS)),
            ]
        },
        {"Components": ["kinds/index.md", *({kind: f"kinds/{kind}.md"} for kind in kinds.all_kinds())]},
        {"Reference": [{"Commands": "commands.md"}, *({page.title: page.uri} for page in api.PAGES)]},
        {"Project": [{title: uri} for title, uri in repository.PAGES.items()]},
    ]
    return config


def on_page_markdown(markdown: str, *, page: Any, **_: Any) -> str:
    """Links to notebooks lead to their pages, but for the page's own, which is to be downloaded."""
    own = page.file.src_uri.startswith("notebooks/")
    return markdown if own else re.sub(r"\]\((\S+)\.ipynb\)", r"](\1.md)", markdown)


def on_files(files: Files, config: Any) -> Files:
    """Adds the generated pages."""
    pages = {
        **repository.pages(ROOT),
        **kinds.pages(),
        **api.pages(),
        "commands.md": commands.page(),
        **notebooks.pages(DOCS, execute=_execute),
    }
    for uri, content in pages.items():
        files.append(File.generated(config, uri, content=content))
    for uri, path in repository.attachments(ROOT).items():
        files.append(File.generated(config, uri, abs_src_path=str(path)))
    return files
