"""The report as one HTML page that needs no network; scripts add to it, and it can be read without."""

from __future__ import annotations

from importlib.resources import files

from bakeoff.compare.report import facts, sections
from bakeoff.compare.report.charts import chart_data, packed
from bakeoff.compare.report.marks import definitions
from bakeoff.compare.report.markup import Html, element, embedded, join
from bakeoff.compare.report.pages import plugin_pages
from bakeoff.compare.report.verdicts import verdict_section
from bakeoff.compare.results import Results

#: In the order in which they run.
SCRIPTS = ("scales.js", "charts.js", "curves.js", "tradeoffs.js", "page.js")


def page(results: Results) -> str:
    """The whole page."""
    name, pages = results.plan["name"], plugin_pages(results)
    body = join(
        element("a", "To the verdict", class_="skip", href="#verdict"),
        definitions(),
        _header(results),
        element(
            "main",
            verdict_section(results),
            sections.table(results),
            sections.failures(results),
            sections.curves(results),
            sections.tradeoffs(results),
            sections.tasks(results, pages.tasks),
            sections.recipes(results),
            sections.tuning(results),
            facts.method(results),
            facts.trials(results),
            facts.environment(results),
            facts.repeat(results),
            *pages.sections,
        ),
        embedded(packed(chart_data(results)), "data"),
        *(Html(f"<script>{_asset(script)}</script>") for script in SCRIPTS),
    )
    head = join(
        Html('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'),
        Html('<meta name="color-scheme" content="light dark">'),
        element("title", f"{name}: bakeoff"),
        Html(f"<style>{_asset('page.css')}</style>"),
    )
    return f'<!doctype html>\n<html lang="en"><head>{head}</head><body>{body}</body></html>\n'


def _header(results: Results) -> Html:
    plan = results.plan
    return element(
        "header",
        element("p", "bakeoff comparison", class_="eyebrow"),
        element("h1", plan["name"]),
        element("p", facts.summary(results), class_="lead"),
    )


def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")
