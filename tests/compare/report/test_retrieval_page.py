"""The page of retrieval: all arms that were tried side by side, why others were not, and texts with what was found."""

import re

import pytest
from bakeoff.compare.report.html import page
from bakeoff.compare.report.retrieval import RetrievalGains
from bakeoff.compare.results import Results
from bakeoff.evaluate.tasks.common_runs import common_run
from bakeoff.evaluate.tasks.passages import Neighbour, Passage
from bakeoff.evaluate.tasks.retrieval import Retrieval
from bakeoff.evaluate.tasks.retrieval_html import page as shown
from bakeoff.parts.tokenizers.byte import ByteTokenizer

LABEL = "retrieval(k=[1, 4])"
ARMS = ("sliding_window", "mamba2", "hybrid")
OVERLAPS = (0.125, 0.25, 0.5, 0.75, 1.0)
TITLE = "Retrieval"


def bucket(above, most, gain, share):
    return {"above": above, "most": most, "chunks": 40, "share": share, "found": 2.0 - gain, "without": 2.0}


def told(arm, seed):
    """Gains of 0.1, 0.2 and 0.3, less 0.01 on each seed, which grow with the overlap."""
    gain = 0.1 * (arm + 1) - 0.01 * seed
    up_to = [bucket(-1.0, most, gain * most, 0.2 * (i + 1)) for i, most in enumerate(OVERLAPS)]
    return {
        "chunk": 32,
        "chunks": 200,
        "database": 12345,
        "k": 2,
        "candidates": 10,
        "pieces": ["documents", 31],
        "bits": {"found": 2.0 - gain, "none": 2.0, "shuffled": 2.0, "random": 2.01},
        "gains": {"none": [gain, gain - 0.02, gain + 0.02], "shuffled": [gain, 0, 1], "random": [gain + 0.01, 0, 1]},
        "up_to": up_to,
        "between": up_to[:2],
        "by_k": [[1, 2.0 - gain / 2], [2, 2.0 - gain], [4, 1.9 - gain]],
        "by_share": [],
    }


def passage(what, text, found, losses):
    tokenizer = ByteTokenizer()
    ids = tokenizer.encode(text)
    neighbours = []
    for number, (neighbour, follows) in enumerate(found):
        held = tokenizer.encode(neighbour + follows)
        neighbours.append(Neighbour(310 + number, 0.71 - number / 9, held, common_run(ids, held)))
    without = [4.0 + i % 3 for i in range(len(ids))]
    return Passage(what, tokenizer.encode("The state of our "), ids, losses(without), without, 0.4, neighbours)


def text_of(arm, seed):
    text = "Union, my <b>fellow</b> citizens, is strong & at peace."
    found = [("We thank the Union,", " my <b>fellow citizens, of"), ("Peace <script>", " & war were strong.")]
    texts = [
        passage(
            "The largest gain", text, found, lambda bits: [b - (2.5 if 10 < i < 30 else 0) for i, b in enumerate(bits)]
        ),
        passage("The largest loss", text[::-1], found[1:], lambda bits: [b + (i % 7) / 4 for i, b in enumerate(bits)]),
    ]
    return shown(told(arm, seed), texts, ByteTokenizer())


@pytest.fixture
def tried(made_up):
    """Three of five arms read neighbours; two said why they were not tried."""
    plan, trials = made_up(tuned=False)
    plan["tasks"] = {LABEL: {name: figure._asdict() for name, figure in Retrieval(k=[1, 4]).figures.items()}}
    for trial in trials:
        if trial.arm in ARMS:
            arm = ARMS.index(trial.arm)
            trial.result["drawn"] = {LABEL: told(arm, trial.seed)}
            trial.result["shown"] = {LABEL: text_of(arm, trial.seed)}
            trial.result["measures"] |= {f"{LABEL}.gain": 0.1 * (arm + 1) - 0.01 * trial.seed}
        elif trial.result:
            trial.result["unmeasured"][LABEL] = "no part of the model reads what is retrieved"
    return Results(plan, trials)


def section(html, title):
    """The text of a section."""
    (found,) = [part for part in html.split("<section")[1:] if f"<h2>{title}</h2>" in part]
    return found.partition("</section>")[0]


def rows(html, label):
    """The cells of a table, without markup."""
    (table,) = re.findall(rf'aria-label="{re.escape(label)}">(.*?)</table>', html, re.S)
    return [re.findall(r"<td[^>]*>(.*?)</td>", row) for row in table.split("<tr>")[2:]]


def test_there_is_no_page_where_no_arm_was_tried(made_up):
    results = Results(*made_up())
    assert RetrievalGains().html(results) == ""
    assert f"<h2>{TITLE}</h2>" not in page(results)


def test_gains_are_means_over_seeds_with_intervals(tried):
    found = rows(section(page(tried), TITLE), "Gains by what is shown")
    # seeds give 0.10, 0.09 and 0.08: t of two degrees of freedom, 4.303, times 0.01 over the root of three
    assert found[0] == [
        "1.9100 ±0.0248",
        "2.0000 ±0.0000",
        "+0.0900 ±0.0248",
        "+0.0900 ±0.0248",
        "+0.1000 ±0.0248",
        "+0.0800 to +0.1200",
    ]
    assert [row[2] for row in found] == ["+0.0900 ±0.0248", "+0.1900 ±0.0248", "+0.2900 ±0.0248"]


def test_gains_by_overlap(tried):
    html = section(page(tried), TITLE)
    found = rows(html, "Gain by overlap")
    assert found[0] == ["20.0 %", "40.0 %", "60.0 %", "80.0 %", "100.0 %"]
    assert [cell.split()[0] for cell in found[3]] == ["+0.0362", "+0.0725", "+0.1450", "+0.2175", "+0.2900"]
    charts = html.split("<figure")[1:]
    assert [chart.count('class="line"') for chart in charts] == [3, 6, 3]
    assert [chart.count('class="band"') for chart in charts] == [3, 3, 3]
    assert [chart.count('stroke-dasharray="2 3"') for chart in charts] == [0, 3, 0]
    assert "by neighbours of each chunk" in charts[2]


def test_a_bucket_that_one_seed_lacks_is_told_of_the_others(tried):
    first = next(trial for trial in tried.trials if trial.arm == "hybrid")
    del first.result["drawn"][LABEL]["up_to"][0]
    found = rows(section(page(tried), TITLE), "Gain by overlap")
    assert found[3][0].startswith("+0.0356")  # of 0.28 and 0.29, an eighth


def test_who_was_not_tried_is_told_once(tried):
    html = section(page(tried), TITLE)
    assert html.count("Not tried: attention, window_of_4 (no part of the model reads what is retrieved).") == 1


def test_texts_stand_here_and_only_here(tried):
    html = page(tried)
    assert html.count(text_of(2, 0)) == 1
    assert [text for text in re.findall("<summary>(.*?)</summary>", section(html, TITLE)) if "seed" in text] == [
        f"{arm}, seed 0: texts and what was found for them" for arm in ARMS
    ]
    assert f"under “{TITLE}”" in section(html, f"Task {LABEL}")


@pytest.mark.slow
@pytest.mark.parametrize("dark", [False, True])
@pytest.mark.parametrize("width", [400, 1400])
def test_it_can_be_read_in_a_browser(tried, show, width, dark):
    tab = show(tried, width=width, dark=dark)
    tab.evaluate("probe.all('details').forEach((d) => { d.open = true; })")
    assert tab.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0
    assert tab.evaluate("probe.overlaps()") == []
    assert tab.evaluate("probe.clipped()") == []
    assert tab.evaluate("probe.textContrast().least[0]") >= 4.5
    assert tab.evaluate("probe.markContrast().least[0]") >= 3.0
    assert tab.evaluate(f"document.body.innerText.includes('{TITLE}')")
