"""``forebay run --engine ray`` on a cluster of its own: it ends in order, whoever ends first."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from integration.ray_head import RayHead, node_beside, ray_head
from tests.cli_support import Workshop, workshop_at

from forebay import checkpoint

pytestmark = [pytest.mark.ray, pytest.mark.slow, pytest.mark.timeout(300)]

ROWS = list(range(6000))
TOPOLOGY = f"""
    source: {{type: memory, data: {{a: {ROWS}}}, bounded: false}}
    stages: [{{map: my_stages:double}}]
    batch: 4
    loader:
      workers: [1, 2]
      engine:
        type: ray
        num_cpus: 0.5
        memory: 300MiB
        label_selector: {{tier: decode}}
        placement: near
        max_restarts: 3
        reader: {{num_cpus: 0.1}}
    train: my_training:train
    checkpoint: {{path: state.json, every: 100000}}
"""
NODE = "127.0.0.2"
INIT = f"        init: {{_node_ip_address: {NODE}}}"
STAGES = """
    import numpy as np

    def double(columns):
        return {"value": np.asarray(columns["value"]) * 2}
"""
TRAINER = """
    import time
    from pathlib import Path

    def train(loader):
        for batch in loader:
            time.sleep(0.02)
            with Path("seen.txt").open("a") as f:
                f.write("".join(f"{int(i)}\\n" for i in batch["value"]))
"""


@pytest.fixture
def shop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Workshop:
    shop = workshop_at(tmp_path, capsys, monkeypatch)
    shop.write("my_stages.py", STAGES)
    shop.write("my_training.py", TRAINER)
    shop.write("t.yaml", TOPOLOGY)
    return shop


def started(shop: Workshop, head: RayHead, **env: str) -> subprocess.Popen[str]:
    """A run that has trained some batches."""
    run = shop.start("run", "t.yaml", "--address", head.address, **{**head.environment, **env})
    wait_until(lambda: len(seen(shop)) > 40, run)
    return run


def seen(shop: Workshop) -> list[int]:
    file = shop.folder / "seen.txt"
    return [int(line) for line in file.read_text().split()] if file.exists() else []


def wait_until(true: Callable[[], Any], run: subprocess.Popen[str] | None = None) -> None:
    while not true():
        if run is not None and run.poll() is not None:
            raise AssertionError(f"it ended with {run.returncode}: {run.communicate()}")
        time.sleep(0.1)


def saved_offset(shop: Workshop) -> int:
    state: Any = checkpoint.load(shop.folder / "state.json")
    offset: int = state["splits"]["a"]["offset"]
    return offset


def goes_on_exactly(shop: Workshop) -> bool:
    """Whether the next run, on threads, trains what comes next: nothing twice, nothing left out."""
    again = shop.forebay("run", "t.yaml", "--engine", "threads", "--batches", 20)
    rows = seen(shop)
    return again.code == 0 and rows == [2 * i for i in range(len(rows))]


def test_sigterm_ends_a_run_on_a_cluster_in_order_and_leaves_no_actor(shop: Workshop) -> None:
    with ray_head("--labels=tier=decode") as head:
        run = started(shop, head)
        assert len(head.actors()) >= 2
        run.send_signal(signal.SIGTERM)
        out, err = run.communicate(timeout=60)
        assert run.returncode == 0, err
        assert "stopped by SIGTERM; the position is in state.json" in out
        assert saved_offset(shop) == len(seen(shop))
        wait_until(lambda: not head.actors())
    assert goes_on_exactly(shop)


def test_a_run_whose_cluster_dies_ends_in_words_with_its_position_saved(shop: Workshop) -> None:
    """The trainer's node lives on: were it the head's, it would be gone with it."""
    shop.write("t.yaml", TOPOLOGY.replace("type: ray", f"type: ray\n{INIT}"))
    with ray_head() as head, node_beside(head, NODE, "--labels=tier=decode"):
        run = started(shop, head, RAY_gcs_rpc_server_reconnect_timeout_s="40")
        head.kill()
        out, err = run.communicate(timeout=120)
    assert run.returncode == 1
    assert re.search(r"error: the head of the Ray cluster at \S+ has been gone for 20 s \(", err)
    assert "what was delivered is saved; the position is in state.json" in out
    assert saved_offset(shop) == len(seen(shop))
    assert goes_on_exactly(shop)


def test_a_cluster_that_lets_nobody_in_without_its_token_is_told_so(shop: Workshop) -> None:
    with ray_head() as head:
        environment = {**head.environment, "RAY_AUTH_TOKEN": "0" * 64}
        run = shop.start("run", "t.yaml", "--address", head.address, "--json", **environment)
        out, _ = run.communicate(timeout=90)
    event = json.loads(out.splitlines()[-1])
    assert (run.returncode, event["error"]) == (1, "EngineError")
    assert "set RAY_AUTH_MODE=token" in event["message"]
