"""The doctor's word on the producer: while a backlog is read, it is not what is waited for."""

from __future__ import annotations

from dataclasses import replace

import pytest
from tests.histories import history

from forebay.diagnose.experiments import Measured, measured
from forebay.diagnose.phases import KINDS, Kind, Phase
from forebay.diagnose.producer import with_doubt, with_rates
from forebay.observe.verdict import Verdict, of_backlog
from forebay.observe.window import Window, between
from forebay.stepclock import StepTimes

ALL: dict[Kind, float] = {"full": 50.0, "no source": 50.0, "no stages": 10.0, "frozen": 10.0}
DRY: dict[Kind, float] = {**ALL, "full": 500.0}
"""A round in which the topic was read to its end."""


def phase(kind: Kind, number: int, milliseconds: float) -> Phase:
    return Phase(
        kind=kind,
        round=number,
        steps=10,
        rows=1000,
        seconds=milliseconds / 100,
        parts=StepTimes(steps=10, seconds=milliseconds / 100, wait=0.0),
        step_seconds=(milliseconds / 1e3,) * 10,
        wait_seconds=(0.0,) * 10,
        began=0.0,
        ended=1.0,
    )


def of_rounds(*rounds: dict[Kind, float]) -> Measured:
    return measured([phase(k, i, r[k]) for i, r in enumerate(rounds) for k in KINDS], {})


def rates(m: Measured) -> Window:
    """Of 10 steps of 30 records a second, of which as many come."""
    snapshots = history(30)
    short = between(snapshots[4:6])
    nothing_yet, closed = replace(snapshots[0], splits={}), replace(snapshots[-1], splits={})
    return with_rates(short, [short], [nothing_yet, *snapshots[1:-1], closed], m)


def test_what_could_be_taken_is_of_the_phases_without_a_source() -> None:
    w = rates(of_rounds(ALL, ALL, ALL))
    assert w.arrived == pytest.approx(300.0)
    assert w.taken == pytest.approx(600.0)


def test_a_producer_that_is_slower_than_the_stages_is_a_guess() -> None:
    (guess,) = of_backlog(rates(of_rounds(ALL, ALL, ALL)))
    assert "it will wait for the producer 50 % of the time: 300 new ones come a second" in guess
    assert not of_backlog(rates(of_rounds({**ALL, "no source": 100.0})))


def test_a_source_that_was_the_limit_in_some_rounds_only_is_a_guess() -> None:
    verdict = Verdict(cause="stages", sentence="The stages are the limit.", shares={})
    doubtful = with_doubt(verdict, of_rounds(ALL, ALL, ALL, DRY, DRY))
    assert "reading, or the producer, was the limit in some of the rounds" in doubtful.guess[0]
    assert with_doubt(verdict, of_rounds(*[ALL] * 5)) == verdict
    assert with_doubt(verdict, of_rounds(*[{**ALL, "full": 65.0}] * 5)) == verdict, "a known share"
