"""``forebay run --engine``: the command line decides where the stages run."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.cli_support import MEMORY, Outcome, Workshop, install_plugins, workshop_at

from forebay import ConfigError
from forebay.ray import RayEngine

NUMBERS = """
    source: {type: memory, data: {a: [0, 1, 2, 3, 4, 5]}}
    batch: 2
    loader: {engine: {type: threads, hung_seconds: 5}}
"""
ENGINES = {"elsewhere": "forebay_elsewhere:Elsewhere", "broken": "no_such_package:Engine"}
ELSEWHERE = """
    from dataclasses import dataclass
    from forebay.threads import ThreadEngine

    @dataclass(frozen=True)
    class Elsewhere:
        address: str = "nowhere"

        def start(self, plan):
            print("started at", self.address)
            return ThreadEngine().start(plan)
"""


@pytest.fixture
def shop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Workshop:
    shop = workshop_at(tmp_path, capsys, monkeypatch)
    others = install_plugins(tmp_path / "others", {**MEMORY, "forebay.engines": ENGINES})
    monkeypatch.syspath_prepend(str(others))
    shop.write("forebay_elsewhere.py", ELSEWHERE)
    return shop


def run(shop: Workshop, *options: str) -> Outcome:
    return shop.forebay("run", shop.write("t.yaml", NUMBERS), *options)


def test_the_engine_of_a_run_can_be_another_than_that_of_the_file(shop: Workshop) -> None:
    done = run(shop, "--engine", "elsewhere", "--address", "there:1")
    assert done.code == 0
    assert "MemorySource -> batches of 2, on elsewhere\n" in done.out
    assert "started at there:1\n" in done.out
    assert "done, records 6, " in done.out


def test_the_first_event_of_a_run_names_the_engine(shop: Workshop) -> None:
    assert run(shop, "--json").events[0]["engine"] == "threads"


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--engine", "elsewere"], "there is no engine 'elsewere'; did you mean 'elsewhere'?"),
        (["--engine", "broken"], "the engine 'broken' of package forebay-test-plugins cannot be"),
        (["--address", "there:1"], "the engine 'threads' runs in this process and takes no"),
    ],
)
def test_an_engine_that_cannot_be_is_a_usage_error(
    shop: Workshop, options: list[str], expected: str
) -> None:
    done = run(shop, *options)
    assert done.code == 2
    assert expected in done.err


def test_validate_takes_the_same_choice_and_starts_nothing(shop: Workshop) -> None:
    file = shop.write("t.yaml", NUMBERS)
    valid = shop.forebay("validate", file, "--engine", "elsewhere", "--address", "there:1")
    assert valid.code == 0
    assert valid.out.endswith("batches of 2, on elsewhere\n")
    assert "started" not in valid.out
    assert shop.forebay("validate", file, "--engine", "nowhere").code == 2


@pytest.mark.parametrize(
    "address", ["foo", "foo:", ":6379", "foo:0", "foo:65536", "foo:six", "http://foo:8265"]
)
@pytest.mark.parametrize("section", ["", "loader: {engine: {type: ray, address: auto}}"])
def test_a_wrong_address_is_told_as_what_the_command_line_says(
    shop: Workshop, address: str, section: str
) -> None:
    file = shop.write("t.yaml", f"source: {{type: memory, data: {{a: [0]}}}}\nbatch: 2\n{section}")
    done = shop.forebay("validate", file, "--engine", "ray", "--address", address)
    assert done.code == 2
    expected = "address must be host:port of the head node's GCS, or 'auto', not"
    assert done.err == f"error: --address: {expected} {address!r}\n"


def test_an_address_of_ray_client_is_told_the_way_out() -> None:
    with pytest.raises(ConfigError, match=r"Ray Client are not supported.* port 6379"):
        RayEngine(address="ray://head:10001")
