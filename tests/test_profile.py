"""torch.profiler on demand: a few steps, then off; the sums of its trace are ours."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from forebay.diagnose.profile import StepProfiler
from forebay.diagnose.trace import summarise
from forebay.report import Report


def step() -> None:
    a = torch.ones(64, 64)
    (a @ a).sum()


def test_three_steps_are_recorded_and_the_profiler_is_off_then(tmp_path: Path) -> None:
    done: list[bool] = []
    with StepProfiler(tmp_path / "new") as profiler:
        for _ in range(8):
            step()
            done.append(profiler.step())
    assert done == [False] * 4 + [True] * 4
    summary = profiler.summary()
    assert summary is not None and summary.steps == 3
    calls = {op.name: op.calls for op in summary.ops}
    assert calls["aten::mm"] == 3
    assert "aten::mm" in json.dumps(summary.to_json())
    assert Path(summary.trace).exists()


def test_a_loop_that_ends_before_they_are_recorded_has_no_summary(tmp_path: Path) -> None:
    with StepProfiler(tmp_path) as profiler:
        for _ in range(4):
            step()
            assert not profiler.step()
    assert profiler.summary() is None


def test_the_devices_time_is_split_into_kernels_copies_communication_and_idling(
    tmp_path: Path,
) -> None:
    # Two periods of 100 us: a copy that a kernel hides half, a kernel, NCCL half hidden by it.
    summary = summarise(trace(tmp_path, [0, 100, 200]))
    device = summary.devices[0]
    assert device.seconds == pytest.approx(200e-6)
    assert device.copy == pytest.approx(0.20)
    assert device.copy_alone == pytest.approx(0.10)
    assert device.compute == pytest.approx(0.40)
    assert device.communication == pytest.approx(0.20)
    assert device.communication_alone == pytest.approx(0.10)
    assert device.busy == pytest.approx(0.60) and device.idle == pytest.approx(0.40)
    assert "busy 60%" in summary.sentence


def test_kernels_of_two_streams_at_once_count_once(tmp_path: Path) -> None:
    extra = [event("kernel", "gemm", 15, 30, device=0, tid=9)]
    device = summarise(trace(tmp_path, [0, 100, 200], extra)).devices[0]
    assert device.compute == pytest.approx(0.40)


def test_a_device_that_runs_behind_the_host_is_judged_by_its_own_steps(tmp_path: Path) -> None:
    late = trace(tmp_path, [0, 100, 200], shift=90)
    assert summarise(late).devices[0].busy == pytest.approx(0.60)


def test_the_time_of_an_operation_is_without_those_that_it_called(tmp_path: Path) -> None:
    extra = [
        event("cpu_op", "aten::linear", 0, 50),
        event("cpu_op", "aten::addmm", 10, 30),
        event("cpu_op", "aten::linear", 60, 10),
    ]
    ops = {op.name: op for op in summarise(trace(tmp_path, [0, 100, 200], extra)).ops}
    assert ops["aten::linear"].seconds == pytest.approx(30e-6)
    assert ops["aten::linear"].calls == 2
    assert ops["aten::addmm"].seconds == pytest.approx(30e-6)


def test_a_file_that_is_no_trace_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.json").write_text("[]")
    with pytest.raises(ValueError, match="no Chrome trace"):
        summarise(tmp_path / "x.json")
    (tmp_path / "y.json").write_text('{"traceEvents": []}')
    with pytest.raises(ValueError, match="holds no step"):
        summarise(tmp_path / "y.json")


def test_a_profile_is_a_section_of_a_report(tmp_path: Path) -> None:
    report = Report("x")
    summarise(trace(tmp_path, [0, 100, 200])).report(report)
    text = (report.save(tmp_path / "report") / "report.md").read_text()
    assert "cuda:0" in text and "10.0% not hidden" in text


def event(kind: str, name: str, begin: float, micros: float, **more: Any) -> dict[str, Any]:
    tid = more.pop("tid", 1)
    e = {"ph": "X", "cat": kind, "name": name, "ts": begin, "dur": micros, "pid": 1, "tid": tid}
    return e | ({"args": more} if more else {})


def trace(
    folder: Path, begins: list[int], extra: list[dict[str, Any]] | None = None, shift: float = 0
) -> Path:
    """A file as torch.profiler writes it: steps that begin at these microseconds, on the host and
    so much later on the device."""
    events: list[dict[str, Any]] = [{"ph": "M", "name": "process_name", "pid": 1, "args": {}}]
    for n, begin in enumerate(begins):
        at = begin + shift
        events += [
            event("user_annotation", f"ProfilerStep#{n}", begin, 100),
            event("gpu_user_annotation", f"ProfilerStep#{n}", at, 60, device=0),
            event("gpu_memcpy", "Memcpy HtoD (Pinned -> Device)", at, 20, device=0, tid=8),
            event("kernel", "gemm", at + 10, 40, device=0, tid=7),
            event("kernel", "ncclDevKernel_AllReduce", at + 40, 20, device=0, tid=6),
        ]
    path = folder / "trace.json"
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events + (extra or [])}))
    return path
