"""The verdict: from the last snapshots of a rank, why its trainer is as fast as it is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from tests.snapshots import BEGAN, GPU, JOB, idle

from forebay.engine import PoolStats, StageStats
from forebay.observe.snapshot import BufferSeen, ProcessSeen, RankSeen, Snapshot, SplitSeen
from forebay.observe.verdict import Verdict, judge
from forebay.observe.window import Window, between, together
from forebay.stepclock import StepTimes

PARTS = ("starved", "copy", "communication", "other")


def seen(
    second: float,
    *,
    shares: Mapping[str, float],
    pauses: Mapping[str, float] | None = None,
    wait: float | None = None,
    on_device: bool = False,
    source_wait: float = 0.9,
    room_wait: float = 0.0,
    pool: float | None = 0.3,
    queued: int = 0,
    pool_cpu: float | None = None,
    stages: Mapping[str, float] | None = None,
    stages_cpu: Mapping[str, float] | None = None,
    full: float = 0.1,
    lag: int | None = 50_000,
    come: float = 1000.0,
    asked_every: int = 1,
    process: Mapping[str, float] | None = None,
    **more: Any,
) -> Snapshot:
    """A rank whose counts grow evenly: ten batches of 100 rows a second."""
    starved, wait = shares.get("starved", 0.0), shares.get("starved", 0.0) if wait is None else wait
    rest = {part: share * second for part, share in shares.items()}
    told: dict[str, Any] = {
        k: v * second if k.endswith("_seconds") else v for k, v in (process or {}).items()
    }
    made: Snapshot = idle(
        second,
        batches=int(10 * second),
        rows=int(1000 * second),
        steps=StepTimes(
            steps=int(10 * second),
            seconds=second,
            wait=wait * second,
            **{"starved": starved * second, **rest},
            compute=(1 - sum(shares.values())) * second,
            pauses={k: v * second for k, v in (pauses or {}).items()},
            on_device=on_device,
        ),
        buffer=BufferSeen(
            bytes_in_flight=int(full * (1 << 20)),
            max_bytes=1 << 20,
            ready_batches=0,
            prefetch=2,
            source_wait_seconds=source_wait * second,
            room_wait_seconds=room_wait * second,
        ),
        pools={}
        if pool is None
        else {
            "stages": PoolStats(
                workers=2,
                busy_seconds=2 * pool * second,
                cpu_seconds=None if pool_cpu is None else pool_cpu * 2 * pool * second,
                queued_slices=queued,
                rows=0,
            )
        },
        stages={
            name: StageStats(
                slices=0,
                rows_in=0,
                rows_out=0,
                failed=0,
                busy_seconds=n * second,
                cpu_seconds=None if (cpu := (stages_cpu or {}).get(name)) is None else cpu * second,
            )
            for name, n in (stages or {"decode": 0.6}).items()
        },
        splits={}
        if lag is None
        else {
            "clicks/0": SplitSeen(
                source="clicks",
                position=int(1000 * second),
                end=int(come * (second // asked_every * asked_every)) + lag,
                lag_records=lag,
                lag_fetched=lag,
            )
        },
        process=ProcessSeen(cpus=2.0, **told),
    )
    changed: Snapshot = replace(made, **more)
    return changed


def verdict(**rates: Any) -> Verdict:
    """On half a minute of it."""
    return judge([seen(float(second), **rates) for second in range(1, 31)])


WAITS = {"starved": 0.38}
BUSY: dict[str, Any] = {"pool": 1.0, "stages": {"parse": 0.3, "jpeg": 1.7}}

LOCKED: dict[str, Any] = {
    "pool": 1.0,
    "stages": {"gil": 0.9, "decode.jpeg": 1.1},
    "process": {"gil": 0.81},
}

CASES = {
    "decoding": (
        {"shares": WAITS, **BUSY, "stages": {"decode.jpeg": 2.0}},
        "stages",
        "The trainer waits for data 38 % of the time; decoding is the limit: stage 'decode.jpeg' "
        "keeps all 2 workers busy.",
    ),
    "a stage that is no decoding": (
        {"shares": WAITS, **BUSY, "stages": {"blur": 2.0}},
        "stages",
        "the stages are the limit: stage 'blur' keeps all 2 workers busy",
    ),
    "one stage of several": ({"shares": WAITS, **BUSY}, "stages", "stage 'jpeg' keeps 1.7 of 2"),
    "a queue before busy workers": (
        {"shares": WAITS, "pool": 0.6, "queued": 4},
        "stages",
        "decoding is the limit",
    ),
    "the interpreter's lock": (
        {"shares": WAITS, **BUSY, "process": {"gil": 0.9}, "stages_cpu": {"jpeg": 0.9}},
        "gil",
        "one of the stages 'jpeg', 'parse' holds the interpreter's lock",
    ),
    "the lock, held by the only stage": (
        {"shares": WAITS, **BUSY, "stages": {"parse": 2.0}, "process": {"gil": 0.9}},
        "gil",
        "; stage 'parse' holds the interpreter's lock",
    ),
    "the lock, for which the longest stage waits": (
        {"shares": WAITS, **LOCKED, "stages_cpu": {"gil": 0.8, "decode.jpeg": 0.35}},
        "gil",
        "; stage 'gil' holds the interpreter's lock",
    ),
    "the lock, and a decoder that uses a CPU without it, or does it": (
        {"shares": WAITS, **LOCKED, "stages_cpu": {"gil": 0.8, "decode.jpeg": 0.6}},
        "gil",
        "one of the stages 'gil', 'decode.jpeg' holds the interpreter's lock",
    ),
    "the lock, on a machine that gives its holder a third of a CPU": (
        {
            "shares": WAITS,
            **LOCKED,
            "process": {"gil": 0.81, "cpu_seconds": 0.45},
            "stages_cpu": {"gil": 0.3, "decode.jpeg": 0.1},
        },
        "gil",
        "; stage 'gil' holds the interpreter's lock",
    ),
    "the lock, held by none of the stages": (
        {
            "shares": WAITS,
            **LOCKED,
            "process": {"gil": 0.81, "cpu_seconds": 0.9},
            "stages_cpu": {"gil": 0.1, "decode.jpeg": 0.1},
        },
        "stages",
        "stage 'decode.jpeg' keeps 1.1 of 2 workers busy",
    ),
    "reading": ({"shares": WAITS}, "source", "reading the source is the limit, though 50,000"),
    "nothing more to read": (
        {"shares": WAITS, "lag": 20},
        "source",
        "all that the source holds was read, 1,000 new records a second come: the producer",
    ),
    "no stages at all": (
        {"shares": WAITS, "pool": None, "stages": {"x": 0.0}},
        "source",
        "reading",
    ),
    "making batches": (
        {"shares": WAITS, "source_wait": 0.1},
        "handover",
        "one thread does that, and it is busy 90 % of the time",
    ),
    "uneven batches": (
        {"shares": WAITS, "source_wait": 0.1, "room_wait": 0.4},
        "handover",
        "batches come unevenly, and only 2 are kept ready",
    ),
    "a window that is full of slices behind a slow one": (
        {"shares": WAITS, "full": 1.0},
        "stages",
        "the 1 MiB in flight are used up while the workers are idle 70 % of the time",
    ),
    "copying": ({"shares": {"copy": 0.3}}, "copy", "Copying batches to the GPU takes 30 %"),
    "checkpoints": (
        {"shares": {"other": 0.25}, "pauses": {"checkpoint": 0.2, "evaluation": 0.05}},
        "pause",
        "Training stands still 25 % of the time, for: checkpoint.",
    ),
    "the host's own code": (
        {"shares": {"other": 0.25}, "on_device": True},
        "host",
        "The GPU waits for the host 25 % of the time",
    ),
    "the ranks' exchange": (
        {"shares": {"communication": 0.3}},
        "communication",
        "Exchanging gradients with the other ranks takes 30 % of the time.",
    ),
    "the trainer itself": (
        {"shares": {"starved": 0.02}},
        "compute",
        "The trainer is the limit: it trains 98 % of the time and waits for data 2 %.",
    ),
    "a drain": (
        {"shares": {"starved": 1.0}, **BUSY, "job": replace(JOB, has_trainer=False)},
        "draining",
        "Nobody trains: 1,000 rows a second are drained; the stages are the limit",
    ),
}


@pytest.mark.parametrize(("rates", "cause", "said"), CASES.values(), ids=CASES.keys())
def test_the_verdict_names_the_cause_and_says_how_much(
    rates: dict[str, Any], cause: str, said: str
) -> None:
    found = verdict(**rates)
    assert found.cause == cause
    assert said in found.sentence
    assert sum(found.shares.values()) == pytest.approx(1.0)
    assert found.evidence or cause in ("copy", "pause")


def test_a_device_that_works_while_the_host_waits_is_not_starved() -> None:
    found = verdict(
        shares={"starved": 0.0}, wait=0.82, on_device=True, gpus=(replace(GPU, busy=0.98),)
    )
    assert (found.cause, found.starved) == ("compute", False)
    assert "waits in next() 82 % of the time, while the GPU" in " ".join(found.evidence)


def test_where_only_the_host_was_timed_a_busy_gpu_is_believed_more_than_the_wait() -> None:
    found = verdict(shares={"starved": 0.82}, gpus=(replace(GPU, busy=0.98),))
    assert (found.cause, found.starved) == ("compute", False)
    assert "device='cuda'" in found.advice


def test_a_device_that_does_not_tell_leaves_the_cause_unknown() -> None:
    history = [seen(float(s), shares={}, wait=0.5, on_device=True) for s in range(1, 31)]
    untold = [replace(s, steps=replace(s.steps, starved=None)) for s in history]
    assert judge(untold).cause == "unknown"
    assert "at most the 50 %" in judge(untold).sentence


def test_a_rank_that_waits_for_a_starved_one_names_it() -> None:
    def told(rank: int, starved: float, at: float) -> RankSeen:
        parts = {"copy": 0.0, "compute": 1 - starved, "communication": 0.0, "other": 0.0}
        return RankSeen(rank=rank, starved=starved, **parts, at=at)

    def history(late: float) -> list[Snapshot]:
        return [
            seen(
                float(s),
                shares={"communication": 0.4},
                ranks=(told(0, 0.0, BEGAN + s), told(1, 0.41, BEGAN + s - late)),
            )
            for s in range(1, 31)
        ]

    assert judge(history(late=1)).sentence == (
        "Rank 1 waits for data 41 % of the time, and this one waits for it 40 % of the time: look "
        "there."
    )
    assert judge(history(late=1)).cause == "peer"
    assert judge(history(late=120)).cause == "communication", "what it told long ago counts no more"


def test_a_backlog_that_will_be_gone_is_told_as_a_guess() -> None:
    found = verdict(shares={"starved": 0.0}, come=400.0)
    assert found.cause == "compute"
    assert "it will wait for the producer 60 % of the time" in found.guess[0]
    assert not verdict(shares={"starved": 0.0}, come=1000.0).guess


def test_a_backlog_behind_which_the_producer_is_the_limit_is_told_of_starving_trainers_too() -> (
    None
):
    found = verdict(shares=WAITS, **BUSY, come=400.0)
    assert found.cause == "stages"
    assert "it will wait for the producer 60 % of the time" in found.guess[-1]


def test_what_comes_is_told_from_one_time_the_ends_were_heard_to_another() -> None:
    def come(*seconds: int) -> float | None:
        history = [seen(float(s), shares=WAITS, come=400.0, asked_every=5) for s in seconds]
        return between(history).arrived

    assert come(*range(6, 9)) is None, "nothing was asked meanwhile"
    assert come(*range(4, 9)) is None, "one answer is no rate"
    assert come(*range(4, 18)) == pytest.approx(400.0)


def test_a_topic_into_which_nothing_comes_is_told_after_a_while() -> None:
    history = [seen(float(s), shares=WAITS, come=0.0) for s in range(1, 16)]
    assert between(history[:5]).arrived is None
    assert between(history).arrived == 0.0


def test_short_stretches_are_seen_together_each_by_its_length() -> None:
    def stretch(seconds: int, busy: float) -> Window:
        pool: dict[str, Any] = {"pool": busy, "stages": {"jpeg": 2 * busy}, "source_wait": busy}
        return between([seen(float(s), shares=WAITS, **pool) for s in (1, 1 + seconds)])

    both = together([stretch(3, 1.0), stretch(1, 0.0)])
    assert (both.pools["stages"].busy, both.stages["jpeg"]) == pytest.approx((0.75, 1.5))
    assert both.source_wait == pytest.approx(0.75)


def test_a_rush_at_the_start_is_no_queue() -> None:
    history = [seen(float(s), shares=WAITS, queued=500 * (s < 6)) for s in range(1, 31)]
    assert judge(history).cause == "source"


def test_stages_that_wait_and_stages_that_lack_cpus_get_different_advice() -> None:
    waits = verdict(shares=WAITS, **BUSY, process={"cpu_seconds": 0.2, "cpu_wait_seconds": 0.0})
    used = verdict(shares=WAITS, **BUSY, process={"cpu_seconds": 1.9})
    taken = verdict(shares=WAITS, **BUSY, process={"cpu_seconds": 0.8, "cpu_wait_seconds": 1.1})
    assert waits.advice == "try more workers: loader.workers: 4"
    assert "give the process more CPUs" in used.advice
    assert "other processes use the CPUs" in taken.guess[0]


def test_too_few_threads_in_line_for_a_cpu_do_not_explain_workers_that_use_none() -> None:
    def told(in_line: float, **process: float) -> Verdict:
        rates = {"cpu_seconds": 0.8, "cpu_wait_seconds": in_line, **process}
        return verdict(shares=WAITS, **BUSY, pool_cpu=0.04, process=rates)

    assert told(0.6).guess == ("the stage waits for something, such as a disk or a service",)
    assert told(0.6).advice == "try more workers: loader.workers: 4"
    assert "other processes use the CPUs" in told(1.5).guess[0]
    assert "the interpreter's lock, taken 47 % of the time" in told(0.6, gil=0.47).guess[0]
    assert "the interpreter's lock, taken 47 % of the time" in told(1.5, gil=0.47).guess[1]


def test_nothing_is_said_before_enough_was_seen() -> None:
    rates: dict[str, Any] = {"shares": WAITS, **BUSY}
    assert judge([]).cause == "unknown"
    assert judge([seen(0.2, **rates), seen(1.2, **rates)]).cause == "unknown"
    assert judge([idle(2.0), idle(8.0)]).sentence == "The first batch has not come yet."
    starting = {"stages": PoolStats(workers=0, starting=3, busy_seconds=0, queued_slices=0, rows=0)}
    assert "3 workers are being started" in judge([idle(2.0, pools=starting)]).sentence


def test_a_topic_that_never_had_anything_is_told_after_a_while() -> None:
    empty = {"a": SplitSeen(source="a", position=0, end=0, lag_records=0, lag_fetched=0)}

    def waiting(second: int) -> Snapshot:
        steps = StepTimes(steps=0, seconds=float(second), wait=float(second), starved=float(second))
        before = idle(float(second))
        buffer = replace(before.buffer, source_wait_seconds=float(second))
        return replace(before, steps=steps, splits=empty, buffer=buffer)

    found = judge([waiting(second) for second in range(1, 31)])
    assert found.cause == "source"
    assert "the producer is the limit" in found.sentence


def test_a_table_that_is_read_again_and_again_has_no_producer() -> None:
    history = [seen(float(s), shares=WAITS, lag=20, passes=s // 10) for s in range(1, 31)]
    assert "reading the source is the limit" in judge(history).sentence


def test_a_run_that_ended_is_summed_up() -> None:
    history = [seen(float(s), shares=WAITS) for s in range(1, 31)]
    found = judge([*history, replace(history[-1], ended="failed")])
    assert found.cause == "ended"
    assert found.sentence == (
        "The run failed: 300 batches, 30,000 rows; the trainer waited for data 38 % of the time."
    )
    assert not found.starved


def test_what_a_process_before_counted_is_not_taken_for_this_ones() -> None:
    before = [seen(float(s), shares={}) for s in range(1, 31)]
    again = replace(JOB, pid=8, began=BEGAN + 40)
    after = [
        replace(seen(float(s), shares=WAITS, **BUSY), at=BEGAN + 40 + s, job=again)
        for s in range(1, 21)
    ]
    assert judge([*before, *after]).cause == "stages"
    assert judge([*before, *after[:1]]).cause == "unknown"


def by_turns(*starved: float) -> list[Snapshot]:
    """A history whose trainer starved so much of each of these seconds."""
    history, waited = [], 0.0
    for second, share in enumerate(starved, 1):
        waited += share
        made = seen(float(second), shares={})
        steps = replace(made.steps, wait=waited, starved=waited, compute=second - waited)
        history.append(replace(made, steps=steps))
    return history


def test_only_the_last_half_minute_counts() -> None:
    found = judge(by_turns(*[1.0] * 30, *[0.0] * 40))
    assert (found.cause, found.seconds) == ("compute", 30.0)


def test_after_a_change_only_what_came_since_counts_and_it_says_how_long_that_is() -> None:
    found = judge(by_turns(*[0.8] * 40, *[0.0] * 12))
    assert (found.cause, found.seconds) == ("compute", 10.0)
    assert judge(by_turns(*[0.8] * 40, *[0.0] * 4)).seconds == 30.0, "too short to tell"


def test_what_comes_and_goes_is_no_change() -> None:
    assert judge(by_turns(*[0.0] * 30, *[1.0] * 5, *[0.0] * 10, *[1.0] * 10)).seconds == 30.0
