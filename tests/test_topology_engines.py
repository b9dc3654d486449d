"""A topology says where its stages run; the settings of an engine are checked like all else."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from forebay.engine import Feed, Plan
from forebay.errors import ConfigError
from forebay.plugins import Plugins
from forebay.testing import MemorySource
from forebay.threads import ThreadEngine
from forebay.topology import SINKS, EngineChoice, Topology, TopologyError, json_schema, load


@dataclass(frozen=True, kw_only=True)
class SparkEngine:
    """An engine of somebody else's, whose settings are checked without any help of theirs."""

    address: str | None = None
    """Of its cluster."""
    executors: int = 1
    memory: int | None = None
    conf: Mapping[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.executors < 1:
            raise ConfigError(f"executors must be positive, not {self.executors}")

    def start(self, plan: Plan) -> Feed:
        return ThreadEngine().start(plan)


class NoEngine:
    """What another package may hold for one."""


SOURCES = Plugins("no.such.group", "source type", {"memory": MemorySource})
ENGINES = Plugins(
    "no.such.group", "engine", {"spark": SparkEngine, "threads": ThreadEngine, "none": NoEngine}
)
MINIMAL = "source: {type: memory, data: {a: [1, 2, 3]}}\nbatch: 2\n"
Parse = Callable[..., Topology]


@pytest.fixture
def parse(tmp_path: Path) -> Parse:
    """Load a topology with this section ``loader``, which begins in line 3."""

    def parse(loader: str = "", **choice: str) -> Topology:
        path = tmp_path / "t.yaml"
        path.write_text(MINIMAL + loader)
        return load(path, sources=SOURCES, engines=ENGINES, engine=EngineChoice(**choice))

    return parse


def engine_of(topology: Topology) -> Any:
    return topology.loader_options.get("engine")


@pytest.mark.parametrize(
    ("loader", "engine"),
    [
        ("loader: {engine: threads}", ThreadEngine()),
        ("loader: {engine: spark}", SparkEngine()),
        ("loader: {engine: {type: threads, hung_seconds: 5}}", ThreadEngine(hung_seconds=5)),
        ("loader:\n  engine:\n    type: spark\n    memory: 2GiB\n    conf: {a: b}",
         SparkEngine(memory=2 << 30, conf={"a": "b"})),
    ],
)  # fmt: skip
def test_an_engine_is_a_name_or_a_type_with_settings(
    parse: Parse, loader: str, engine: Any
) -> None:
    topology = parse(loader)
    assert engine_of(topology) == engine
    assert [b["value"].tolist() for b in topology.loader()] == [[1, 2], [3]]


@pytest.mark.parametrize(
    ("engine", "expected"),
    [
        ("sprak", "3:18: loader.engine: there is no engine 'sprak'; did you mean 'spark'?"),
        ("{type: sprak}", "3:25: loader.engine.type: there is no engine 'sprak'; did you mean "
         "'spark'?"),
        ("{executors: 1}", "3:18: loader.engine.type: must be one of none, spark, threads"),
        ("5", "3:18: loader.engine: must be one of none, spark, threads"),
        ("{type: spark, executer: 1}", "3:32: loader.engine.executer: unknown key; did you mean "
         "'executors'?"),
        ("{type: spark, executors: two}", "3:43: loader.engine.executors: must be a whole "
         "number, not the text 'two'"),
        ("{type: spark, executors: 0}", "3:32: loader.engine.executors: executors must be "
         "positive, not 0"),
        ("{type: threads, hung_seconds: 0}", "3:34: loader.engine.hung_seconds: hung_seconds must "
         "be positive, not 0.0"),
        ("none", "3:18: loader.engine: NoEngine is no engine: no start()"),
    ],
)  # fmt: skip
def test_a_mistake_in_an_engine_is_told_with_its_place(
    parse: Parse, engine: str, expected: str
) -> None:
    assert problems_of(lambda: parse(f"loader: {{engine: {engine}}}")) == [expected]


def test_a_mistyped_engine_is_told_the_right_word(parse: Parse) -> None:
    found = problems_of(lambda: parse("loader: {engin: spark}"))
    assert found == ["3:10: loader.engin: unknown key; did you mean 'engine'?"]


def problems_of(load: Callable[[], Any]) -> list[str]:
    with pytest.raises(TopologyError) as caught:
        load()
    return [str(p).partition("t.yaml:")[2] for p in caught.value.problems]


def test_what_the_command_line_names_wins_over_the_file(parse: Parse) -> None:
    spark = "loader: {engine: {type: spark, executors: 3, address: old}, prefetch: 4}"
    assert engine_of(parse(spark, name="threads")) == ThreadEngine()
    assert engine_of(parse(spark, address="new")) == SparkEngine(executors=3, address="new")
    again = parse(spark, name="spark", address="new")
    assert engine_of(again) == SparkEngine(executors=3, address="new")
    assert again.loader_options["prefetch"] == 4
    for without in ("", "loader:", "loader: {prefetch: 4}", "loader: {engine: threads}"):
        assert engine_of(parse(without, name="spark")) == SparkEngine()


def test_a_file_can_be_tried_without_the_engine_that_it_names(parse: Parse) -> None:
    assert parse("loader: {engine: not_installed_here}", name="threads").engine == "threads"


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ({"name": "sprak"}, "there is no engine 'sprak'; did you mean 'spark'?"),
        ({"address": "host:1"}, "the engine 'threads' runs in this process and takes no address"),
        ({"name": "threads", "address": "h:1"}, "name the engine that runs on the cluster as well"),
    ],
)
def test_a_wrong_choice_is_told_without_a_place_in_the_file(
    parse: Parse, choice: dict[str, str], expected: str
) -> None:
    with pytest.raises(ConfigError, match=expected) as caught:
        parse(**choice)
    assert not isinstance(caught.value, TopologyError)


@pytest.mark.parametrize(
    ("engine", "valid"),
    [
        ("spark", True),
        ("{type: spark, executors: 2, memory: 2GiB, conf: {a: b}}", True),
        ("{type: threads, hung_seconds: 5}", True),
        ("sprak", False),
        ("{executors: 2}", False),
        ("{type: spark, executors: many}", False),
        ("{type: threads, executors: 2}", False),
    ],
)
def test_the_json_schema_knows_every_engine_and_its_settings(engine: str, valid: bool) -> None:
    engines = Plugins("no.such.group", "engine", {"spark": SparkEngine, "threads": ThreadEngine})
    schema = json_schema(SOURCES, SINKS, engines=engines)
    text = yaml.safe_load(f"{MINIMAL}loader: {{engine: {engine}}}")
    assert jsonschema.Draft202012Validator(schema).is_valid(text) == valid


def test_the_json_schema_says_what_the_settings_of_an_engine_mean() -> None:
    schema = json_schema(SOURCES, SINKS, engines=ENGINES)
    _, spark, _ = schema["properties"]["loader"]["properties"]["engine"]["anyOf"][1]["oneOf"]
    assert spark["properties"]["type"] == {"const": "spark"}
    assert spark["properties"]["address"]["description"] == "Of its cluster."
