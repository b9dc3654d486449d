"""``forebay autoscale simulate`` and ``forebay run --record-trace``."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli_support import Workshop, workshop_at

from forebay.autoscale.scenario import scenarios


@pytest.fixture
def shop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Workshop:
    return workshop_at(tmp_path, capsys, monkeypatch)


def test_policies_are_compared_on_a_scenario(shop: Workshop) -> None:
    found = shop.forebay("autoscale", "simulate", "--scenario", "hung-worker", "--json")
    assert found.code == 0
    by_policy = {e["policy"]: e for e in found.events}
    assert set(by_policy) == {"starvation", "lag", "fixed", "cpu-use", "lag-only", "ray-data"}
    assert by_policy["starvation"]["score"] < by_policy["cpu-use"]["score"]


def test_the_table_has_the_best_first(shop: Workshop) -> None:
    found = shop.forebay("autoscale", "simulate", "--scenario", "slow-trainer")
    assert "slow-trainer, 1,200 s" in found.out
    assert found.out.index("starvation") < found.out.index("lag-only")


def test_decisions_are_listed_with_their_reasons(shop: Workshop) -> None:
    args = ("--scenario", "burst", "--policy", "starvation", "--decisions")
    found = shop.forebay("autoscale", "simulate", *args)
    assert "the trainer starves" in found.out


def test_a_price_changes_what_workers_are_worth(shop: Workshop) -> None:
    args = ("autoscale", "simulate", "--scenario", "diurnal", "--policy", "starvation", "--json")
    (cheap,) = shop.forebay(*args, "--price", "0").events
    (dear,) = shop.forebay(*args, "--price", "0.05").events
    assert dear["worker_seconds"] < cheap["worker_seconds"]


def test_a_plot_is_a_picture_of_one_scenario(shop: Workshop) -> None:
    args = ("autoscale", "simulate", "--policy", "starvation", "--plot", "a.svg")
    assert shop.forebay(*args, "--scenario", "burst").code == 0
    assert (shop.folder / "a.svg").read_text().startswith("<svg")
    refused = shop.forebay(*args)
    assert refused.code == 2
    assert "--plot draws one scenario" in refused.err


def test_a_run_records_what_can_be_simulated_again(shop: Workshop) -> None:
    shop.write(
        "pace.py",
        """
        import time

        def work(columns):
            time.sleep(0.001 * len(columns["value"]))
            return columns

        def train(loader):
            for _ in loader:
                time.sleep(0.05)
        """,
    )
    shop.write(
        "run.yaml",
        f"""
        source: {{type: memory, data: {{a: {list(range(1200))}}}}}
        stages:
          - map: pace:work
            workers: [1, 4]
        batch: 10
        loader: {{autoscale: {{interval: 0.2}}}}
        train: pace:train
        """,
    )
    assert shop.forebay("run", "run.yaml", "--record-trace", "trace.jsonl").code == 0
    found = shop.forebay("autoscale", "simulate", "trace.jsonl", "--policy", "starvation", "--json")
    assert found.code == 0, found.err
    assert found.events[0]["scenario"] == "trace.jsonl"
    assert found.events[0]["rows"] > 0


def test_what_is_no_trace_is_refused(shop: Workshop) -> None:
    shop.write("t.jsonl", "{}\n{}\n")
    found = shop.forebay("autoscale", "simulate", "t.jsonl")
    assert found.code == 2
    assert "t.jsonl:1: no observation" in found.err
    both = shop.forebay("autoscale", "simulate", "t.jsonl", "--scenario", "burst")
    assert "not both" in both.err


@pytest.mark.parametrize("name", scenarios())
def test_every_scenario_has_a_name_of_its_own(name: str) -> None:
    assert scenarios()[name].name == name
