"""The page of mixtures: there where an arm has one; as recorded, and with what the task shows."""

import re

import pytest
import torch
from bakeoff.compare.report import pages
from bakeoff.compare.report.html import page
from bakeoff.compare.report.mixtures import MixturesPage
from bakeoff.compare.results import Results
from bakeoff.evaluate.tasks.routed import Choices, Text
from bakeoff.evaluate.tasks.routing import RoutingTask, classes_of
from bakeoff.evaluate.tasks.routing import told as of_layer
from bakeoff.evaluate.tasks.routing_html import shown
from bakeoff.evaluate.tasks.token_classes import CLASSES
from bakeoff.parts.tokenizers.byte import ByteTokenizer

TITLE = "Mixtures of experts"


def task_shows(experts):
    """Of a text whose bytes go each to an expert of its own, by remainder."""
    tokenizer = ByteTokenizer()
    tokens = torch.tensor(tokenizer.encode("The state of our {Union} is 100 % strong.\n" * 9))
    first = tokens % experts
    choices = Choices(experts, first[:, None], first, torch.zeros_like(first), None)
    text = Text(tokens, torch.arange(len(tokens)) > 0, [0], {str(layer): choices for layer in range(4)}, ["9"])
    classes = classes_of(tokens, tokenizer)
    layers = {place: of_layer(text, choices, classes, 6) for place in text.layers}
    return shown(text, layers, torch.bincount(classes, minlength=len(CLASSES)), [slice(0, 200)], tokenizer)


SHOWN = task_shows(40)


def recorded(seed, experts):
    """Recorded rows of two layers at the steps of the made-up curve."""
    steps = list(range(10, 301, 10))
    series = {
        f"{layer}.feed_forward.{name}": [scale * (1 + layer + seed) / step for step in steps]
        for layer in (0, 1)
        for name, scale in (("max_violation", 30.0), ("entropy", 10.0), ("dropped", 0.0))
    }
    last = {f"{layer}.feed_forward.load": [1 / experts] * experts for layer in (0, 1)}
    return {"steps": steps, "series": series, "last": last}


@pytest.fixture
def mixed(made_up):
    """Five arms, of which the second and the third have mixtures; the task was tried at the second."""
    plan, trials = made_up(tuned=False)
    plan["tasks"] = {"routing(tokens=512)": {n: f._asdict() for n, f in RoutingTask.figures.items()}}
    for trial in trials:
        if trial.arm in ("sliding_window", "mamba2"):
            trial.result["layers"] = recorded(trial.seed, 8 if trial.arm == "mamba2" else 40)
        if trial.arm == "sliding_window":
            trial.result["measures"]["routing(tokens=512).max_violation"] = 0.5 + trial.seed
            trial.result["shown"] = {"routing(tokens=512)": SHOWN}
        else:
            trial.result["unmeasured"]["routing(tokens=512)"] = "Decoder has no router"
    return Results(plan, trials)


def section(html, title):
    """The text of a section."""
    (found,) = [part for part in html.split("<section")[1:] if f"<h2>{title}</h2>" in part]
    return found.partition("</section>")[0]


def test_there_is_no_page_where_no_arm_has_a_mixture(made_up):
    results = Results(*made_up())
    assert MixturesPage().html(results) == ""
    assert TITLE not in page(results)


def test_what_the_task_shows_stands_once(mixed):
    html = page(mixed)
    assert html.count(SHOWN) == 1
    mixtures = section(html, TITLE)
    assert SHOWN in mixtures
    assert "sliding_window, seed 0" in mixtures
    assert f"under “{TITLE}”" in section(html, "Task routing(tokens=512)")


def test_an_arm_that_was_not_tried_shows_what_training_recorded(mixed):
    mixtures = section(page(mixed), TITLE)
    own = mixtures[mixtures.index("mamba2, seed 0") :]
    assert own.count("<tr>") == 3
    assert own.count("<td>1.00</td>") == 16
    assert "measure: [routing]" in own
    assert "hybrid" not in mixtures


def test_curves_are_of_what_was_recorded_and_is_not_zero(mixed):
    mixtures = section(page(mixed), TITLE)
    assert re.findall(r"<figcaption>(.*?)[:,<]", mixtures) == ["maximum violation", "entropy of the router"]
    assert mixtures.count('class="band"') == 4


def test_a_page_that_fails_says_so_and_leaves_the_task_its_own_section(mixed, monkeypatch):
    def fail(self, comparison):
        raise RuntimeError("no ink")

    monkeypatch.setattr(MixturesPage, "html", fail)
    html = page(mixed)
    assert "The page &#x27;mixtures&#x27; could not be made: RuntimeError: no ink" in html
    assert SHOWN in section(html, "Task routing(tokens=512)")


def test_pages_without_a_body_are_left_out(made_up, monkeypatch):
    monkeypatch.setattr(MixturesPage, "html", lambda self, comparison: "")
    found = pages.plugin_pages(Results(*made_up()))
    assert found.sections == []
    assert found.tasks == {}


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [400, 1400])
def test_it_can_be_read_in_a_browser(mixed, show, width, dark):
    tab = show(mixed, width=width, dark=dark)
    tab.evaluate("probe.all('details').forEach((d) => { d.open = true; })")
    assert tab.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert tab.evaluate("probe.overlaps()") == []
    assert tab.evaluate("probe.textContrast().least[0]") >= 4.5
    assert tab.evaluate(f"document.body.innerText.includes('{TITLE}')")
