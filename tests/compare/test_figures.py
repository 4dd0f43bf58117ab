from bakeoff.compare.figures import figures
from bakeoff.compare.results import Results


def test_figures_show_what_the_report_shows(made_up):
    results = Results(*made_up())
    found = figures(results)
    assert list(found) == ["validation", "loss", "speed", "memory"]
    lines = {trace.name: trace for trace in found["validation"].data if trace.name}
    assert list(lines) == [arm.name for arm in results.arms]
    last = [trial.result["curve"][-1] for trial in results.arms[2].trials]
    assert lines["mamba2"].x[-1] == last[0]["tokens"]
    assert abs(lines["mamba2"].y[-1] - sum(p["bits_per_byte"] for p in last) / 3) < 1e-12
    front, *marks = found["speed"].data
    assert list(front.y) == [mark.y[0] for mark in marks if mark.name in ("attention", "mamba2", "hybrid")]


def test_without_results_there_are_none(made_up):
    plan, _ = made_up()
    assert figures(Results(plan | {"trials": []}, [])) == {}
