"""The report in a real browser, where there is one."""

import json
import re
import shutil
import subprocess

import pytest
from bakeoff.compare.report.html import page
from bakeoff.compare.results import Results

BROWSER = next((path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), "")

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not BROWSER, reason="no chromium here")]

PROBE = """<script>
const all = (selector) => [...document.querySelectorAll(selector)];
const count = (selector) => all(selector).length;
const click = (text) => all("label, button").find((e) => e.textContent.startsWith(text)).click();
const rows = () => all(".sortable tbody tr").map((row) => row.cells[0].textContent);
const found = {plots: count(".plot"), lines: count(".plot .line")};
found.overflow = document.documentElement.scrollWidth - innerWidth;
found.small = all("button, label").filter((e) => e.offsetHeight < 24).length;
click("bits per byte"); found.sorted = rows();
click("attention"); found.hidden = count(".plot .line");
click("FLOPs"); click("log scale"); found.after = count(".plot .line");
const plot = document.querySelector(".plot"); plot.focus();
plot.dispatchEvent(new KeyboardEvent("keydown", {key: "End"}));
found.tip = document.querySelector(".tip").textContent; found.shown = !document.querySelector(".tip").hidden;
document.title = JSON.stringify(found);
</script>"""


def opened(text, tmp_path, width):
    """What the probe saw."""
    path = tmp_path / "report.html"
    errors = "<script>onerror = (m) => { document.documentElement.dataset.error = m; };</script>"
    path.write_text(text.replace("<head>", f"<head>{errors}").replace("</body>", f"{PROBE}</body>"))
    options = ["--headless", "--no-sandbox", "--disable-gpu", f"--window-size={width},1000", "--dump-dom"]
    done = subprocess.run([BROWSER, *options, path.as_uri()], capture_output=True, text=True, timeout=120, check=True)
    assert "data-error" not in done.stdout.partition("<head>")[0]
    title = re.search(r"<title>(.*?)</title>", done.stdout, re.S)
    return json.loads(title[1].replace("&quot;", '"').replace("&amp;", "&"))


@pytest.mark.parametrize("width", [500, 1400])  # a headless window is never narrower than 500
def test_charts_draw_toggle_sort_and_are_read_by_keyboard(made_up, tmp_path, width):
    found = opened(page(Results(*made_up())), tmp_path, width)
    assert found["overflow"] <= 0
    assert (found["plots"], found["lines"], found["hidden"], found["after"]) == (3, 5, 4, 4)
    assert found["small"] == 0
    assert found["sorted"] == ["hybrid", "mamba2", "attention", "sliding_window", "window_of_4"]
    assert found["shown"]
    assert "mamba2" in found["tip"]
    assert "attention" not in found["tip"]


def test_an_empty_comparison_raises_no_error(made_up, tmp_path):
    plan, _ = made_up()
    text = page(Results(plan | {"trials": []}, []))
    path = tmp_path / "empty.html"
    path.write_text(text.replace("<head>", "<head><script>onerror = (m) => { document.title = m; };</script>"))
    options = ["--headless", "--no-sandbox", "--disable-gpu", "--dump-dom", path.as_uri()]
    done = subprocess.run([BROWSER, *options], capture_output=True, text=True, timeout=120, check=True)
    assert "<title>made up: bakeoff</title>" in done.stdout
