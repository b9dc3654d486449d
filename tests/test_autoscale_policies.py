"""What the autoscaling policies decide, and what they never do."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from forebay import ConfigError
from forebay.autoscale import (
    Autoscaling,
    Decision,
    Fixed,
    Lag,
    Observation,
    Policy,
    PoolSeen,
    SourceSeen,
    Starvation,
    TrainerSeen,
)

BUSY = PoolSeen(workers=4, queued=20, busy=1.0, rate=10.0, throughput=40.0, most=32)
IDLE = replace(BUSY, queued=0, busy=0.3, throughput=12.0)
POLICIES: list[Policy] = [Starvation(), Lag(), Fixed()]


def seen(**changes: Any) -> Observation:
    """A trainer that takes 100 rows/s and gets 40, with data waiting and four busy workers."""
    found = Observation(
        at=100.0,
        sources={"clicks": SourceSeen(lag=5_000, arrival=60.0)},
        pools={"decode": BUSY},
        trainer=TrainerSeen(demand=100.0, starved=0.6, ready=0.0),
        price=0.001,
    )
    return replace(found, **changes)


def sizes(decisions: Sequence[Decision]) -> dict[str, int]:
    return {d.pool: d.workers for d in decisions}


def only(policy: Policy, observation: Observation) -> Decision:
    (decision,) = policy.decide(observation)
    return decision


def test_a_starving_trainer_gets_the_workers_that_feed_it() -> None:
    decision = only(Starvation(), seen())
    assert decision.workers == 11
    assert "starves 60% of the time" in decision.reason
    assert "a worker does 10 and 4 are too few" in decision.reason


def test_no_more_is_wanted_than_arrives_and_waits() -> None:
    sources = {"clicks": SourceSeen(lag=300, arrival=60.0)}
    assert only(Starvation(catch_up_seconds=30), seen(sources=sources)).workers == 8


def test_the_pool_never_grows_while_the_trainer_is_the_limit() -> None:
    trainer = TrainerSeen(demand=100.0, starved=0.0, ready=1.0)
    for policy in POLICIES:
        assert only(policy, seen(trainer=trainer)).workers == 4
    assert "the trainer is the limit" in only(Starvation(), seen(trainer=trainer)).reason


def test_the_pool_does_not_grow_while_the_trainer_waits_for_the_source() -> None:
    idle = replace(IDLE, throughput=None)
    decision = only(Starvation(), seen(pools={"decode": idle}))
    assert decision.workers == 4
    assert "no pool is the bottleneck" in decision.reason


def test_lag_that_does_not_respond_to_workers_does_not_drive_the_pool_to_its_limit() -> None:
    stuck = {"clicks": SourceSeen(lag=1_000_000, arrival=0.0)}
    assert only(Starvation(), seen(sources=stuck, pools={"decode": IDLE})).workers == 2


def test_a_source_that_gives_less_than_it_has_is_not_given_workers_for_what_it_keeps() -> None:
    read_slowly = replace(IDLE, throughput=22.0)
    assert only(Starvation(), seen(pools={"decode": read_slowly})).workers == 3
    nothing = replace(IDLE, busy=0.0, throughput=0.0)
    decision = only(Starvation(), seen(pools={"decode": nothing}))
    assert decision.workers == 4
    assert "nothing is read" in decision.reason


def test_a_pool_that_is_larger_than_needed_shrinks_to_what_is_enough() -> None:
    slow = TrainerSeen(demand=20.0, starved=0.0, ready=1.0)
    decision = only(Starvation(), seen(trainer=slow))
    assert decision.workers == 3
    assert "3 are enough" in decision.reason


@pytest.mark.parametrize("policy", POLICIES, ids=lambda p: type(p).__name__)
@pytest.mark.parametrize(
    "sources",
    [
        {},
        {"clicks": SourceSeen()},
        {"clicks": SourceSeen(lag=None, arrival=60.0)},
        {"clicks": SourceSeen(lag=5_000, arrival=None)},
        {"clicks": SourceSeen(lag=5_000, arrival=60.0), "views": SourceSeen()},
    ],
)
def test_a_missing_metric_holds(policy: Policy, sources: dict[str, SourceSeen]) -> None:
    assert only(policy, seen(sources=sources)).workers == 4


def test_the_reason_to_hold_names_what_is_missing() -> None:
    sources = {"kafka:clicks": SourceSeen(lag=None, arrival=60.0)}
    assert only(Starvation(), seen(sources=sources)).reason == (
        "hold: the lag of kafka:clicks is not known"
    )
    trainer = TrainerSeen(demand=None, starved=None)
    assert "how much the trainer waits" in only(Starvation(), seen(trainer=trainer)).reason


def test_a_source_from_which_nothing_comes_keeps_its_workers() -> None:
    gone = {"clicks": SourceSeen(lag=0, arrival=0.0)}
    assert only(Starvation(), seen(sources=gone, pools={"decode": IDLE})).workers == 4


def test_pools_share_the_cpus_in_proportion_to_their_service_times() -> None:
    pools = {
        "read": PoolSeen(workers=83, queued=100, busy=1.0, rate=1 / 0.17, most=128),
        "infer": PoolSeen(workers=4, queued=6190, busy=1.0, rate=1 / 0.21, most=128),
    }
    hungry = TrainerSeen(demand=1000.0, starved=0.9)
    plenty = {"clicks": SourceSeen(lag=1e6, arrival=60.0)}
    found = Starvation().decide(seen(pools=pools, trainer=hungry, cpus=128.0, sources=plenty))
    assert sizes(found) == {"read": 57, "infer": 71}
    assert found[0].urgent
    assert found[0].reason.startswith("frees CPU for infer")


def test_the_fast_neighbour_of_a_bottleneck_does_not_grow() -> None:
    pools = {"read": replace(IDLE, rate=1000.0), "infer": BUSY}
    assert sizes(Starvation().decide(seen(pools=pools))) == {"read": 1, "infer": 11}


def test_nothing_grows_before_every_pool_has_shown_what_it_can_do() -> None:
    pools = {"read": BUSY, "infer": PoolSeen(workers=0, starting=1)}
    found = Starvation().decide(seen(pools=pools))
    assert sizes(found) == {"read": 4, "infer": 1}
    assert "pool infer has not finished anything yet" in found[0].reason


def test_threads_that_wait_for_the_interpreters_lock_are_not_given_company() -> None:
    decision = only(Starvation(), seen(gil=0.9))
    assert decision.workers == 4
    assert "hold the interpreter's lock 90% of the time" in decision.reason


def test_no_more_workers_than_the_cpu_share_can_run() -> None:
    decision = only(Starvation(), seen(pools={"decode": replace(BUSY, cpu=1.0)}, cpus=4.0))
    assert decision.workers == 4
    assert "4.0 CPUs" in decision.reason


def test_workers_that_mostly_wait_may_outnumber_the_cpus() -> None:
    pools = {"decode": replace(BUSY, cpu=0.05)}
    assert only(Starvation(), seen(pools=pools, cpus=2.0)).workers == 11


def test_workers_that_cost_more_than_the_starving_they_save_are_not_wanted() -> None:
    decision = only(Starvation(), seen(price=0.2))
    assert decision.workers == 1
    assert "more would cost more than the starving that they save (price)" in decision.reason
    assert "price" not in only(Starvation(), seen()).reason
    assert only(Starvation(), seen(price=0.09)).workers == 10


def test_at_the_usual_price_a_trainer_that_needs_hundreds_of_workers_gets_them() -> None:
    eats = TrainerSeen(demand=5_000.0, starved=0.9, ready=0.0)
    plenty = {"clicks": SourceSeen(lag=1e6, arrival=5_000.0)}
    large = seen(
        price=Autoscaling().price,
        sources=plenty,
        trainer=eats,
        pools={"decode": replace(BUSY, most=1_000)},
    )
    assert only(Starvation(), large).workers >= 500


def test_the_lag_policy_does_not_ask_whether_a_pool_is_the_bottleneck() -> None:
    assert only(Lag(), seen(pools={"decode": IDLE})).workers == 11


def test_fixed_sizes_stay() -> None:
    assert only(Fixed(), seen()).workers == 4
    assert only(Fixed(workers=7), seen()).workers == 7
    assert only(Fixed(workers=7, pools={"decode": 2}), seen()).workers == 2


def test_what_is_no_policy_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"have decide\(observation\): dict has not"):
        Autoscaling(policy={})  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="no autoscale policy 'hunger'"):
        Autoscaling(policy="hunger")  # type: ignore[arg-type]


def test_an_observation_survives_json() -> None:
    assert Observation.from_json(seen(cpus=4.0).to_json()) == seen(cpus=4.0)


def maybe(values: st.SearchStrategy[float]) -> st.SearchStrategy[float | None]:
    return st.none() | values


shares = st.floats(0, 1)
rates = st.just(0.0) | st.floats(1e-3, 1e5)
pools = st.builds(
    PoolSeen,
    workers=st.integers(0, 40),
    starting=st.integers(0, 10),
    queued=st.integers(0, 10_000),
    busy=maybe(shares),
    rate=maybe(rates),
    throughput=maybe(rates),
    cpu=maybe(st.floats(0.01, 1)),
    least=st.integers(1, 3),
    most=st.none() | st.integers(4, 64),
)
observations = st.builds(
    Observation,
    at=st.floats(0, 1e6),
    sources=st.dictionaries(
        st.sampled_from(["a", "b"]),
        st.builds(SourceSeen, lag=maybe(st.floats(0, 1e7)), arrival=maybe(rates)),
    ),
    pools=st.dictionaries(st.sampled_from(["x", "y", "z"]), pools, min_size=1),
    trainer=st.builds(
        TrainerSeen, demand=maybe(st.floats(0.1, 1e5)), starved=maybe(shares), ready=maybe(shares)
    ),
    cpus=maybe(st.floats(0.5, 200)),
    gil=maybe(shares),
    price=st.floats(0, 1),
)
policies = st.sampled_from(POLICIES)


@given(policies, observations)
def test_same_observation_same_decisions(policy: Policy, o: Observation) -> None:
    assert policy.decide(o) == policy.decide(o)


@given(policies, observations)
def test_every_pool_gets_one_decision_with_a_reason(policy: Policy, o: Observation) -> None:
    found = policy.decide(o)
    assert [d.pool for d in found] == list(o.pools)
    assert all(d.reason for d in found)


@given(policies, observations)
def test_no_decision_leaves_the_bounds_or_scales_to_nothing(policy: Policy, o: Observation) -> None:
    for d in policy.decide(o):
        pool = o.pools[d.pool]
        if d.workers != pool.size:
            assert max(pool.least, 1) <= d.workers
            assert pool.most is None or d.workers <= pool.most


@given(policies, observations)
def test_nothing_grows_unless_the_trainer_is_known_to_starve(
    policy: Policy, o: Observation
) -> None:
    fed = replace(o, trainer=replace(o.trainer, starved=0.0))
    unknown = replace(o, trainer=replace(o.trainer, starved=None))
    for observation in (fed, unknown):
        for d in policy.decide(observation):
            assert d.workers <= max(observation.pools[d.pool].size, observation.pools[d.pool].least)


@given(policies, observations)
def test_without_lag_or_arrivals_nothing_changes(policy: Policy, o: Observation) -> None:
    for source in (SourceSeen(lag=None, arrival=1.0), SourceSeen(lag=1.0, arrival=None)):
        found = policy.decide(replace(o, sources={**o.sources, "c": source}))
        assert sizes(found) == {k: p.size for k, p in o.pools.items()}


@pytest.mark.parametrize("policy", [Starvation(), Lag()])
def test_a_device_that_is_fully_busy_contradicts_a_trainer_that_only_waits(policy: Policy) -> None:
    busy = TrainerSeen(demand=100.0, starved=0.6, ready=0.0, device_busy=0.98)
    decision = only(policy, seen(trainer=busy))
    assert decision.workers == 4
    assert "waits 60% of the time, but its device is busy 98% of it (NVML)" in decision.reason


@pytest.mark.parametrize("busy", [None, 0.4])
def test_a_device_that_is_not_known_to_be_busy_changes_nothing(busy: float | None) -> None:
    trainer = TrainerSeen(demand=100.0, starved=0.6, ready=0.0, device_busy=busy)
    assert only(Starvation(), seen(trainer=trainer)) == only(Starvation(), seen())
