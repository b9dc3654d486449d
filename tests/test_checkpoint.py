"""Checkpoints are whole or absent, checked when read, and never shared by two runs."""

from __future__ import annotations

import json
import logging
import os
import random
import resource
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from forebay import checkpoint
from forebay.errors import StateError

SAVES = """
import sys
from forebay import checkpoint
print("ready", flush=True)
for i in range(int(sys.argv[2]), 1_000_000):
    checkpoint.save(sys.argv[1], {"i": i, "bulk": "x" * 50_000})
    print(i, flush=True)
"""


def test_what_was_saved_is_loaded(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "state.json"
    assert checkpoint.load(path) is None
    checkpoint.save(path, {"version": 1, "splits": {"kafka:clicks/0": {"offset": 2**60}}})
    assert checkpoint.load(path) == {"version": 1, "splits": {"kafka:clicks/0": {"offset": 2**60}}}


def test_model_and_data_state_go_into_one_file_that_torch_reads_too(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    checkpoint.save_torch(path, {"model": {"w": torch.arange(6.0)}, "data": {"version": 1}})
    for loaded in (checkpoint.load_torch(path), torch.load(path, weights_only=True)):
        assert loaded["data"] == {"version": 1}
        assert torch.equal(loaded["model"]["w"], torch.arange(6.0))


def test_the_checkpoint_before_is_kept_and_nothing_else_is_left(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    for i in range(3):
        checkpoint.save(path, {"i": i})
    assert checkpoint.load(checkpoint.previous(path)) == {"i": 1}
    assert {p.name for p in tmp_path.iterdir()} == {"state.json", "state.json.previous"}


def cut_in_half(data: bytes) -> bytes:
    return data[: len(data) // 2]


def flip_a_byte(data: bytes) -> bytes:
    middle = len(data) // 2
    return data[:middle] + bytes([data[middle] ^ 1]) + data[middle + 1 :]


def empty(data: bytes) -> bytes:
    return b""


@pytest.mark.parametrize("damage", [cut_in_half, flip_a_byte, empty])
def test_a_damaged_newest_falls_back_to_the_one_before_and_says_so(
    tmp_path: Path, damage: Callable[[bytes], bytes], caplog: pytest.LogCaptureFixture
) -> None:
    for path, save, load in (
        (tmp_path / "a.json", checkpoint.save, checkpoint.load),
        (tmp_path / "a.pt", checkpoint.save_torch, checkpoint.load_torch),
    ):
        save(path, {"i": 1})
        save(path, {"i": 2})
        path.write_bytes(damage(path.read_bytes()))
        with caplog.at_level(logging.ERROR):
            assert load(path) == {"i": 1}
        assert str(path) in caplog.records[-1].getMessage()


def test_whichever_byte_is_flipped_it_is_noticed(tmp_path: Path) -> None:
    for path, save, load in (
        (tmp_path / "a.json", checkpoint.save, checkpoint.load),
        (tmp_path / "a.pt", checkpoint.save_torch, checkpoint.load_torch),
    ):
        save(path, {"i": 1})
        save(path, {"i": 2})
        whole = path.read_bytes()
        for at in range(len(whole)):
            path.write_bytes(whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
            assert load(path) == {"i": 1}, at


def test_two_damaged_files_are_one_error_that_names_both(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    checkpoint.save(path, {"i": 1})
    checkpoint.save(path, {"i": 2})
    path.write_bytes(b"")
    checkpoint.previous(path).write_bytes(b"{}")
    with pytest.raises(StateError, match=r"state\.json: the file is empty; .*previous"):
        checkpoint.load(path)


def test_another_version_is_refused_rather_than_replaced_by_an_older_state(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    checkpoint.save(path, {"i": 1})
    checkpoint.save(path, {"i": 2})
    body = json.dumps({"version": 9, "run": None, "payload": {}}).encode() + b"\n"
    path.write_bytes(body + b"blake2b:" + checkpoint._digest(body) + b"\n")
    with pytest.raises(StateError, match="format version 9"):
        checkpoint.load(path)


def test_the_checkpoint_of_another_run_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    checkpoint.save(path, {"i": 1}, run="clicks")
    assert checkpoint.load(path, run="clicks") == checkpoint.load(path) == {"i": 1}
    with pytest.raises(StateError, match="belongs to the run 'clicks', this one is 'views'"):
        checkpoint.load(path, run="views")


def test_a_state_that_is_no_json_is_refused_and_the_old_one_stays(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    checkpoint.save(path, {"i": 1})
    for bad in ({"t": torch.zeros(1)}, {"x": float("nan")}):
        with pytest.raises(StateError, match="no plain JSON"):
            checkpoint.save(path, bad)
    assert checkpoint.load(path) == {"i": 1}


def test_a_full_disk_leaves_the_last_good_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    checkpoint.save_torch(path, {"i": 1})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (64 << 10, hard))
    try:
        with pytest.raises(StateError, match="cannot write the checkpoint"):
            checkpoint.save_torch(path, {"w": torch.zeros(100_000)})
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
        signal.signal(signal.SIGXFSZ, handler)
    assert checkpoint.load_torch(path) == {"i": 1}
    assert [p.name for p in tmp_path.iterdir()] == ["model.pt"]


def test_a_kill_at_any_moment_of_saving_leaves_the_last_finished_save(tmp_path: Path) -> None:
    path, chance, done = tmp_path / "state.json", random.Random(7), 0
    for _ in range(4):
        done = max(
            done, saves_until_killed(path, first=done + 1, stop=done + chance.randint(1, 40))
        )
        loaded = checkpoint.load(path)
        assert loaded is not None
        assert loaded["i"] in (done, done + 1)  # killed before it could say so
        done = loaded["i"]
    kept = checkpoint.load(checkpoint.previous(path))
    assert kept is not None
    assert kept["bulk"] == "x" * 50_000
    assert kept["i"] in (done - 1, done)  # killed between its two renames, the last is kept there


def saves_until_killed(path: Path, first: int, stop: int) -> int:
    """Save in a child that is killed in the middle of a save after ``stop``; the last said."""
    child = subprocess.Popen(
        [sys.executable, "-c", SAVES, str(path), str(first)], stdout=subprocess.PIPE, text=True
    )
    assert child.stdout is not None
    with child, child.stdout:
        assert child.stdout.readline() == "ready\n"
        said = [int(child.stdout.readline()) for _ in range(first, stop + 1)]
        child.kill()
        return int((said + [int(line) for line in child.stdout if line.endswith("\n")])[-1])


def test_a_second_run_on_one_checkpoint_is_refused_and_told_who_has_it(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    with checkpoint.exclusive(path):
        with pytest.raises(StateError, match=rf"in use by process {os.getpid()} on "):
            with checkpoint.exclusive(path):
                pytest.fail("two runs hold one checkpoint")
    with checkpoint.exclusive(path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_the_lock_of_a_killed_run_is_free(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    code = (
        "import sys, time\nfrom forebay import checkpoint\n"
        "with checkpoint.exclusive(sys.argv[1]): print('held', flush=True); time.sleep(60)"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE, text=True
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "held\n"
        with pytest.raises(StateError, match=f"process {child.pid}"):
            with checkpoint.exclusive(path):
                pytest.fail("two runs hold one checkpoint")
        child.kill()
    with checkpoint.exclusive(path):
        pass


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StateError, match=r"cannot lock the checkpoint .*file/state\.json"):
        with checkpoint.exclusive(tmp_path / "file" / "state.json"):
            pytest.fail("locked in a file")
    with pytest.raises(StateError, match="cannot write the checkpoint"):
        checkpoint.save(tmp_path / "file" / "state.json", {})
