"""`bakeoff index SOURCE`: the database that a recipe retrieves from, made ahead of its first use."""

from __future__ import annotations

import argparse
import time
from pathlib import Path
from typing import TYPE_CHECKING

from bakeoff.errors import UserError
from bakeoff.interfaces.command import Command

if TYPE_CHECKING:
    from bakeoff.data.retrieval.database import Database
    from bakeoff.recipe import Recipe

#: Stands for a source that is no recipe.
RECIPE = "bakeoff:retrieval/index.yaml"


class Index(Command):
    """Cut a corpus into chunks, make the index in which they are looked up, and measure what it finds."""

    help = "chunk and index a corpus to be retrieved from; measures recall against exact search"

    def arguments(self, parser: argparse.ArgumentParser) -> None:
        """The recipe or the texts, overrides, and where to."""
        parser.add_argument(
            "source",
            help=f"a recipe with data.retrieval; or a folder of texts or the name of a corpus, which then stands for "
            f"{RECIPE} with that data.corpus",
        )
        parser.add_argument("overrides", nargs="*", metavar="PATH=VALUE", help="values set by path")
        parser.add_argument("--folder", type=Path, help="where the index goes (default: the cache)")

    def run(self, arguments: argparse.Namespace) -> int:
        """Make the index, and print what it holds, how well it finds, and where it stands."""
        made = asked(arguments.source, arguments.overrides)
        if arguments.folder is not None:
            made = made.override({"data.retrieval.index": str(arguments.folder.expanduser().absolute())})
        database = made.build("data").prepare().retrieved.database
        for title, told in rows(database):
            print(f"{title:<11} {told}", flush=True)
        return 0


def asked(source: str, overrides: list[str]) -> Recipe:
    """The recipe that a source stands for; `UserError` where it retrieves nothing."""
    from bakeoff.recipe import recipe
    from bakeoff.registry import names

    node = None
    known = [entry.name for entry in names("corpus")]
    if Path(source).is_dir():
        node = {"use": "text_files", "path": str(Path(source).absolute())}
    elif source in known:
        node = {"use": source}
    elif not (source.startswith("bakeoff:") or Path(source).is_file()):
        raise UserError(f"{source} is no recipe, no folder of texts, and no corpus; corpora: {', '.join(known)}")
    made = recipe(source, overrides) if node is None else recipe(RECIPE, {"data.corpus": node}).override(overrides)
    if made.check().tree["data"].get("retrieval") is None:
        raise UserError(
            f"{source}: data.retrieval is not set, so that there is nothing to index; write data.retrieval: "
            "{retriever: {use: flat, embedder: {use: static}}}"
        )
    return made


def rows(database: Database) -> list[tuple[str, str]]:
    """What is printed, once the index is made."""
    from bakeoff.data.retrieval.lookup import Lookup
    from bakeoff.data.retrieval.manifest import file_sizes
    from bakeoff.data.retrieval.recall import recall

    folder, chunks = database.folder, len(database.table)
    begun = folder.with_name(folder.name + ".partial").exists()
    started = time.monotonic()
    built = database.build(folder, progress=True)
    took = time.monotonic() - started
    speed = f"{chunks / took:,.0f} chunks a second" if not begun else "the rest of what an earlier call began"
    share, sample = recall(Lookup(database))
    k = database.retrieval.k
    return [
        ("chunks", f"{chunks:,} of {database.retrieval.chunk} tokens"),
        ("documents", f"{database.about['documents']:,}"),
        ("made", speed if built else "by an earlier call"),
        ("bytes", f"{sum(file_sizes(folder).values()):,}"),
        (f"recall@{k}", f"{share:.3f} of what exact search finds, on {sample} chunks"),
        ("folder", str(folder)),
        ("in a recipe", f"data.retrieval.index: {folder}"),
    ]
