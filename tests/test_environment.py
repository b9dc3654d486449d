"""The record of what a measurement was made with: right, without a secret, a dash if unknown."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import torch
from tests.fake_nvml import FakeGpus

from forebay.diagnose.environment import command_line, commit_of, environment, size
from forebay.diagnose.machine import (
    cpus_seen,
    disk_seen,
    driver_version,
    gpu_models,
    memory_seen,
)
from forebay.topology import load

SECRET = "correct-horse"
MIX = """
source:
  type: mix
  sources:
    live: {type: kafka, topics: clicks, config: {bootstrap.servers: "b:9092",
      sasl.username: me, sasl.password: "${FOREBAY_TEST_SECRET}", sasl.mechanisms: PLAIN,
      security.protocol: SASL_PLAINTEXT}}
    old: {type: kafka, topics: archive, config: {bootstrap.servers: "b:9092"}}
  weights: {live: 3, old: 1}
batch: 4
"""


def git(folder: Path, *arguments: str) -> str:
    told = subprocess.run(
        ["git", "-C", str(folder), "-c", "user.name=a", "-c", "user.email=a@b", *arguments],
        check=True,
        capture_output=True,
        text=True,
    )
    return told.stdout.strip()


def test_the_commit_is_known_and_whether_files_differ_from_it(tmp_path: Path) -> None:
    assert commit_of(tmp_path) is None
    git(tmp_path, "init", "-q")
    (tmp_path / "train.py").write_text("1")
    git(tmp_path, "add", "train.py")
    git(tmp_path, "commit", "-q", "-m", "first")
    clean = commit_of(tmp_path)
    (tmp_path / "train.py").write_text("2")
    changed = commit_of(tmp_path)
    assert clean is not None and changed is not None
    assert clean.id == changed.id == git(tmp_path, "rev-parse", "HEAD")
    assert (clean.dirty, changed.dirty) == (False, True)


def test_no_secret_of_a_topology_or_of_the_command_line_is_in_the_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mix.yaml"
    file.write_text(MIX)
    monkeypatch.setenv("FOREBAY_TEST_SECRET", SECRET)
    monkeypatch.setenv("NCCL_COMMENT", f"x{SECRET}x")
    monkeypatch.setattr("sys.argv", ["forebay", "doctor", "--token", "abc", f"--note={SECRET}"])
    record = environment(load(file))
    assert record.command == "forebay doctor --token *** --note=***"
    assert SECRET not in json.dumps(record.to_json())
    assert not any(SECRET in value for _, value in record.rows())


def test_secrets_of_a_command_line_are_known_by_the_names_of_their_options() -> None:
    told = ["x", "--api-key=k", "--password", "p", "--verbose", "s3://me:pw@host/x", "--out", "o"]
    assert command_line(told) == "x --api-key=*** --password *** --verbose s3://***@host/x --out o"


def test_the_data_mix_tells_each_source_and_its_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "mix.yaml"
    file.write_text(MIX)
    monkeypatch.setenv("FOREBAY_TEST_SECRET", SECRET)
    assert environment(load(file)).data == {
        "live": "kafka topics=clicks (75% of the rows)",
        "old": "kafka topics=archive (25% of the rows)",
    }


def test_versions_and_settings_that_change_the_speed_are_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "3")
    record = environment()
    assert str(record.versions["torch"]) in torch.__version__
    assert record.variables["OMP_NUM_THREADS"] == "3"
    assert ("OMP_NUM_THREADS", "3") in record.rows()


def test_what_is_not_known_is_a_dash_or_says_why(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeGpus(tmp_path, monkeypatch).say(init=9)
    record = environment()
    rows = dict(record.rows())
    assert rows["GPUs"] == record.gpu_trouble != ""
    assert all(isinstance(value, str) and value for value in rows.values())
    assert size(None) == "-"


def test_each_gpu_is_told_by_its_uuid(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    FakeGpus(tmp_path, monkeypatch).say(count=2)
    record = environment()
    assert len(record.gpus) == 2 and record.gpu_trouble == ""
    assert record.gpus[1].uuid in dict(record.rows())["GPU 1"]


def test_limits_of_a_cgroup_are_those_of_the_tightest_above(tmp_path: Path) -> None:
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
    write(proc / "self/cgroup", "0::/pod/job\n")
    write(proc / "meminfo", "MemTotal: 2048 kB\nMemAvailable: 1024 kB\n")
    write(cgroup / "memory.max", "9000\n")
    write(cgroup / "pod/memory.max", "5000\n")
    write(cgroup / "pod/memory.current", "4000\n")
    write(cgroup / "pod/job/memory.max", "max\n")
    write(cgroup / "pod/job/cpu.stat", "nr_periods 10\nnr_throttled 4\nthrottled_usec 1500000\n")
    memory, cpus = memory_seen(proc, cgroup), cpus_seen(proc, cgroup)
    assert (memory.limit, memory.used_of_limit, memory.total) == (5000, 4000, 2 << 20)
    assert (cpus.throttled_periods, cpus.periods, cpus.throttled_seconds) == (4, 10, 1.5)


def test_the_first_version_of_cgroups_is_read_as_well(tmp_path: Path) -> None:
    proc, cgroup = tmp_path / "proc", tmp_path / "cgroup"
    write(proc / "self/cgroup", "4:memory:/host/path\n3:cpu,cpuacct:/\n")
    write(cgroup / "memory/memory.limit_in_bytes", "7000\n")
    write(cgroup / "memory/memory.usage_in_bytes", "10\n")
    assert memory_seen(proc, cgroup).limit == 7000
    write(cgroup / "memory/memory.limit_in_bytes", f"{(1 << 63) - 4096}\n")
    assert memory_seen(proc, cgroup).limit is None


def test_a_folder_is_on_the_file_system_that_was_mounted_last_at_its_path(tmp_path: Path) -> None:
    write(
        tmp_path / "self/mountinfo",
        "1 0 8:1 / / rw - ext4 /dev/a rw\n2 1 8:2 / /dev/shm rw - tmpfs x rw\n"
        "3 2 8:3 / /dev/shm rw shared:2 - ramfs y rw\n4 1 8:4 / /dev/s rw - nfs4 z rw\n",
    )
    shm = disk_seen("/dev/shm", proc=tmp_path)
    root = disk_seen(os.sep, proc=tmp_path)
    assert shm is not None and shm.kind == "ramfs"
    assert root is not None and root.kind == "ext4" and root.free <= root.total
    assert disk_seen(tmp_path / "none") is None


def test_the_driver_and_the_devices_names_are_known_without_asking_the_driver(
    tmp_path: Path,
) -> None:
    write(
        tmp_path / "driver/nvidia/version",
        "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  550.54.14  Release Build\n",
    )
    write(
        tmp_path / "driver/nvidia/gpus/0000:01:00.0/information",
        "Model: \t\t NVIDIA H100\nIRQ:   \t\t 18\nGPU UUID: \t GPU-aa\n",
    )
    assert driver_version(tmp_path) == "550.54.14"
    assert gpu_models(tmp_path) == {"GPU-aa": "NVIDIA H100"}
    assert driver_version(tmp_path / "none") is None


def write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
