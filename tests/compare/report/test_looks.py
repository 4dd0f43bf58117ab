"""How the report looks in a real browser, where there is one: on screens, on paper, without scripts."""

import itertools

import pytest
from bakeoff.compare.results import Results

pytestmark = pytest.mark.slow

ENTER, SPACE, TAB, RIGHT = ("Enter", 13, "\r"), (" ", 32, " "), ("Tab", 9), ("ArrowRight", 39)


@pytest.mark.parametrize("width", [400, 1400])
def test_nothing_overflows_overlaps_or_is_cut_off(results, show, width):
    tab = show(results, width=width)
    tab.evaluate("probe.all('details').forEach((d) => { d.open = true; })")
    assert tab.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert tab.evaluate("probe.overlaps()") == []
    assert tab.evaluate("probe.clipped()") == []
    assert (
        tab.evaluate(
            "probe.all('button, label, summary').filter((e) => e.checkVisibility() && e.offsetHeight < 24).length"
        )
        == 0
    )


@pytest.mark.parametrize("dark", [False, True])
def test_text_and_marks_stand_out(results, show, dark):
    # WCAG 2.2: 4.5 for text, 3 for graphical objects
    tab = show(results, dark=dark)
    assert (tab.evaluate("probe.behind(document.body)[0]") < 60) is dark
    tab.evaluate("probe.all('details').forEach((d) => { d.open = true; }); probe.all('[data-toggle]')[0].click()")
    texts, marks = tab.evaluate("probe.textContrast()"), tab.evaluate("probe.markContrast()")
    assert texts["n"] > 200
    assert texts["least"][0] >= 4.5, texts
    assert marks["n"] > 40
    assert marks["least"][0] >= 3.0, marks


@pytest.mark.parametrize("width", [400, 1400])
def test_values_are_read_inside_the_page(sixty, show, width):
    tab = show(sixty, width=width)
    for chart, key in itertools.product(range(3), ("Home", "PageDown", "End")):
        tab.evaluate(f"probe.all('.plot')[{chart}].focus()")
        tab.press(key)
        assert tab.evaluate(f"probe.all('.tip')[{chart}].checkVisibility()")
        assert tab.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
        box = tab.evaluate(f"probe.all('.tip')[{chart}].getBoundingClientRect().toJSON()")
        assert box["left"] >= 0
        assert box["right"] <= width


def test_page_is_read_without_scripts(results, show):
    tab = show(results, scripts=False, width=400)
    arms = [i for i, arm in enumerate(results.arms) if arm.done()]
    assert tab.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert tab.evaluate("probe.overlaps()") == []
    assert tab.evaluate("probe.clipped()") == []
    curves, *tradeoffs = drawn = tab.evaluate("probe.charts()")
    assert curves["lines"] == arms
    assert [chart["marks"] for chart in tradeoffs] == [arms, arms]
    assert all(chart["finite"] and chart["inside"] for chart in drawn)
    assert {"tokens", "validation, bits per byte"} <= set(curves["texts"])
    assert tab.evaluate("probe.textContrast().least[0]") >= 4.5
    said = tab.evaluate("document.body.innerText")
    assert not any(word in said for word in ("Press a heading", "Hide all", "Copy", "arrow keys"))


@pytest.mark.parametrize("dark", [False, True])
def test_paper_gets_all_of_it_in_dark_on_white(results, show, dark):
    tab = show(results, width=688, media="print", dark=dark)  # A4 without its margins
    assert tab.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert tab.evaluate("probe.behind(document.body)") == [255, 255, 255]
    assert tab.evaluate("probe.textContrast().least[0]") >= 4.5
    assert tab.evaluate("probe.all('.controls, .scripted, [data-copy]').filter((e) => e.checkVisibility()).length") == 0
    assert tab.evaluate(
        "probe.all('[data-toggle], details tbody tr').every((e) => e.checkVisibility({contentVisibilityAuto: true}))"
    )
    assert len(tab.send("Page.printToPDF", printBackground=False)["data"]) > 10_000


def test_nothing_moves_for_who_asked_for_stillness(made_up, show):
    tab = show(Results(*made_up()), reduced=True)
    tab.evaluate("probe.all('[data-toggle]')[0].click(); probe.all('.sortable button')[1].click()")
    lasting = "const s = getComputedStyle(e); return /[1-9]/.test(s.transitionDuration + s.animationDuration);"
    moving = f"probe.all('*').filter((e) => {{ {lasting} }})"
    assert tab.evaluate(f"document.getAnimations().length + {moving}.length") == 0


def test_the_probe_sees_what_is_wrong(made_up, show):
    tab = show(Results(*made_up()))
    faults = ".note { color: #8a8a8a } .whisker { opacity: 0.4 } .plot .tag { font-size: 40px }"
    faults += "h1 { width: 3em; overflow: hidden; white-space: nowrap }"
    tab.evaluate(f"document.head.append(Object.assign(document.createElement('style'), {{textContent: {faults!r}}}))")
    assert tab.evaluate("probe.textContrast().least[0]") < 4.5
    assert tab.evaluate("probe.markContrast().least[0]") < 3.0
    assert tab.evaluate("probe.overlaps()")
    assert "made up" in tab.evaluate("probe.clipped()")
