import dataclasses

from bakeoff.compare.report.headline import headline, listed
from bakeoff.compare.results import Results

LEVELS = {"base": 2.2, "good": 2.1, "best": 2.0, "same": 2.2, "bad": 2.5}


def said(made_up, levels, lost=(), **options):
    plan, trials = made_up(levels, tuned=False, **options)
    kept = [dataclasses.replace(t, state="failed", result=None, reason="lost") if t.arm in lost else t for t in trials]
    return headline(Results(plan, kept))


def test_the_best_arm_comes_first_with_its_interval(made_up):
    first, rest = said(made_up, LEVELS)
    assert first.startswith("best is better than base by 0.2")
    assert first.endswith("3 seeds).")
    assert "95 % interval" in first
    assert rest == (
        "good is better too, by a smaller mean. bad is worse than base. No difference to base is shown for same."
    )


def test_where_none_is_better_the_nearest_is_named_with_its_interval(made_up):
    first, rest = said(made_up, {"base": 2.0, "far": 2.5, "near": 2.2})
    assert first == "No arm is shown to beat base."
    assert rest.startswith("near comes nearest: worse than base by 0.")
    assert rest.endswith("3 seeds). far is worse than base.")
    _, rest = said(made_up, {"base": 2.0, "far": 2.5, "same": 2.0})
    assert rest.startswith("same comes nearest: no difference to base shown (difference")


def test_what_cannot_be_said_is_not(made_up):
    assert said(made_up, LEVELS, seeds=(0,))[0].startswith("No verdict: with one seed")
    assert said(made_up, LEVELS, lost=("base",))[0] == "Nothing can be compared: the baseline base has no result."
    assert said(made_up, LEVELS, lost=("same", "bad"))[1].endswith("same and bad are without a result.")


def test_many_names_are_counted():
    assert listed(["a"]) == "a"
    assert listed(["a", "b", "c", "d"]) == "a, b, c and d"
    assert listed(["a", "b", "c", "d", "e"]) == "5 arms"
