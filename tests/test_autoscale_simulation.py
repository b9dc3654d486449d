"""The policies in the simulator, on every scenario, against the rules of others."""

from __future__ import annotations

import json
from dataclasses import replace
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from xml.etree import ElementTree

import pytest

from forebay import ConfigError
from forebay.autoscale import Observation, Sample, read_trace
from forebay.autoscale.baselines import CONTENDERS, Ours
from forebay.autoscale.plot import picture
from forebay.autoscale.scenario import PoolModel, Scenario, constant, recorded, scenarios, steps
from forebay.autoscale.settings import Autoscaling
from forebay.autoscale.simulate import Outcome, Point, simulate
from forebay.autoscale.trace import TraceFile

SCENARIOS = scenarios()


def run(scenario: Scenario, name: str = "starvation", seed: int = 0) -> Outcome:
    return simulate(scenario, CONTENDERS[name](scenario), seed=seed)


@lru_cache(maxsize=256)
def known(scenario: str, name: str = "starvation", seed: int = 0) -> Outcome:
    """A run of a scenario that is built in; not to be changed."""
    return run(SCENARIOS[scenario], name, seed)


def sizes(outcome: Outcome, after: float = 0.0, before: float = 1e9) -> list[int]:
    """Workers of the only pool, a second each."""
    return [sum(p.workers.values()) for p in outcome.points if after <= p.at < before]


def at(outcome: Outcome, second: float) -> Point:
    return next(p for p in outcome.points if p.at >= second)


@pytest.mark.parametrize("name", SCENARIOS)
def test_the_score_is_the_least_of_all_or_within_two_hundredths_of_it(name: str) -> None:
    found = {k: known(name, k).score for k in CONTENDERS}
    assert found["starvation"] <= 1.02 * min(found.values())


@pytest.mark.parametrize("seed", [1, 2])
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_disturbance_changes_the_direction_twice_at_most(name: str, seed: int) -> None:
    assert known(name, seed=seed).flips <= 2 * SCENARIOS[name].disturbances


def test_the_same_seed_gives_the_same_run() -> None:
    assert known("burst") == known("burst")


def test_a_slow_starting_bottleneck_gets_the_cpus_within_ten_decisions() -> None:
    scenario = SCENARIOS["fast-neighbour"]
    optimum = 128 / (0.17 + 0.21)
    assert at(known("fast-neighbour"), 10 * scenario.interval).capacity >= 0.95 * optimum
    assert at(known("fast-neighbour", "ray-data"), 10 * scenario.interval).capacity < 0.2 * optimum


def test_nothing_grows_while_the_trainer_is_the_limit() -> None:
    slow = known("slow-trainer")
    found = sizes(slow, after=406, before=800)
    assert all(b <= a for a, b in pairwise(found))
    assert found[-1] <= 3
    greedy = sizes(known("slow-trainer", "lag-only"), after=406, before=800)
    assert max(greedy) == 32


def test_lost_metrics_change_nothing() -> None:
    outcome = known("metric-loss")
    for a, b in SCENARIOS["metric-loss"].unknown:
        assert len(set(sizes(outcome, a + 1, b))) == 1


def test_an_outage_of_the_broker_scales_nothing_down() -> None:
    found = sizes(known("broker-outage"), 301, 360)
    assert len(set(found)) == 1
    assert found[0] >= 5


def test_a_broker_whose_last_word_is_repeated_scales_nothing_down_either() -> None:
    frozen = run(replace(SCENARIOS["broker-outage"], unknown=()))
    found = sizes(frozen, 301, 360)
    assert len(set(found)) == 1
    assert found[0] >= 5


def test_three_times_the_load_is_answered_within_five_seconds() -> None:
    scenario = Scenario(
        name="step",
        seconds=60,
        arrival=steps((0, 20.0), (10, 60.0)),
        demand=constant(80.0),
        pools={"decode": PoolModel(row_seconds=constant(0.1), workers=3)},
    )
    grown = [second for second, d in run(scenario).changes if d.workers > 3 and second >= 10]
    assert grown[0] <= 15


def test_one_partition_feeds_as_many_workers_as_the_cpus_allow() -> None:
    scenario = replace(SCENARIOS["steady"], backlog=100_000, cpus=4, demand=constant(500.0))
    assert max(sizes(run(scenario), after=10)) == 4


def test_one_partition_that_is_read_slowly_is_not_given_workers_beyond_use() -> None:
    scenario = replace(SCENARIOS["steady"], backlog=100_000, reading=constant(30.0))
    assert max(sizes(run(scenario), after=120)) <= 4


def test_a_worker_that_hangs_costs_one_row_a_while_and_nothing_else() -> None:
    outcome = known("hung-worker")
    assert outcome.rows >= 40 * 600 - 100


def test_a_fixed_pool_does_as_much_as_its_workers_can() -> None:
    pools = {"decode": PoolModel(row_seconds=constant(0.1), start_seconds=0.0, workers=4)}
    scenario = replace(SCENARIOS["steady"], pools=pools, arrival=constant(100.0), spread=0.0)
    outcome = run(scenario, "fixed")
    assert outcome.worker_seconds == pytest.approx(4 * 900)
    assert outcome.rows == pytest.approx(40 * 900, rel=0.01)
    assert outcome.starved_seconds == pytest.approx(900 * (1 - 40 / 60), rel=0.02)


def recording(scenario: Scenario, path: Path) -> None:
    """What a run of a scenario would have recorded."""
    file, ours = TraceFile(path), Ours(Autoscaling(interval=scenario.interval))

    class Recording:
        def steps(self, sample: Sample) -> list[object]:
            file.write(ours._scaler.decide(sample)[0])
            return []

    simulate(scenario, Recording())  # type: ignore[arg-type]


def test_a_recorded_run_can_be_run_again(tmp_path: Path) -> None:
    scenario = replace(SCENARIOS["slow-trainer"], pools=SCENARIOS["steady"].pools)
    recording(scenario, tmp_path / "trace.jsonl")
    again = recorded("again", read_trace(tmp_path / "trace.jsonl"))
    assert again.seconds == pytest.approx(scenario.seconds, abs=2)
    assert again.arrival(500) == pytest.approx(80, rel=0.05)
    assert again.demand(600) == pytest.approx(25, rel=0.05)
    assert again.pools["decode"].row_seconds(600) == pytest.approx(0.1, rel=0.1)
    assert run(again).score < run(again, "lag-only").score


def test_a_gap_of_a_recorded_run_is_a_gap_again(tmp_path: Path) -> None:
    recording(SCENARIOS["metric-loss"], tmp_path / "trace.jsonl")
    again = recorded("again", read_trace(tmp_path / "trace.jsonl"))
    assert again.is_unknown(230)
    assert not again.is_unknown(100)
    assert not again.is_unknown(400)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "has 0 observations: it needs two and more"),
        ("nonsense\n", ":1: no observation"),
        ('{"at": 1}\n', ":1: no observation"),
        ("[]\n", ":1: no observation"),
    ],
)
def test_a_file_that_is_no_trace_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "t.jsonl").write_text(text)
    with pytest.raises(ConfigError, match=message):
        read_trace(tmp_path / "t.jsonl")


def test_a_trace_that_never_says_enough_is_refused(tmp_path: Path) -> None:
    lines = [json.dumps(Observation(at=float(i)).to_json()) for i in range(3)]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    with pytest.raises(ConfigError, match="never says arrivals: record a run with"):
        recorded("t", read_trace(tmp_path / "t.jsonl"))


def test_a_picture_has_a_line_for_each_run_and_panel() -> None:
    outcomes = {k: known("hung-worker", k) for k in ("starvation", "fixed")}
    root = ElementTree.fromstring(picture("a < b", outcomes))
    assert len(root.findall(".//{http://www.w3.org/2000/svg}polyline")) == 2 * 3
    words = [e.text or "" for e in root.iter("{http://www.w3.org/2000/svg}text")]
    assert "a < b" in words
