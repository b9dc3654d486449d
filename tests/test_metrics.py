"""Metrics are made of snapshots: named by Prometheus' rules, and absent where nothing is known."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.openmetrics.parser import (
    text_string_to_metric_families as parsed_open_metrics,
)
from prometheus_client.parser import text_string_to_metric_families as parsed_text
from tests.snapshots import GPU, JOB, busy, idle, pool, split

from forebay.observe.catalog import METRICS
from forebay.observe.prometheus import Histories, SnapshotCollector, exposition
from forebay.observe.readings import MOST_PAUSES

Series = tuple[str, tuple[tuple[str, str], ...]]


def scraped(*histories: Sequence[Any], most_splits: int = 1000) -> dict[Series, float]:
    """What Prometheus would store, by name and labels."""
    text, _ = exposition(histories, most_splits=most_splits)
    samples = [s for family in parsed_text(text.decode()) for s in family.samples]
    found = {(s.name, tuple(sorted(s.labels.items()))): s.value for s in samples}
    assert len(found) == len(samples), "a series is there twice"
    return found


def value(series: Mapping[Series, float], name: str, **labels: str) -> float | None:
    wanted = {"run": "clicks", "rank": "0", **labels}
    return series.get(("forebay_" + name, tuple(sorted(wanted.items()))))


def names(series: Mapping[Series, float]) -> set[str]:
    return {name for name, _ in series}


def test_names_follow_the_rules_of_prometheus() -> None:
    for metric in METRICS:
        counted = metric.name.endswith("_total")
        assert re.fullmatch(r"forebay(_[a-z0-9]+)+", metric.name)
        assert counted == (metric.kind == "counter"), metric.name
        assert metric.name.endswith("_info") == (metric.kind == "info"), metric.name
        assert not re.search(r"_(ms|millis\w*|percent|mb|kb|count|sum|bucket|gauge)\b", metric.name)
        assert all(re.fullmatch(r"[a-z]+", label) for label in metric.labels)
        assert (
            metric.help[0].isupper() or metric.help[0].isdigit() or metric.help.startswith("NVML")
        )
        assert metric.help.endswith((".", "!")), metric.name
    assert len({m.name for m in METRICS}) == len(METRICS)


def test_of_a_busy_job_every_metric_has_a_value() -> None:
    families = {f.name for f in SnapshotCollector(lambda: [[busy(5), busy(10)]]).collect()}
    assert {m.name.removesuffix("_total").removesuffix("_info") for m in METRICS} <= families


def test_every_series_says_of_which_run_and_rank_it_is() -> None:
    other = [idle(job=replace(JOB, rank=3))]
    for _, labels in scraped([busy(10)], other):
        assert dict(labels)["run"] == "clicks"
        assert dict(labels)["rank"] in ("0", "3")


def test_what_is_not_known_has_no_sample_and_nothing_is_negative() -> None:
    series = scraped([idle()])
    assert not {n for n in names(series) if re.search("lag|starv|step_time|gpu|process|work", n)}
    assert value(series, "rows_total") == 0
    unknown = {"kafka:clicks/0": split(5, end=None, lag_records=None, lag_fetched=None, state=None)}
    series = scraped([busy(5), busy(10, splits=unknown)])
    assert "forebay_lag_records" not in names(series)
    assert "forebay_source_lag_records" not in names(series)
    assert min(series.values()) >= 0


def test_starvation_is_that_of_the_last_minute() -> None:
    assert value(scraped([busy(100), busy(150)]), "starvation_ratio") == 0.1
    since_then = replace(busy(200).steps, starved=busy(150).steps.starved)
    assert (
        value(scraped([busy(100), busy(150), busy(200, steps=since_then)]), "starvation_ratio")
        == 0.0
    )


def test_nobody_starves_who_does_not_train_or_whose_device_does_not_tell() -> None:
    drains = replace(JOB, has_trainer=False)
    untold = replace(busy(10).steps, starved=None)
    for history in (
        [busy(10)],
        [busy(5, job=drains), busy(10, job=drains)],
        [busy(5), busy(10, steps=untold)],
    ):
        assert value(scraped(history), "starvation_ratio") is None


def test_a_time_that_turns_out_to_be_another_part_is_no_step_back_of_a_counter() -> None:
    later = replace(busy(10).steps, compute=6.0, starved=2.0)
    series = scraped([busy(10), busy(11, steps=later)])
    assert value(series, "step_time_seconds_total", part="compute") == 7.0
    assert value(series, "step_time_seconds_total", part="starved") == 2.0


def test_histograms_are_cumulative_and_end_with_all() -> None:
    series = scraped([busy(10)])
    bucket = "freshness_seconds_bucket"
    assert [value(series, bucket, le=le) for le in ("1.0", "2.5", "+Inf")] == [0, 25600, 25600]
    assert value(series, "freshness_seconds_count") == 25600
    assert value(series, "freshness_seconds_sum") == 1.5 * 25600


def test_a_rank_that_is_told_of_twice_is_taken_as_it_told_last() -> None:
    again = idle(100, job=replace(JOB, pid=8), rows=7)
    assert value(scraped([again], [busy(10)]), "rows_total") == 7
    assert value(scraped([busy(10)], [again]), "rows_total") == 7


def test_beyond_some_splits_each_source_is_told_of_and_not_each_split() -> None:
    many = {f"kafka:clicks/{i}": split(10, lag=i, state="BEHIND") for i in range(5)}
    series = scraped([busy(10, splits=many)], most_splits=4)
    source = {"source": "kafka:clicks"}
    assert not {n for n in names(series) if n.startswith(("forebay_lag", "forebay_split_"))}
    assert value(series, "source_lag_records", **source) == 10
    assert value(series, "source_lag_seconds", **source) == 0.04
    assert value(series, "splits", **source, state="BEHIND") == 5
    assert value(series, "splits", **source, state="OK") == 0


def test_a_split_is_in_one_state_of_four() -> None:
    series = scraped([busy(10, splits={"t/0": split(1, source="t", state="STALLED")})])
    states = {
        state: value(series, "split_state", source="t", split="t/0", state=state)
        for state in ("OK", "BEHIND", "STALLED", "STOPPED")
    }
    assert states == {"OK": 0, "BEHIND": 0, "STALLED": 1, "STOPPED": 0}


def test_a_gpu_tells_what_slows_it_down_if_it_tells_at_all() -> None:
    untold = replace(GPU, uuid="GPU-b", busy=None, throttled=None)
    series = scraped([busy(10, gpus=(GPU, untold))])
    assert value(series, "gpu_throttled", gpu="GPU-a", reason="thermal") == 1
    assert value(series, "gpu_throttled", gpu="GPU-a", reason="power cap") == 0
    assert value(series, "gpu_throttled", gpu="GPU-b", reason="thermal") is None
    assert value(series, "gpu_busy_ratio", gpu="GPU-b") is None
    assert value(series, "gpu_sm_active_ratio", gpu="GPU-b") == 0.5


def test_rank_0_alone_tells_of_its_peers() -> None:
    first, second = scraped([busy(10)]), scraped([busy(10, job=replace(JOB, rank=1))])
    assert value(first, "peer_time_ratio", peer="1", part="starved") == 0.6
    assert "forebay_peer_time_ratio" not in names(second)


def test_counts_of_a_reader_are_named_by_the_rules_whatever_it_calls_them() -> None:
    reader = {"records": 5.0, "client errors": 1.0, "Client-Errors": 2.0, "lost_rows_total": 3.0}
    series = scraped([busy(10, reader=reader)])
    assert value(series, "reader_records_total") == 5
    assert value(series, "reader_client_errors_total") == 3
    assert value(series, "reader_lost_rows_total") == 3


def test_names_that_a_trainer_gives_to_pauses_do_not_become_series_without_end() -> None:
    pauses = {f"step {i}": 1.0 for i in range(1000)}
    series = scraped([busy(10, steps=replace(busy(10).steps, pauses=pauses))])
    told = [key for key in series if key[0] == "forebay_pause_seconds_total"]
    assert len(told) == MOST_PAUSES + 1
    assert value(series, "pause_seconds_total", pause="other") == 1000 - MOST_PAUSES


def test_text_of_records_cannot_break_the_format() -> None:
    odd = 'a"b\\c\nd'
    series = scraped([busy(10, pools={odd: pool(1, 1.0)}, job=replace(JOB, topology=odd))])
    assert value(series, "pool_queued_slices", pool=odd) == 4


def test_open_metrics_is_given_to_who_asks_for_it() -> None:
    text, content_type = exposition([[busy(5), busy(10)]], "application/openmetrics-text")
    assert content_type.startswith("application/openmetrics-text")
    families = {f.name: f for f in parsed_open_metrics(text.decode())}  # type: ignore[no-untyped-call]
    assert families["forebay_rows"].type == "counter"
    assert families["forebay_freshness_seconds"].unit == "seconds"
    plain, content_type = exposition([[busy(10)]], "text/plain;version=0.0.4")
    assert content_type.startswith("text/plain")
    assert plain == exposition([[busy(10)]])[0]


def test_a_program_has_them_beside_its_own() -> None:
    registry = CollectorRegistry()
    Counter("own", "The program's own.", registry=registry).inc()
    histories: Histories = []
    registry.register(SnapshotCollector(lambda: histories))
    assert b"own_total 1.0" in generate_latest(registry)
    histories = [[busy(10)]]
    assert b'forebay_rows_total{rank="0",run="clicks"} 25600.0' in generate_latest(registry)
