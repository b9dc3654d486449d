"""The settings of the Ray engine are checked before Ray is started, and the head is watched."""

from __future__ import annotations

import socket
import threading
from pathlib import Path
from typing import Any

import pytest
import ray
from tests.cli_support import Workshop, workshop_at

from forebay import ConfigError, EngineError
from forebay.ray import RayEngine
from forebay.ray.watch import HeadWatch

MINIMAL = "source: {type: memory, data: {a: [1, 2, 3]}}\nbatch: 2\n"


@pytest.fixture
def shop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Workshop:
    return workshop_at(tmp_path, capsys, monkeypatch)


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ("num_cpu: 1", "loader.engine.num_cpu: unknown key; did you mean 'num_cpus'?"),
        ("num_cpus: -1", "loader.engine.num_cpus: The quantity of resource num_cpus cannot be"),
        ("memory: 2 GB of it", "loader.engine.memory: must be a whole number, not the text"),
        ("resources: {CPU: 1}", "Use the 'num_cpus' and 'num_gpus' keyword instead of 'CPU'"),
        ("label_selector: {tier: [a]}", "loader.engine.label_selector.tier: must be text"),
        ("placement: nearby", "loader.engine.placement: must be one of 'spread', 'pack', 'near'"),
        ("max_restarts: -2", "loader.engine.max_restarts: The keyword 'max_restarts' only accepts"),
        ("runtime_env: {pipp: [a]}", "loader.engine.runtime_env.pipp: runtime_env has no 'pipp'"),
        ("runtime_env: {env_vars: {A: 1}}", "runtime_env['env_vars'] must be of type Dict[str, st"),
        ("reader: {num_cpu: 1}", "loader.engine.reader.num_cpu: reader: Invalid option keyword"),
        ("init: {num_cpu: 1}", "loader.engine.init.num_cpu: init: ray.init has no argument"),
        ("roll_hours: 0", "loader.engine.roll_hours: roll_hours must be positive, not 0.0"),
        ("address: ray://host:1", "loader.engine.address: address must be host:port of the head"),
    ],
)
def test_validate_tells_a_wrong_setting_with_its_place_and_starts_no_ray(
    shop: Workshop, settings: str, expected: str
) -> None:
    engine, attached = f"loader: {{engine: {{type: ray, {settings}}}}}\n", ray.is_initialized()
    done = shop.forebay("validate", shop.write("t.yaml", MINIMAL + engine))
    assert done.code == 2
    assert "t.yaml:3:" in done.err
    assert expected in done.err
    assert ray.is_initialized() == attached


@pytest.mark.parametrize("setting", ["placement", "scheduler", "leases"])
def test_a_choice_that_does_not_exist_is_refused_in_python_too(setting: str) -> None:
    choice: dict[str, Any] = {setting: "elsewhere"}
    with pytest.raises(ConfigError, match=f"{setting} must be one of .*, not 'elsewhere'"):
        RayEngine(**choice)


def test_settings_that_ray_takes_are_valid(shop: Workshop) -> None:
    engine = (
        "loader: {engine: {type: ray, address: auto, num_cpus: 0.5, num_gpus: 1, memory: 2GiB, "
        "resources: {decode: 1}, label_selector: {ray.io/node-group: decoders}, placement: near, "
        "max_restarts: 3, runtime_env: {env_vars: {A: b}, pip: [x]}, roll_hours: 6, "
        "reader: {resources: {edge: 0.1}}, init: {namespace: mine}}}\n"
    )
    done = shop.forebay("validate", shop.write("t.yaml", MINIMAL + engine))
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith("batches of 2, on ray\n")


def test_the_watch_tells_once_that_the_head_is_gone() -> None:
    lost, told = threading.Event(), []
    head = socket.create_server(("127.0.0.1", 0))
    address = f"127.0.0.1:{head.getsockname()[1]}"

    def on_lost(error: EngineError) -> None:
        told.append(str(error))
        lost.set()

    watch = HeadWatch(address, on_lost, patience=0.0)
    head.close()
    assert lost.wait(30)
    watch.close()
    (text,) = told
    assert text.startswith(f"the head of the Ray cluster at {address} has been gone for 0 s (")


def test_the_watch_of_a_living_head_ends_without_a_word() -> None:
    with socket.create_server(("127.0.0.1", 0)) as head:
        told: list[EngineError] = []
        watch = HeadWatch(f"127.0.0.1:{head.getsockname()[1]}", told.append, patience=0.0)
        head.accept()[0].close()
        watch.close()
    assert told == []
