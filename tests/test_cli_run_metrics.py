"""``forebay run``: who watches a run sees it from outside, and what it told stays in files."""

from __future__ import annotations

import json
import socket
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from tests.cli_support import Workshop, workshop_at

from forebay.observe.statefile import read_snapshots
from forebay.testing import FileEvent

TRAINER = """
    import json, os, urllib.request
    from pathlib import Path

    def train(loader):
        for batch in loader:
            pass

    def ask(loader, *, url_file):
        for i, batch in enumerate(loader):
            if i == 1:
                url = Path(url_file).read_text()
                with urllib.request.urlopen(url) as answer:
                    Path("metrics.txt").write_bytes(answer.read())
"""
TOPOLOGY = """
    name: numbers
    source: {type: memory, data: {m/0: [0, 1, 2, 3, 4, 5]}}
    batch: 2
    train: my_training:train
"""


@pytest.fixture
def shop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Workshop:
    shop = workshop_at(tmp_path, capsys, monkeypatch)
    shop.write("my_training.py", TRAINER)
    return shop


@pytest.fixture
def port() -> Iterator[int]:
    """A port that was free a moment ago."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        found = s.getsockname()[1]
    yield found


def written(shop: Workshop, more: str = "", text: str = TOPOLOGY) -> Path:
    return shop.write("t.yaml", text + more)


def last(path: Path) -> Any:
    return list(read_snapshots(path))[-1]


def test_a_state_file_tells_whose_run_it_was_and_how_it_ended(shop: Workshop) -> None:
    done = shop.forebay("run", written(shop, "    metrics: {state_file: run/state.jsonl}\n"))
    assert done.code == 0
    seen = last(shop.folder / "run/state.jsonl")
    assert (seen.job.name, seen.job.engine, seen.job.has_trainer) == ("numbers", "threads", True)
    assert (seen.ended, seen.batches, seen.splits["m/0"].lag_records) == ("done", 3, 0)


def test_a_drain_is_told_from_a_training(shop: Workshop) -> None:
    drain = TOPOLOGY.replace("train: my_training:train", "metrics: {state_file: s.jsonl}")
    shop.forebay("run", written(shop, text=drain))
    assert not last(shop.folder / "s.jsonl").job.has_trainer


def test_a_run_that_fails_says_so_in_its_state_file(shop: Workshop) -> None:
    shop.write("my_training.py", "def train(loader):\n    raise ValueError(next(iter(loader)))\n")
    failed = shop.forebay("run", written(shop, "    metrics: {state_file: s.jsonl}\n"))
    assert failed.code == 1
    assert last(shop.folder / "s.jsonl").ended == "failed"


def test_prometheus_gets_the_metrics_while_it_runs(shop: Workshop, port: int) -> None:
    (shop.folder / "url").write_text(f"http://127.0.0.1:{port}/metrics")
    asking = "train: {function: my_training:ask, url_file: url}"
    text = TOPOLOGY.replace("train: my_training:train", asking)
    done = shop.forebay("run", written(shop, text=text), "--dashboard", f":{port}")
    assert done.code == 0, done.err
    assert f"dashboard: http://127.0.0.1:{port}/\n" in done.out
    assert (
        'forebay_job_running{rank="0",run="numbers"} 1.0'
        in (shop.folder / "metrics.txt").read_text()
    )


def test_the_ranks_of_a_machine_listen_on_ports_of_their_own(
    shop: Workshop, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LOCAL_RANK", "3")
    started = shop.forebay("run", written(shop), "--dashboard", f":{port}", "--json").events[0]
    assert started["dashboard"] == f"http://127.0.0.1:{port + 3}/"


def test_an_address_that_others_can_reach_needs_a_token(
    shop: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = shop.forebay("run", written(shop, '    metrics: "0.0.0.0:0"\n'))
    assert refused.code == 2
    assert "could be seen from other machines" in refused.err
    monkeypatch.setenv("DASHBOARD_TOKEN", "4c0f1d2e3b5a69788796a5b4c3d2e1f0")
    allowed = '    metrics: {listen: "0.0.0.0:0", token: "${DASHBOARD_TOKEN}"}\n'
    done = shop.forebay("run", written(shop, allowed))
    assert done.code == 0
    assert "4c0f1d2e" not in done.out + done.err


def test_a_port_that_is_in_use_ends_the_run_before_anything_is_read(shop: Workshop) -> None:
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        s.listen()
        taken = s.getsockname()[1]
        refused = shop.forebay("run", written(shop), "--dashboard", f":{taken}")
    assert refused.code == 2
    assert f"cannot listen on 127.0.0.1:{taken}" in refused.err
    assert "reading" not in refused.out


def test_a_run_that_is_stopped_by_a_signal_says_so_and_closes_its_port(shop: Workshop) -> None:
    shop.write(
        "my_training.py",
        """
        from pathlib import Path
        import time

        def train(loader):
            for batch in loader:
                Path("begun").touch()
                while True:
                    time.sleep(0.05)
        """,
    )
    run = shop.start(
        "run", written(shop, '    metrics: {listen: ":0", state_file: s.jsonl}\n'), "--json"
    )
    assert run.stdout is not None
    url = json.loads(run.stdout.readline())["dashboard"]
    assert FileEvent(shop.folder / "begun").wait(60)
    with urllib.request.urlopen(url + "healthz") as answer:
        assert answer.status == 200
    run.terminate()
    out, err = run.communicate(timeout=60)
    assert run.returncode == 0, err
    assert last(shop.folder / "s.jsonl").ended == "stopped"
    with pytest.raises(OSError):
        urllib.request.urlopen(url + "healthz")
    assert "Traceback" not in out + err
