"""The example of a table and then its topic runs as its README says, killed or not."""

from __future__ import annotations

import re
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.topics import Topics

from forebay_kafka.devbroker import DevBrokerProcess

ROOT = Path(__file__).parent.parent
README = ROOT / "examples/backfill_then_live/README.md"


@pytest.fixture
def broker() -> Iterator[str]:
    """A broker with the topic that the first command of the README makes."""
    with DevBrokerProcess() as broker:
        Topics(broker.bootstrap).create("clicks", 4)
        yield broker.bootstrap


def commands() -> list[str]:
    """The Python commands of the README, in order."""
    return re.findall(r"^    python (.*)$", README.read_text(), re.MULTILINE)


def started(command: str, broker: str, folder: Path) -> subprocess.Popen[str]:
    """A command of the README, on another broker, in a folder of its own."""
    script, *arguments = shlex.split(command.replace("localhost:9092", broker))
    line = [sys.executable, str(ROOT / script), *arguments]
    return subprocess.Popen(line, cwd=folder, stdout=subprocess.PIPE, text=True)


def test_a_killed_example_trains_every_click_once(broker: str, tmp_path: Path) -> None:
    fill, train = commands()
    assert "first 20,000 of them also" in started(fill, broker, tmp_path).communicate()[0]
    killed = started(train, broker, tmp_path)
    log = tmp_path / "backfill.log"
    while not log.exists() or log.read_bytes().count(b"\n") < 210:
        assert killed.poll() is None
        time.sleep(0.001)
    killed.send_signal(signal.SIGKILL)
    killed.communicate()
    again = started(train, broker, tmp_path)
    said = again.communicate()[0].splitlines()
    assert again.returncode == 0
    assert said[-1] == "trained 30,000 clicks: 0 missing, 0 repeated"
    assert f"    {said[-1]}\n" in README.read_text()
