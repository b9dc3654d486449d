"""A profiler's trace of a few steps, summed up: what the device did, and what the CPU did most.

Reads the Chrome trace that ``torch.profiler`` writes (times in microseconds), and no more of it
than its categories and names.
"""

from __future__ import annotations

import json
import os
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import msgspec

from forebay.report import Report

Interval: TypeAlias = tuple[float, float]
_MICROS = 1e6
_STEP = re.compile(r"ProfilerStep#\d+")
_COMMUNICATION = re.compile(r"nccl", re.IGNORECASE)
_ON_DEVICE = ("kernel", "gpu_memcpy", "gpu_memset")


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceShares:
    """What one device did; shares of ``seconds``, 0 to 1. Work of several streams at once counts
    once."""

    device: str
    seconds: float
    busy: float
    """It computed, copied or communicated."""
    compute: float
    """Kernels ran, those of communication left out."""
    copy: float
    """Data came from the host."""
    copy_alone: float
    """The part of it in which no kernel ran: the step waited for it."""
    communication: float
    """Kernels of NCCL ran: they send, or wait for the other ranks."""
    communication_alone: float
    """The part of it in which no other kernel ran."""
    idle: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTime:
    """One operation on the CPU: all its calls, without the operations that they called."""

    name: str
    seconds: float
    calls: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ProfileSummary:
    """What a few steps went to."""

    trace: str
    """The file: open it in chrome://tracing or ui.perfetto.dev."""
    steps: int
    seconds: float
    """From the begin of the first step to the end of the last, on the host."""
    devices: tuple[DeviceShares, ...]
    """Empty on a machine without."""
    ops: tuple[OpTime, ...]
    """The longest first."""

    @property
    def sentence(self) -> str:
        """The first thing to know."""
        if self.devices:
            least = min(self.devices, key=lambda d: d.busy)
            return (
                f"In {self.steps} profiled steps {least.device} was busy {least.busy:.0%} of the "
                f"time: {least.compute:.0%} kernels, {least.copy_alone:.0%} copies from the host "
                f"that nothing hid, {least.communication_alone:.0%} communication that nothing hid."
            )
        if not self.ops:
            return f"In {self.steps} profiled steps no operation of torch's was seen."
        first = self.ops[0]
        return (
            f"In {self.steps} profiled steps ({self.seconds:.3g} s) the CPU was longest in "
            f"{first.name}: {first.seconds:.3g} s in {first.calls} calls. No device was seen."
        )

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        made: dict[str, Any] = msgspec.to_builtins(self)
        return made

    def report(self, report: Report) -> None:
        """Add a section to a report."""
        report.section("Profile")
        report.text(self.sentence)
        if self.devices:
            report.table(
                ["device", "busy", "kernels", "copy in", "NCCL", "idle"],
                [
                    [
                        d.device,
                        f"{d.busy:.1%}",
                        f"{d.compute:.1%}",
                        f"{d.copy:.1%} ({d.copy_alone:.1%} not hidden)",
                        f"{d.communication:.1%} ({d.communication_alone:.1%} not hidden)",
                        f"{d.idle:.1%}",
                    ]
                    for d in self.devices
                ],
            )
        if self.ops:
            report.table(
                ["operation on the CPU", "ms of its own", "calls"],
                [[op.name, op.seconds * 1e3, op.calls] for op in self.ops],
            )
        report.text(f"The trace for chrome://tracing or ui.perfetto.dev: {self.trace}")


def summarise(path: str | os.PathLike[str], most_ops: int = 10) -> ProfileSummary:
    """Sum up a trace file.

    Raises:
        ValueError: it is no trace, or holds no whole step.
    """
    events = _events(Path(path))
    steps = [e for e in events if e["cat"] == "user_annotation" and _STEP.fullmatch(e["name"])]
    if not steps:
        raise ValueError(f"{os.fspath(path)} holds no step: it was not recorded with a schedule")
    began, ended = min(map(_begin, steps)), max(map(_end, steps))
    return ProfileSummary(
        trace=os.fspath(path),
        steps=len({e["name"] for e in steps}),
        seconds=(ended - began) / _MICROS,
        devices=tuple(_devices(events)),
        ops=tuple(_ops(events)[:most_ops]),
    )


def _events(path: Path) -> list[Mapping[str, Any]]:
    try:
        tree = json.loads(path.read_bytes())
        found = tree["traceEvents"]
    except (ValueError, KeyError, TypeError) as e:
        raise ValueError(f"{path} is no Chrome trace: {e}") from e
    return [e for e in found if e.get("ph") == "X" and "cat" in e and "dur" in e]


def _devices(events: Sequence[Mapping[str, Any]]) -> Iterator[DeviceShares]:
    by_device: dict[int, list[Mapping[str, Any]]] = defaultdict(list)
    for event in events:
        if event["cat"] in (*_ON_DEVICE, "gpu_user_annotation"):
            by_device[int(event.get("args", {}).get("device", event["pid"]))].append(event)
    for device, of_it in sorted(by_device.items()):
        work = [e for e in of_it if e["cat"] in _ON_DEVICE]
        if work:
            yield _shares(f"cuda:{device}", work, _window(of_it, work))


def _window(events: Sequence[Mapping[str, Any]], work: Sequence[Mapping[str, Any]]) -> Interval:
    """Whole periods, from the first work of the first step to the first work of the last.

    A device that the host runs ahead of is a part of a step late: what it did between two times
    of the host is not what it did in these steps. Where the steps are not marked on the device, it
    is all that was seen of its work.
    """
    first_work: dict[str, float] = {}
    for e in events:
        if e["cat"] == "gpu_user_annotation" and _STEP.fullmatch(e["name"]):
            first_work[e["name"]] = min(first_work.get(e["name"], _begin(e)), _begin(e))
    if len(first_work) > 1:
        return min(first_work.values()), max(first_work.values())
    return min(map(_begin, work)), max(map(_end, work))


def _shares(device: str, work: Sequence[Mapping[str, Any]], window: Interval) -> DeviceShares:
    kernels = [e for e in work if e["cat"] == "kernel"]
    talks = [e for e in kernels if _COMMUNICATION.search(e["name"])]
    computes = [e for e in kernels if not _COMMUNICATION.search(e["name"])]
    copies = [e for e in work if e["cat"] == "gpu_memcpy" and "HtoD" in e["name"]]
    whole = window[1] - window[0]
    all_kernels, compute, talk, copy, busy = (
        _union(_clipped(of, window)) for of in (kernels, computes, talks, copies, work)
    )

    def share(*intervals: Interval) -> float:
        return _length(_union(intervals)) / whole if whole > 0 else 0.0

    return DeviceShares(
        device=device,
        seconds=whole / _MICROS,
        busy=share(*busy),
        compute=share(*compute),
        copy=share(*copy),
        copy_alone=share(*copy, *all_kernels) - share(*all_kernels),
        communication=share(*talk),
        communication_alone=share(*talk, *compute) - share(*compute),
        idle=1.0 - share(*busy),
    )


def _ops(events: Iterable[Mapping[str, Any]]) -> list[OpTime]:
    """Each operation's own time, over all threads, the longest first."""
    threads: dict[Any, list[Mapping[str, Any]]] = defaultdict(list)
    for event in events:
        if event["cat"] == "cpu_op":
            threads[event["pid"], event["tid"]].append(event)
    own: dict[str, float] = defaultdict(float)
    calls: dict[str, int] = defaultdict(int)
    for of_thread in threads.values():
        open_calls: list[Mapping[str, Any]] = []
        for event in sorted(of_thread, key=lambda e: (e["ts"], -e["dur"])):
            while open_calls and _end(open_calls[-1]) <= event["ts"]:
                open_calls.pop()
            if open_calls:
                own[open_calls[-1]["name"]] -= event["dur"]
            own[event["name"]] += event["dur"]
            calls[event["name"]] += 1
            open_calls.append(event)
    times = [OpTime(name=n, seconds=us / _MICROS, calls=calls[n]) for n, us in own.items()]
    return sorted(times, key=lambda op: -op.seconds)


def _clipped(events: Iterable[Mapping[str, Any]], window: Interval) -> list[Interval]:
    cut = ((max(_begin(e), window[0]), min(_end(e), window[1])) for e in events)
    return [(begin, end) for begin, end in cut if end > begin]


def _union(intervals: Iterable[Interval]) -> list[Interval]:
    """The same time without overlaps."""
    joined: list[Interval] = []
    for begin, end in sorted(intervals):
        if joined and begin <= joined[-1][1]:
            joined[-1] = joined[-1][0], max(joined[-1][1], end)
        else:
            joined.append((begin, end))
    return joined


def _length(intervals: Iterable[Interval]) -> float:
    return sum(end - begin for begin, end in intervals)


def _begin(event: Mapping[str, Any]) -> float:
    return float(event["ts"])


def _end(event: Mapping[str, Any]) -> float:
    return float(event["ts"]) + float(event["dur"])
