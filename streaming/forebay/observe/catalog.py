"""Every metric: its name, what it says, and how it is read from snapshots.

Prometheus, OTLP and the table in ``docs/metrics.md`` are made of this one list. The names follow
Prometheus' rules: base units, the unit last, ``_total`` behind counters alone. A value that is not
known is None and makes no sample; labels come from what a pipeline is made of, never from records.
"""

from __future__ import annotations

import re
from collections.abc import Mapping

from forebay.observe import points, readings
from forebay.observe.metric import (
    PREFIX,
    Metric,
    counter,
    each,
    gauge,
    histogram,
    of_gpu,
    of_pool,
    of_source,
    of_split,
    of_stage,
)
from forebay.observe.readings import RATIO_SECONDS, History

MOST_SPLITS = 1000
"""A rank with more splits tells of each source, not of each split: eight series a split add up."""


def metrics_of(history: History, most_splits: int = MOST_SPLITS) -> tuple[Metric, ...]:
    """Those of the list, and those of the counts that this rank's source names itself.

    Of a rank with more than ``most_splits`` none that has series for each split.
    """
    many = len(history[-1].splits) > most_splits
    listed = [m for m in METRICS if not (many and m.per_split)]
    return (*listed, *_of_reader(history[-1].reader))


def _of_reader(counts: Mapping[str, float]) -> list[Metric]:
    """A source names its counts itself: ``bytes`` becomes ``forebay_reader_bytes_total``."""
    names: dict[str, list[str]] = {}
    for name in counts:
        plain = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_").removesuffix("_total")
        names.setdefault(plain, []).append(name)
    return [
        counter(
            f"reader_{plain}_total",
            f"Counted by the source's reader: {plain.replace('_', ' ')}.",
            lambda s, same=tuple(same): sum(s.reader[k] for k in same if k in s.reader),  # type: ignore[misc]
        )
        for plain, same in names.items()
    ]


METRICS: tuple[Metric, ...] = (
    # The run
    each(
        "info",
        "job_info",
        "Which process this is; always 1.",
        ("host", "topology", "engine", "version"),
        lambda s: [((s.job.host, s.job.topology or "", s.job.engine, s.job.version), 1.0)],
    ),
    gauge("job_running", "1 while it runs, 0 once it has ended.", lambda s: float(s.ended is None)),
    gauge("job_start_time_seconds", "When the process began, by the clock.", lambda s: s.job.began),
    gauge("snapshot_timestamp_seconds", "When all this was read, by the clock.", lambda s: s.at),
    # What the trainer was given
    counter("batches_total", "Batches given to the trainer.", lambda s: s.batches),
    counter("rows_total", "Rows given to the trainer.", lambda s: s.rows),
    counter("passes_total", "Passes over a bounded source that were ended.", lambda s: s.passes),
    # Where its time went
    Metric(
        name=PREFIX + "starvation_ratio",
        kind="gauge",
        help="Share of the trainer's time in which the device idled for want of a batch; of the "
        f"last {RATIO_SECONDS:.0f} seconds.",
        read=readings.starvation,
    ),
    Metric(
        name=PREFIX + "step_time_seconds_total",
        kind="counter",
        help="Where the trainer's time went. A part that is not known is in part=compute.",
        labels=("part",),
        read=readings.step_time,
    ),
    each(
        "counter",
        "pause_seconds_total",
        "Time in named pauses of training (checkpoints, evaluation); it is in part=other, too.",
        ("pause",),
        readings.pauses,
    ),
    counter(
        "batch_wait_seconds_total",
        "Time the trainer's thread waited for batches. More than starved where it runs ahead of "
        "the device.",
        lambda s: s.steps.wait,
    ),
    histogram("batch_wait_duration_seconds", "Each wait for a batch.", lambda s: s.wait_seconds),
    histogram("step_seconds", "Whole steps, from batch to batch.", lambda s: s.step_seconds),
    histogram(
        "freshness_seconds",
        "From each row's event time to the moment its batch was given to the trainer.",
        lambda s: s.freshness,
    ),
    # Lag, by source
    of_source(
        "source_lag_records",
        "Offsets up to the ends that were not given to the trainer; of all splits together.",
        points.records_behind,
    ),
    of_source(
        "source_lag_seconds",
        "How long the oldest record that was not given has been there; of the split behind most.",
        points.seconds_behind,
    ),
    each(
        "gauge",
        "splits",
        "Splits by what their lag does.",
        ("source", "state"),
        readings.splits_in_state,
    ),
    # Lag, by split
    of_split(
        "lag_records", "Offsets up to the end not given to the trainer.", lambda s: s.lag_records
    ),
    of_split("lag_fetched_records", "Offsets up to the end not read yet.", lambda s: s.lag_fetched),
    of_split(
        "lag_checkpointed_records",
        "Offsets up to the end that the last state taken does not cover.",
        lambda s: s.lag_checkpointed,
    ),
    of_split(
        "lag_seconds",
        "How long the oldest record that was not given has been there.",
        lambda s: s.lag_seconds,
    ),
    Metric(
        name=PREFIX + "split_state",
        kind="gauge",
        help="1 for the state that the split is in, 0 for the others.",
        labels=("source", "split", "state"),
        read=readings.split_states,
        per_split=True,
    ),
    # Stages and the workers that run them
    of_stage(
        "stage_busy_seconds_total",
        "Time workers spent in the stage, of all of them together.",
        lambda s: s.busy_seconds,
    ),
    each(
        "counter",
        "stage_rows_total",
        "Rows that went into the stage and came out of it.",
        ("stage", "direction"),
        lambda s: [
            ((name, direction), rows)
            for name, x in s.stages.items()
            for direction, rows in (("in", x.rows_in), ("out", x.rows_out))
        ],
    ),
    of_stage("stage_failed_rows_total", "Rows that the stage could not do.", lambda s: s.failed),
    of_stage("stage_slices_total", "Slices that the stage did.", lambda s: s.slices),
    each(
        "gauge",
        "workers",
        "Workers of the pool; starting are those that were asked for and do no work yet.",
        ("pool", "state"),
        readings.workers,
    ),
    each(
        "gauge", "workers_limit", "Bounds of the pool's size.", ("pool", "bound"), readings.limits
    ),
    of_pool(
        "counter",
        "workers_replaced_total",
        "Workers that hung and were replaced.",
        lambda p: p.replaced,
    ),
    of_pool(
        "gauge", "pool_queued_slices", "Slices without a worker yet.", lambda p: p.queued_slices
    ),
    of_pool(
        "counter",
        "pool_busy_seconds_total",
        "Time workers worked, of all of them together, work under way included.",
        lambda p: p.busy_seconds,
    ),
    of_pool(
        "counter",
        "pool_cpu_seconds_total",
        "CPU time of the pool's finished work.",
        lambda p: p.cpu_seconds,
    ),
    # Dead letters
    counter(
        "dead_rows_total",
        "Rows that became dead letters. There from the start, so that a rate sees the first.",
        lambda s: s.letters.total,
    ),
    each(
        "counter",
        "dead_letters_total",
        "Dead letters by stage and kind: what their reasons begin with, as the exception's name.",
        ("stage", "kind"),
        readings.letters,
    ),
    # Buffers
    gauge(
        "buffer_bytes", "Bytes in flight, source to trainer.", lambda s: s.buffer.bytes_in_flight
    ),
    gauge("buffer_limit_bytes", "Their bound.", lambda s: s.buffer.max_bytes),
    gauge("ready_batches", "Batches that lie ready.", lambda s: s.buffer.ready_batches),
    gauge("ready_batches_limit", "How many may.", lambda s: s.buffer.prefetch),
    each(
        "counter",
        "buffer_wait_seconds_total",
        "Time in which making batches waited: for=source, for finished slices; for=room, for the "
        "trainer to take one.",
        ("for",),
        lambda s: [
            (("source",), s.buffer.source_wait_seconds),
            (("room",), s.buffer.room_wait_seconds),
        ],
    ),
    # Autoscaler
    each(
        "counter",
        "autoscaler_decisions_total",
        "Decisions, those to hold and those of a dry run included.",
        ("pool", "action"),
        readings.decided,
    ),
    each(
        "gauge",
        "autoscaler_wanted_workers",
        "What the last decision was for.",
        ("pool",),
        readings.wanted,
    ),
    # The process
    gauge(
        "process_resident_memory_bytes",
        "The trainer's resident memory.",
        lambda s: s.process.rss_bytes,
    ),
    gauge(
        "process_pss_bytes",
        "Memory of the trainer and its children, what they share counted once.",
        lambda s: s.process.pss_bytes,
    ),
    counter(
        "process_cpu_seconds_total", "CPU time of all threads.", lambda s: s.process.cpu_seconds
    ),
    Metric(
        name=PREFIX + "process_threads_without_cpu",
        kind="gauge",
        help="Threads that were ready to run and had no CPU, on average; of the last "
        f"{RATIO_SECONDS:.0f} seconds.",
        read=readings.without_cpu,
    ),
    gauge("process_threads", "Threads of the trainer.", lambda s: s.process.threads),
    gauge("process_cpus", "CPUs that it may use.", lambda s: s.process.cpus),
    gauge(
        "process_gil_ratio",
        "Share of the last snapshot's time in which the interpreter's lock was taken.",
        lambda s: s.process.gil,
    ),
    # GPUs
    of_gpu(
        "gpu_busy_ratio",
        "NVML's utilization.gpu: share of its last sample period in which any kernel ran, however "
        "little of the device it used. Not how busy the device is.",
        lambda g: g.busy,
    ),
    of_gpu(
        "gpu_sm_active_ratio",
        "Multiprocessors that worked, on average since the last look; of Hopper and later.",
        lambda g: g.sm_active,
    ),
    of_gpu("gpu_memory_used_bytes", "Memory in use, by all processes.", lambda g: g.memory_used),
    of_gpu("gpu_memory_size_bytes", "Memory of the device.", lambda g: g.memory_total),
    of_gpu("gpu_memory_process_bytes", "Memory in use by this process.", lambda g: g.memory_mine),
    of_gpu("gpu_power_watts", "Power drawn, as NVML averages it.", lambda g: g.watts),
    of_gpu("gpu_power_limit_watts", "What the driver holds it to.", lambda g: g.watts_limit),
    of_gpu("gpu_temperature_celsius", "Of the GPU.", lambda g: g.celsius),
    each(
        "gauge",
        "gpu_throttled",
        "1 for what keeps the clocks down, 0 for what does not.",
        ("gpu", "reason"),
        readings.throttled,
    ),
    # Ranks
    each(
        "gauge",
        "peer_time_ratio",
        "What each rank told of its time at the last exchange; told by rank 0 for all.",
        ("peer", "part"),
        readings.ranks,
    ),
)
