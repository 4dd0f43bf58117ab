"""Correct mixers pass; what is found is told in words."""

from __future__ import annotations

from typing import Any

import pytest
from bakeoff.interfaces import Part
from bakeoff.testing import LawFailure, Report, check
from bakeoff.testing.law import LAWS, laws_for

from .stand_ins import Decay, Mean, Recall, broken


class Future(Mean):
    def seen(self, x):
        return x.flip(1)


@pytest.mark.parametrize("component", [Mean, Decay, Recall])
def test_correct_mixers_keep_all_laws(component):
    report = check(component)
    assert report.ok, str(report)
    report.raise_for_failures()


def test_what_is_not_claimed_is_not_tested():
    status = {finding.law: finding.status for finding in check(Mean).findings}
    assert status["causality"] == status["call"] == status["cost"] == "passed"
    assert all(status[law] == "not claimed" for law in ("split", "documents", "padding", "state"))


def test_a_law_says_what_it_demands_and_of_whom():
    class Silent(Mean):
        flops = Part.flops

    told = {law.name: ", ".join(law.claims) for law in laws_for("mixer", None, slow=True)}
    assert all(law.demand for law in LAWS)
    findings = check(Silent, quick=False).findings
    assert {f.law: f.reason for f in findings if f.status == "not claimed"} == {k: v for k, v in told.items() if v}
    assert not [f for f in findings if f.status == "failed"]


def test_the_report_reads_and_raises():
    report = check(Future)
    assert isinstance(report, Report)
    assert not report
    assert str(report).startswith("mixer Future breaks the law of causality")
    with pytest.raises(LawFailure, match=r"mixer Future breaks the law of causality.*\n.*\n.*FAIL  1 causality"):
        report.raise_for_failures()


def test_one_law_by_name_or_number():
    assert [finding.law for finding in check(Mean, laws=[1, "numbers"]).findings] == ["causality", "numbers"]
    with pytest.raises(ValueError, match="no law is called 'speed'"):
        check(Mean, laws=["speed"])


def test_errors_of_a_part_are_findings():
    class Raises(Mean):
        def seen(self, x: Any) -> Any:
            if x.shape[1] > 4:
                raise RuntimeError("too long")
            return x

    laws = broken(Raises, "causality", "numbers")
    assert laws["causality"] == "evaluation: B=1, T=5: RuntimeError: too long"
    assert laws["numbers"] == "B=2, T=5: RuntimeError: too long"
