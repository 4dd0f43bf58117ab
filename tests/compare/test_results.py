import dataclasses
import io

import pytest
from bakeoff.compare.report.charts import chart_data
from bakeoff.compare.report.headline import headline
from bakeoff.compare.results import Results
from bakeoff.compare.table import show
from bakeoff.compare.verdict import Verdict
from rich.console import Console


def printed(results, width=100):
    console = Console(file=io.StringIO(), width=width, color_system=None)
    show(results, console)
    return console.file.getvalue()


def fail(trials, name, seed, reason="loss is not finite at step 7"):
    return [
        dataclasses.replace(t, state="failed", result=None, reason=reason) if (t.arm, t.seed) == (name, seed) else t
        for t in trials
    ]


def test_verdicts_name_direction_size_interval_and_seeds(made_up):
    results = Results(*made_up())
    kinds = {name: verdict.kind for name, verdict in results.verdicts.items()}
    assert kinds == {
        "attention": "baseline",
        "sliding_window": "none shown",
        "mamba2": "better",
        "hybrid": "better",
        "window_of_4": "worse",
    }
    assert results.verdicts["hybrid"].text.startswith("better than attention by 0.0")
    assert "95 % interval 0.0" in results.verdicts["hybrid"].text
    assert results.verdicts["hybrid"].text.endswith("3 seeds)")
    assert results.verdicts["sliding_window"].text.startswith("no difference to attention shown (difference ")


def test_difference_is_paired_so_that_the_seeds_own_level_cancels(made_up):
    plan, trials = made_up({"a": 2.0, "b": 2.0}, tuned=False)
    bits = {"a": (2.0, 2.1, 2.2), "b": (2.11, 2.20, 2.29)}
    for t in trials:
        t.result["measures"]["validation.bits_per_byte"] = bits[t.arm][t.seed]
    row = Results(plan, trials).table[1]
    # differences 0.11, 0.10, 0.09: mean 0.10, deviation 0.01, half width 4.30265 * 0.01 / sqrt(3)
    assert row["difference"] == pytest.approx(0.10)
    assert row["difference_high"] - row["difference"] == pytest.approx(0.0248414, abs=1e-6)
    assert row["bits_per_byte_half"] > 0.2


def test_one_seed_claims_no_interval_and_says_so(made_up):
    results = Results(*made_up(seeds=(0,)))
    assert {v.kind for v in results.verdicts.values()} == {"baseline", "one seed"}
    assert all(row["bits_per_byte_half"] is None for row in results.table)
    text = printed(results)
    assert "One seed: no interval is claimed" in text
    assert "±" not in text


def test_failed_trial_is_left_out_of_the_pairs_and_told(made_up):
    plan, trials = made_up()
    results = Results(plan, fail(trials, "mamba2", 1))
    assert results.differences["mamba2"].seeds == (0, 2)
    assert results.verdicts["mamba2"].text.endswith("2 seeds)")
    assert [t.reason for t in results.failures] == ["loss is not finite at step 7"]
    assert "1 trial failed" in printed(results)


def test_arm_without_any_result_gives_its_reason(made_up):
    plan, trials = made_up()
    for seed in plan["seeds"]:
        trials = fail(trials, "hybrid", seed)
    assert Results(plan, trials).verdicts["hybrid"].text == "no result: loss is not finite at step 7"


def test_refused_arm_gives_its_reason(made_up):
    plan, trials = made_up()
    plan["arms"][2]["refused"] = "not causal: token 7 changes output 3"
    verdict = Results(plan, [t for t in trials if t.arm != "mamba2"]).verdicts["mamba2"]
    assert (verdict.kind, verdict.text) == ("refused", "refused: not causal: token 7 changes output 3")


def test_arms_of_other_text_are_not_compared_and_count_as_no_comparison(made_up):
    plan, trials = made_up({"a": 2.0, "b": 1.0, "c": 2.1}, tuned=False)
    alone = Results(plan, [t for t in trials if t.arm != "b"]).adjusted["c"]
    plan["arms"][1]["other_text"] = True
    results = Results(plan, trials)
    assert results.verdicts["b"] == Verdict("other text", "not compared: validated on other text than a")
    assert results.differences["b"] is None
    assert results.by_seed("b") == {}
    assert results.adjusted["c"] == alone
    first, rest = headline(results)
    assert first == "No arm is shown to beat a."
    assert rest.endswith("b is not compared: validated on other text than the baseline.")
    (option, *_) = chart_data(results)["tradeoffs"]["memory"]
    assert [point["arm"] for point in option["points"]] == ["a", "c"]


def test_correction_for_many_arms_is_said_where_it_changes_the_verdict(made_up):
    plan, trials = made_up(dict.fromkeys("abcdefgh", 2.0), tuned=False)
    for t in trials:  # differences of b: 0.010, 0.012, 0.008, p about 0.013, times seven arms
        base = 2.0 + 0.1 * t.seed
        offset = {"a": 0.0, "b": (0.010, 0.012, 0.008)[t.seed]}.get(t.arm, (0.01, -0.01, 0.0)[t.seed])
        t.result["measures"]["validation.bits_per_byte"] = base + offset
    verdict = Results(plan, trials).verdicts["b"]
    assert verdict.kind == "none shown"
    assert "once corrected for 7 comparisons" in verdict.text


def test_arms_with_other_tokenizers_are_ranked_by_bits_per_byte(made_up):
    # 2.0 nats a token at 4 bytes a token is 0.7213 bits a byte; 1.2 nats at 2 bytes is 0.8656
    plan, trials = made_up({"a": 1.0, "b": 1.0})
    nats, bits = {"a": 2.0, "b": 1.2}, {"a": 0.7213, "b": 0.8656}
    for t in trials:
        wobble = 1e-4 * t.seed if t.arm == "b" else 0.0
        t.result["measures"] |= {
            "validation.nats_per_token": nats[t.arm],
            "validation.bits_per_byte": bits[t.arm] + wobble,
        }
    plan["arms"][1]["tokenizer"] = "another"
    results = Results(plan, trials)
    assert results.metric.unit == "bits per byte"
    assert results.verdicts["b"].kind == "worse"


def test_without_bits_per_byte_one_shared_tokenizer_allows_nats_per_token(made_up):
    plan, trials = made_up()
    for t in trials:
        del t.result["measures"]["validation.bits_per_byte"]
    assert Results(plan, trials).metric.unit == "nats per token"
    plan["arms"][1]["tokenizer"] = "another"
    assert {v.kind for v in Results(plan, trials).verdicts.values()} == {"waiting"}


def test_older_code_is_flagged_and_kept(made_up):
    plan, trials = made_up()
    trials[0].result["code"] = ["0ld", "c0de"]
    results = Results(plan, trials)
    assert results.stale(trials[0])
    assert [row["older_code"] for row in results.rows()].count(True) == 1
    assert results.table[0]["seeds"] == 3
    assert "1 trial by an older version of the code" in printed(results)


@pytest.mark.parametrize("width", [80, 100])
def test_table_fits_the_terminal_without_cutting_words_off(made_up, width):
    text = printed(Results(*made_up()), width)
    assert max(map(len, text.splitlines())) <= width
    assert "…" not in text
    if width == 100:
        for word in ("sliding_window", "bits per byte", "36.8k", "310M", "better than attention by"):
            assert word in text


def test_trials_of_another_plan_in_the_store_are_left_out(made_up):
    plan, trials = made_up()
    plan["trials"] = plan["trials"][:5]
    assert Results(plan, trials).table[0]["seeds"] == 1


def test_unlike_machines_and_what_could_not_be_measured_are_told(made_up):
    plan, trials = made_up(tuned=False)
    trials[0].result["machine"] = {"processor": "another", "devices": ["a GPU"], "threads": 4}
    trials[1].result["unmeasured"] = {"decode": "LSTM keeps no state"}
    text = " ".join(printed(Results(plan, trials)).split())
    assert "speeds do not compare: another, a GPU, 4 threads; some processor, 2 threads." in text
    assert "Not measured: sliding_window, decode: LSTM keeps no state." in text
