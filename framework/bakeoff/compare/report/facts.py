"""How the numbers were made: summary, method, trials, environment, command."""

from __future__ import annotations

from bakeoff.compare.report.grids import grid, section
from bakeoff.compare.report.markup import Html, element, join
from bakeoff.compare.results import Arm, Record, Results
from bakeoff.compare.statistics import CONFIDENCE
from bakeoff.compare.tuning import label, points
from bakeoff.compare.words import count, duration, percent, plural

MATCHED_BY = {
    "parameters": "parameters (embeddings apart)",
    "active_parameters": "active parameters (embeddings apart)",
    "flops": "FLOPs per token",
    "state": "bytes of state",
}


def summary(results: Results) -> str:
    """The comparison in one sentence."""
    plan = results.plan
    tokens = {arm.facts["tokens"] for arm in results.arms}
    budget = f"{count(tokens.pop())} tokens each" if len(tokens) == 1 else "about the same tokens each"
    text = f"{plural(len(results.arms), 'arm')}, {plural(len(plan['seeds']), 'seed')}, {budget}"
    match = plan["match"]
    if match["by"] in MATCHED_BY:
        text += f", matched by {MATCHED_BY[match['by']]} within {percent(match['within'])}"
    if plan["tuning"]:
        text += f", a search over {plural(_searched(results), 'point')} for every arm"
    return text + "."


def statements(results: Results) -> list[tuple[str, str]]:
    """Heading and sentence for each thing that decided the numbers."""
    plan = results.plan
    said = [
        ("Budget", _budget(results)),
        (
            "Pairing",
            f"Seeds {', '.join(map(str, plan['seeds']))}. On one seed all arms see the same data in the same order, "
            "and parameters of equal name and shape start from equal values.",
        ),
        ("Intervals", _intervals(results)),
        ("Matching", _matching(results)),
        ("Causality", "Each arm was probed before training: a later token must not change an earlier output."),
        ("Speed and memory", _speed(results)),
    ]
    if plan["tuning"]:
        said.insert(2, ("Search", _search(results)))
    if any(results.stale(trial) for trial in results.trials):
        text = "Trials marked older code were run by another version of bakeoff or its plugins, and are kept."
        said.append(("Older code", text))
    return said


def _budget(results: Results) -> str:
    budgets = {(arm.facts["steps"], arm.facts["tokens"]) for arm in results.arms}
    if len(budgets) == 1:
        steps, tokens = budgets.pop()
        return f"Every trial is trained for {steps:,} optimizer steps, {tokens:,} tokens."
    each = ", ".join(f"{arm.name} {arm.facts['steps']:,} steps" for arm in results.arms)
    return f"Every trial is trained for the same tokens: {each}."


def _intervals(results: Results) -> str:
    return (
        f"{percent(CONFIDENCE)} intervals by Student's t over seeds. A verdict rests on the paired difference to "
        f"{results.baseline.name}: a two-sided paired t-test at {percent(1 - CONFIDENCE)}, corrected for the number of "
        "arms by Holm's method; the intervals printed are not corrected. They speak of other seeds on this data, "
        "not of other data."
    )


def _matching(results: Results) -> str:
    match = results.plan["match"]
    if match["by"] == "none":
        return "Nothing is matched: the arms' sizes are what their recipes say."
    knob = f" by {match['adjust']}" if match.get("adjust") else ""
    return f"By {MATCHED_BY[match['by']]} to {results.baseline.name}, within {percent(match['within'])}{knob}."


def _searched(results: Results) -> int:
    return len(points(results.plan["tuning"]["grid"]))


def _search(results: Results) -> str:
    return (
        f"Every arm was tried at the same {plural(_searched(results), 'point')} on seed "
        f"{results.plan['tuning']['seed']}, none of the reported seeds, and trained on all seeds at its best."
    )


def _speed(results: Results) -> str:
    executor = results.plan["executor"]
    slots, threads = executor.get("slots", 1), executor.get("threads")
    alone = "one trial at a time" if slots == 1 else f"{slots} trials side by side, sharing the machine while timed"
    each = f", {plural(threads, 'thread')} each" if threads else ""
    return f"Measured in each trial's own process after training{each}, {alone}."


def method(results: Results) -> Html:
    """How the numbers were made, with what matching reached."""
    listed = [join(element("dt", head), element("dd", text)) for head, text in statements(results)]
    rows = [_matched(arm) for arm in results.arms if arm.facts.get("matched")]
    head = ("arm", "adjusted", "target", "reached", "error")
    reached = grid("Matching", head, rows) if rows else join()
    return section("How the numbers were made", element("dl", *listed), reached)


def _matched(arm: Arm) -> tuple[str, ...]:
    matched = arm.facts["matched"]
    knob = "as it stands" if matched["value"] is None else f"{matched['knob']} = {matched['value']}"
    error = percent(matched["error"], 2, sign=True)
    return arm.name, knob, f"{matched['target']:,.0f}", f"{matched['reached']:,.0f}", error


def trials(results: Results) -> Html:
    """Every trial with its numbers."""
    head = ("arm", "seed", results.metric.unit, "training tokens/s", "time", "state", "point")
    heading = element("summary", f"All {plural(len(results.trials), 'trial')}")
    rows = [_trial(results, trial) for trial in results.trials]
    return section("Trials", element("details", heading, grid("All trials", head, rows)))


def _trial(results: Results, trial: Record) -> tuple[str, ...]:
    measures = trial.result["measures"] if trial.result else {}
    value = measures.get(results.metric.key)
    remarks = [trial.state, *(["search"] if trial.stage == "tune" else [])]
    remarks += ["older code"] if results.stale(trial) else []
    return (
        trial.arm,
        str(trial.seed),
        "–" if value is None else f"{value:.4f}",
        count(measures.get("throughput.tokens_per_second")),
        duration(trial.result["seconds"]) if trial.result else "–",
        ", ".join(remarks),
        label(trial.point) or "–",
    )


def environment(results: Results) -> Html:
    """Where it ran and on what."""
    plan = results.plan
    data = {f"data: {key}": value for key, value in plan["data"].items()}
    facts = {"begun": plan["begun"], **plan["environment"], **_kernels(results), **data, "code": plan["code"]}
    listed = [join(element("dt", key), element("dd", str(value))) for key, value in facts.items()]
    return section("Environment", element("dl", *listed, class_="facts"))


def _kernels(results: Results) -> dict[str, str]:
    """What computed each part that has a choice, over all trials."""
    found: dict[str, dict[str, None]] = {}
    for trial in results.trials:
        for part, choice in (trial.result or {}).get("kernels", {}).items():
            found.setdefault(f"kernels: {part}", {})[choice] = None
    return {key: "; ".join(told) for key, told in found.items()}


def repeat(results: Results) -> Html:
    """The command that makes this comparison again."""
    box = element("pre", element("code", results.plan["command"]), tabindex=0)
    button = element("button", "Copy", type="button", data_copy=True)
    return section("Repeat it", element("div", box, button, class_="command"))
