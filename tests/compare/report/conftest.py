"""A headless Chromium, and comparisons to show in it.

It is spoken to over its DevTools pipe: https://chromedevtools.github.io/devtools-protocol.
"""

import base64
import dataclasses
import fcntl
import itertools
import json
import os
import random
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest
from bakeoff.compare.report.html import page
from bakeoff.compare.results import Results
from bakeoff.compare.store import Store

CHROMIUM = next(
    (path for name in ("chromium", "chromium-browser", "google-chrome") if (path := shutil.which(name))), ""
)
FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-dev-shm-usage"]
NASTY = "<script>document.title='broken'</script><img src=x onerror=document.title='broken'>\"'&`"
SILENCE = 60  # seconds after which a browser that says nothing is given up


def high(file):
    """The same open file under a number that leaves 3 and 4, where Chromium listens and talks, free."""
    moved = fcntl.fcntl(file, fcntl.F_DUPFD_CLOEXEC, 10)
    os.close(file)
    return moved


class Browser:
    """One process; messages are JSON, each ended by a zero byte."""

    def __init__(self, profile):
        reads, self.out = os.pipe()
        self.into, writes = os.pipe()
        theirs, ours = high(reads), high(writes)
        become = f"import os, sys; os.dup2({theirs}, 3); os.dup2({ours}, 4); os.execv(sys.argv[1], sys.argv[1:])"
        flags = [*FLAGS, "--remote-debugging-pipe", f"--user-data-dir={profile}"]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(
            [sys.executable, "-c", become, CHROMIUM, *flags], pass_fds=(theirs, ours), start_new_session=True, **quiet
        )
        os.close(theirs)
        os.close(ours)
        self.buffer, self.count, self.events = b"", 0, []

    def send(self, method, session=None, **params):
        """Send a command and wait for its answer; events that come meanwhile are kept."""
        self.count += 1
        message = {"id": self.count, "method": method, "params": params}
        message |= {"sessionId": session} if session else {}
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while True:
            answer = self.receive()
            if answer.get("id") == self.count:
                assert "error" not in answer, (method, answer)
                return answer["result"]
            self.events.append(answer)

    def receive(self):
        """The next message."""
        while b"\0" not in self.buffer:
            ready, _, _ = select.select([self.into], [], [], SILENCE)
            assert ready, f"the browser was silent for {SILENCE} seconds"
            chunk = os.read(self.into, 1 << 20)
            assert chunk, "the browser is gone"
            self.buffer += chunk
        message, _, self.buffer = self.buffer.partition(b"\0")
        return json.loads(message)

    def wait(self, method, session, since):
        """Until a page has sent an event of a kind, counted from that many events on."""
        while not any(e.get("method") == method and e.get("sessionId") == session for e in self.events[since:]):
            self.events.append(self.receive())

    def close(self):
        """End it."""
        os.write(self.out, b'{"id": 0, "method": "Browser.close"}\0')
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        os.close(self.out)
        os.close(self.into)


class Tab:
    """A page of the browser, of a width, in a colour scheme, with or without scripts."""

    def __init__(self, browser, width=1400, dark=False, scripts=True, media="", reduced=False):
        self.browser, self.scripts = browser, scripts
        target = browser.send("Target.createTarget", url="about:blank")["targetId"]
        self.target, self.session = (
            target,
            browser.send("Target.attachToTarget", targetId=target, flatten=True)["sessionId"],
        )
        for domain in ("Page", "Runtime", "Log"):
            self.send(f"{domain}.enable")
        self.send("Emulation.setDeviceMetricsOverride", width=width, height=900, deviceScaleFactor=1, mobile=False)
        self.send("Emulation.setScriptExecutionDisabled", value=not scripts)
        features = {"prefers-color-scheme": "dark" if dark else "light"}
        features |= {"prefers-reduced-motion": "reduce"} if reduced else {}
        listed = [{"name": name, "value": value} for name, value in features.items()]
        self.send("Emulation.setEmulatedMedia", media=media, features=listed)

    def send(self, method, **params):
        """A command to this page."""
        return self.browser.send(method, self.session, **params)

    def open(self, path):
        """Load a file; returns the seconds until it was loaded, run and drawn."""
        begun = time.perf_counter()
        known = len(self.browser.events)
        self.send("Page.navigate", url=path.as_uri())
        self.browser.wait("Page.loadEventFired", self.session, known)
        if self.scripts:
            self.evaluate("new Promise(r => requestAnimationFrame(() => requestAnimationFrame(r)))")
        return time.perf_counter() - begun

    def evaluate(self, expression):
        """The value of an expression in the page, which may be a promise of one."""
        asked = {"expression": expression, "returnByValue": True, "awaitPromise": True}
        answer = self.send("Runtime.evaluate", **asked)
        assert "exceptionDetails" not in answer, answer["exceptionDetails"]
        return answer["result"].get("value")

    def press(self, key, code=0, text=""):
        """Press and release a key."""
        pressed = {"key": key, "code": key, "windowsVirtualKeyCode": code} | ({"text": text} if text else {})
        self.send("Input.dispatchKeyEvent", type="keyDown", **pressed)
        self.send("Input.dispatchKeyEvent", type="keyUp", **pressed)

    def complaints(self):
        """What the console and the browser's log hold: errors, warnings, exceptions."""
        found = []
        for event in self.browser.events:
            if event.get("sessionId") == self.session:
                method, params = event["method"], event["params"]
                if method == "Runtime.exceptionThrown":
                    found.append(params["exceptionDetails"])
                elif method == "Runtime.consoleAPICalled":
                    found.append(params["args"])
                elif method == "Log.entryAdded":
                    found.append(params["entry"])
        return found

    def picture(self, path):
        """The whole page as a PNG."""
        size = self.send("Page.getLayoutMetrics")["cssContentSize"]
        clip = {"x": 0, "y": 0, "width": size["width"], "height": size["height"], "scale": 1}
        answer = self.send("Page.captureScreenshot", format="png", captureBeyondViewport=True, clip=clip)
        path.write_bytes(base64.b64decode(answer["data"]))

    def close(self):
        """Close the page."""
        self.browser.send("Target.closeTarget", targetId=self.target)


@pytest.fixture(scope="session")
def browser(tmp_path_factory):
    """One Chromium for all tests."""
    if not CHROMIUM:
        pytest.skip("no chromium here")
    running = Browser(tmp_path_factory.mktemp("chromium"))
    yield running
    running.close()


@pytest.fixture
def tab(browser):
    """Opens pages: `tab(path, width=…, dark=…, scripts=…)`; at the end no page may have complained."""
    opened = []

    def make(path, **options):
        opened.append(Tab(browser, **options))
        opened[-1].open(path)
        return opened[-1]

    yield make
    complaints = [said for each in opened for said in each.complaints()]
    for each in opened:
        each.close()
    assert complaints == []


@pytest.fixture
def nasty():
    """A name that would break a page that took it for markup."""
    return NASTY


@pytest.fixture
def sixty(made_up, tmp_path):
    """A comparison of 20 arms and 3 seeds that learned for 300 steps, through a store on disk."""
    folder = tmp_path / "store"
    draw = random.Random(0)
    names = [f"arm_{i:02d}" for i in range(18)] + ["short", "an_arm_with_quite_a_long_name_" * 3]
    plan, trials = made_up({name: 2.2 + draw.gauss(0.0, 0.05) for name in names}, tuned=False)
    for arm in plan["arms"]:
        arm["state_bytes"] = draw.randrange(1000, 100_000)
    store = Store(folder)
    store.note("plan", plan)
    for trial in trials:
        measures = {"throughput.tokens_per_second": draw.uniform(1e4, 6e4), "memory.peak_bytes": draw.uniform(3e8, 6e8)}
        last = trial.result["measures"]["validation.bits_per_byte"]
        curve = [_step(step, last, trial.arm == names[3]) for step in range(1, 301)]
        store.add(dataclasses.replace(trial, state="waiting", result=None))
        store.finish(trial.name, trial.result | {"curve": curve, "measures": trial.result["measures"] | measures}, None)
    store.close()
    store = Store.open(folder)
    results = Results.of(store)
    store.close()
    return results


def _step(step, last, slow):
    bits = last + 6.0 * (step + 1) ** -0.7 - 6.0 * 301**-0.7
    at = {"step": step, "tokens": 16384 * step, "seconds": step * (0.9 if slow else 0.61), "flops": 1.234567e11 * step}
    return at | {"loss": 2.1 * bits, "bits_per_byte": bits if step % 10 == 0 else None}


@pytest.fixture
def failing(made_up):
    """One arm failed wholly and one on one seed, for a long reason."""
    plan, trials = made_up()
    reason = f"RuntimeError: out of memory: tried to allocate 2.00 GiB {NASTY} " + "a/path/without/any/space" * 8
    failed = [t.stage == "run" and (t.arm == "window_of_4" or (t.arm, t.seed) == ("hybrid", 2)) for t in trials]
    return Results(
        plan,
        [
            dataclasses.replace(trial, state="failed", result=None, reason=reason) if lost else trial
            for trial, lost in zip(trials, failed, strict=True)
        ],
    )


@pytest.fixture(params=["five arms", "failures", "sixty trials"])
def results(request, made_up):
    """Comparisons that ask unlike things of the page."""
    if request.param == "five arms":
        return Results(*made_up())
    return request.getfixturevalue("failing" if request.param == "failures" else "sixty")


@pytest.fixture
def show(tab, tmp_path):
    """Opens the page of some results in a tab that knows the probe."""
    probe = (Path(__file__).parent / "probe.js").read_text()
    names = itertools.count()

    def shown(results, **options):
        path = tmp_path / f"report{next(names)}.html"
        path.write_text(page(results))
        opened = tab(path, **options)
        opened.evaluate(f"{probe}; window.probe = probe; null")
        return opened

    return shown
