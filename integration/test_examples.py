"""The examples run as they are shown, and a killed run ends as an uninterrupted one does."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.topics import Topics

from forebay.checkpoint import load_torch, save_torch
from forebay_kafka.devbroker import DevBrokerProcess

EXAMPLES = Path(__file__).parent.parent / "examples"


@pytest.fixture(scope="module")
def clicks() -> Iterator[str]:
    """A broker of its own with the topic that the example reads."""
    with DevBrokerProcess() as broker:
        Topics(broker.bootstrap).create("clicks", 4)
        subprocess.run(
            [sys.executable, EXAMPLES / "clicks/produce.py", broker.bootstrap, "6000"], check=True
        )
        yield broker.bootstrap


def train(broker: str, folder: Path, name: str, *more: str) -> subprocess.Popen[str]:
    script = str(EXAMPLES / "clicks/train.py")
    command = [sys.executable, script, broker, "--until", "latest"]
    files = ["--checkpoint", f"{folder}/{name}.pt", "--log", f"{folder}/{name}.log"]
    return subprocess.Popen(
        [*command, *files, *more], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )


def losses(log: Path) -> dict[int, str]:
    """The loss of each step; a repeated step counts with what it gave last."""
    return dict(map(_entry, log.read_text().splitlines()))


def _entry(line: str) -> tuple[int, str]:
    step, loss = line.split()
    return int(step), loss


def test_a_killed_example_ends_with_the_losses_of_an_uninterrupted_run(
    clicks: str, tmp_path: Path
) -> None:
    whole = train(clicks, tmp_path, "whole", "--order", "deterministic")
    assert whole.communicate()[1] == ""
    killed = train(clicks, tmp_path, "killed", "--order", "deterministic")
    target = random.Random(5).randrange(15, 60)
    log = tmp_path / "killed.log"
    while not log.exists() or len(log.read_text().splitlines()) < target:
        assert killed.poll() is None
        time.sleep(0.001)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    again = train(clicks, tmp_path, "killed", "--order", "deterministic")
    assert again.communicate()[1] == ""
    assert losses(log) == losses(tmp_path / "whole.log")


def test_a_checkpoint_without_a_data_position_is_refused(clicks: str, tmp_path: Path) -> None:
    train(clicks, tmp_path, "run").communicate()
    saved = load_torch(tmp_path / "run.pt")
    del saved["data"]
    save_torch(tmp_path / "run.pt", saved)
    again = train(clicks, tmp_path, "run")
    assert "has no data position" in again.communicate()[1]
    assert again.returncode == 1
