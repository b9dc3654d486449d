"""``forebay tune``: a climb that comes close to the best, and claims no gain that is noise."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from pathlib import Path

import numpy as np
import pytest
from tests.cli_support import Workshop, workshop_at

from forebay.compare.measuring import measure, scout
from forebay.compare.orders import Inputs, Order, Run
from forebay.compare.tuning import (
    Setting,
    TimeUp,
    Tuned,
    cheapest,
    climb,
    finalists,
    setting_of,
    tune,
)
from forebay.errors import ConfigError
from forebay.topology import load
from forebay.training import Stop, Stopper

SURFACES: dict[str, Callable[[Setting], float]] = {
    "workers help up to eight": lambda s: 100.0 * min(s.workers, 8),
    "they hurt beyond four": lambda s: 100.0 * min(s.workers, 4) / max(1, s.workers / 4),
    "the trainer is the limit": lambda s: 500.0,
    "prefetch hides what jumps": lambda s: min(s.workers, 16) * 100 * s.prefetch / (s.prefetch + 1),
    "more workers help a little": lambda s: 1000.0 * s.workers / (s.workers + 3),
}
GRID = [Setting(w, p) for w in (1, 2, 4, 8, 16, 32) for p in (1, 2, 4, 8)]
WORK = """\
import time

def waits(columns):
    time.sleep(0.004 * len(columns["value"]))
    return columns

def train(loader):
    for batch in loader:
        time.sleep(0.04)
"""


@pytest.mark.parametrize("name", SURFACES)
@pytest.mark.parametrize("start", [Setting(1, 1), Setting(4, 2), Setting(32, 2)])
def test_the_climb_comes_close_to_the_best_of_all(name: str, start: Setting) -> None:
    surface = SURFACES[name]
    for seed in range(20):
        noise = np.random.default_rng(seed)
        tried = climb(lambda s, n=noise: surface(s) * n.normal(1, 0.01), start, 32)  # type: ignore[misc]
        found = cheapest(tried)
        assert surface(found) >= 0.9 * max(map(surface, GRID)), (start, found)


def test_of_settings_that_are_as_fast_the_cheapest_is_taken() -> None:
    def found(name: str, start: Setting) -> Setting:
        return cheapest(climb(SURFACES[name], start, 64))

    assert found("workers help up to eight", Setting(2, 2)) == Setting(8, 2)
    assert found("the trainer is the limit", Setting(16, 2)) == Setting(1, 2)


def test_one_unlucky_run_does_not_end_the_climb() -> None:
    rates = {1: 100.0, 2: 90.0, 4: 400.0, 8: 800.0}
    tried = climb(lambda s: rates.get(s.workers, 800.0), Setting(1, 1), 16)
    assert cheapest(tried) == Setting(8, 1)


def test_no_more_workers_are_tried_than_allowed() -> None:
    tried: list[Setting] = []

    def rate(s: Setting) -> float:
        tried.append(s)
        return 100.0 * s.workers

    assert cheapest(climb(rate, Setting(2, 1), 5)) == Setting(5, 1)
    assert max(tried).workers == 5


def test_a_climb_without_time_left_gives_the_best_until_then() -> None:
    calls = count()

    def rate(s: Setting) -> float:
        if next(calls) == 2:
            raise TimeUp
        return 100.0 * s.workers

    assert climb(rate, Setting(1, 1), 64) == {Setting(1, 1): 100.0, Setting(2, 1): 200.0}


def test_those_that_one_run_cannot_tell_apart_go_into_the_turns() -> None:
    tried = {
        Setting(1, 1): 100.0,
        Setting(4, 1): 700.0,
        Setting(8, 1): 990.0,
        Setting(8, 2): 1000.0,
        Setting(8, 4): 900.0,
        Setting(16, 1): 860.0,
    }
    assert finalists(tried, Setting(1, 1)) == [Setting(8, 1), Setting(8, 2), Setting(8, 4)]
    assert finalists({Setting(4, 2): 100.0}, Setting(4, 2)) == []


# -- on topologies ------------------------------------------------------------------------------


class Here:
    """Runs orders in this process, which spares a test the start of another.

    Args:
        until: so many; then it is as if a signal came in the middle of a run.
    """

    def __init__(self, until: int | None = None) -> None:
        self._left = until

    def scout(self, order: Order, batches: int) -> Inputs:
        return scout(order, batches)

    def measure(self, order: Order) -> Run:
        if self._left == 0:
            raise Stop
        self._left = None if self._left is None else self._left - 1
        return measure(order)


@pytest.fixture
def shop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Workshop:
    made = workshop_at(tmp_path, capsys, monkeypatch)
    monkeypatch.syspath_prepend(str(tmp_path))
    made.write("work.py", WORK)
    data = json.dumps({name: list(range(3000)) for name in "ab"})
    made.write("base.yaml", f"source: {{type: memory, data: {data}}}\nbatch: 16\n")
    return made


def tuned(shop: Workshop, text: str, most_workers: int = 2, until: int | None = None) -> Tuned:
    (shop.folder / "clicks.yaml").write_text((shop.folder / "base.yaml").read_text() + text)
    loaded = load("clicks.yaml")
    before = setting_of(loaded, 2)
    # A clock of its own: how much is tried must not depend on how busy the machine is.
    ticks = count()
    return tune(
        loaded,
        Here(until),
        seconds=4,
        before=before,
        most_workers=most_workers,
        stopper=Stopper(),
        clock=lambda: next(ticks) / 5,
    )


STAGES = 'stages: [{map: "work:waits", form: numpy}]\n'


def test_stages_that_wait_get_more_workers_and_the_gain_is_told(shop: Workshop) -> None:
    found = tuned(shop, STAGES + "loader: {workers: 1, prefetch: 1}\n")
    assert found.before == Setting(1, 1) and found.mode == "drain"
    assert found.better and found.chosen.workers == 2
    assert found.gain is not None and found.gain.low > 1.1
    assert "workers: 2" in found.chosen.yaml


def test_where_the_trainer_is_the_limit_nothing_is_recommended(shop: Workshop) -> None:
    found = tuned(shop, STAGES + "loader: {workers: 2}\ntrain: work:train\n")
    assert found.mode == "train"
    assert not found.better and found.chosen == found.before


def test_of_an_interrupted_search_nothing_is_claimed(shop: Workshop) -> None:
    text = STAGES + "loader: {workers: 1, prefetch: 1}\n"
    found = tuned(shop, text, until=5)
    assert found.interrupted and len(found.trials) == 5
    assert not found.better and found.gain is None and found.chosen == found.before
    with pytest.raises(Stop):
        tuned(shop, text, until=0)


def test_pools_of_a_cluster_are_not_tuned_by_hand(shop: Workshop) -> None:
    elsewhere = replace(load(shop.folder / "base.yaml"), engine="ray")
    with pytest.raises(ConfigError, match=r"runs on 'ray', whose pools are sized while it runs"):
        tune(
            elsewhere,
            Here(),
            seconds=6,
            before=Setting(1, 1),
            most_workers=4,
            stopper=Stopper(),
        )


def test_what_a_topology_has_now_is_the_most_that_it_may_have(shop: Workshop) -> None:
    def of(text: str) -> Setting:
        path = shop.write("t.yaml", (shop.folder / "base.yaml").read_text() + text)
        return setting_of(load(path), 7)

    assert of("") == Setting(7, 2)
    assert of("loader: {workers: [1, 6], prefetch: 4}\n") == Setting(6, 4)
    assert of('stages: [{map: "work:waits", workers: 3}]\n') == Setting(3, 2)


def test_the_command_says_what_it_tried_and_what_to_do(shop: Workshop) -> None:
    text = (shop.folder / "base.yaml").read_text() + STAGES + "loader: {workers: 1, prefetch: 1}\n"
    shop.write("clicks.yaml", text)
    done = shop.forebay("tune", "clicks.yaml", "--seconds", 10, "--most-workers", 2)
    assert done.code == 0, done.err
    assert done.out.startswith("workers 1, prefetch 1: ")
    said = (
        "the topology has. Put into it:\n\nloader:\n  workers: 2\n",
        "leave it as it is.",
        "Nothing was",
    )
    assert any(words in done.out for words in said)


def test_a_signal_ends_the_command_with_what_was_measured(shop: Workshop) -> None:
    shop.write("clicks.yaml", (shop.folder / "base.yaml").read_text() + STAGES)
    command = shop.start("tune", "clicks.yaml", "--seconds", 600, "--json")
    with command:
        assert command.stdout is not None
        assert "trial" in command.stdout.readline()
        command.send_signal(signal.SIGINT)
        out, err = command.communicate()
    last = json.loads(out.splitlines()[-1])
    assert (command.returncode, err) == (0, "")
    assert last["event"] == "tuned" and last["interrupted"] and not last["better"]
