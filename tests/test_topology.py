"""A topology file says a whole run, and everything wrong with one is told with its line."""

from __future__ import annotations

import sys
import textwrap
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any, Literal

import jsonschema
import numpy as np
import pyarrow as pa
import pytest
import yaml

from forebay.columns import Columns
from forebay.errors import ConfigError
from forebay.letterbox import FolderSink
from forebay.options import LoaderOptions
from forebay.plugins import Plugins
from forebay.rng import RowRandom
from forebay.testing import MemorySource
from forebay.topology import (
    SINKS,
    Topology,
    TopologyError,
    json_schema,
    load,
    load_sink,
    load_target,
)
from forebay.topology.values import size_in_bytes


@dataclass(frozen=True)
class Auth:
    """Nested options of a source."""

    user: str
    password: str = ""


@dataclass(frozen=True, kw_only=True)
class ForeignSource(MemorySource):
    """A source of somebody else's, whose options are checked without any help of theirs.

    Args:
        mode: how it reads.
    """

    data: Mapping[str, Any] = field(default_factory=lambda: {"a": [1, 2, 3]})
    mode: Literal["fast", "safe"] = "safe"
    rate: float | None = None
    since: datetime | None = None
    names: tuple[str, ...] = ()
    buffer_bytes: int = 1 << 20
    auth: Auth | None = None
    config: Mapping[str, Any] = field(default_factory=dict)
    on_event: Callable[..., Any] | None = None

    def __post_init__(self) -> None:
        if self.config.get("fetch.bytes") == 0:
            raise ConfigError("config 'fetch.bytes' must be positive")


SOURCES = Plugins("no.such.group", "source type", {"foreign": ForeignSource})
MINIMAL = "source: {type: foreign}\nbatch: 2\n"


def double(columns: Columns) -> Columns:
    return {"value": np.asarray(columns["value"]) * 2}


def is_even(row: Mapping[str, Any]) -> bool:
    return bool(row["value"] % 2 == 0)


def negate(columns: Columns, rng: RowRandom) -> Columns:
    return {name: -np.asarray(c) for name, c in columns.items()}


def train(loader: Any, checkpoint: Any, *, rate: float = 0.1) -> None:
    """Only its signature matters here."""


@pytest.fixture
def parse(tmp_path: Path) -> Callable[..., Topology]:
    def parse(text: str, **env: str) -> Topology:
        path = tmp_path / "t.yaml"
        path.write_text(textwrap.dedent(text))
        return load(path, sources=SOURCES, env=env)

    return parse


@pytest.fixture
def problems(parse: Callable[..., Topology]) -> Callable[..., list[str]]:
    """The problems of a text, each as ``line:column: key: text``."""

    def problems(text: str, **env: str) -> list[str]:
        with pytest.raises(TopologyError) as caught:
            parse(text, **env)
        return [str(p).partition("t.yaml:")[2] for p in caught.value.problems]

    return problems


def test_a_whole_run_is_described_in_one_file(
    parse: Callable[..., Topology], tmp_path: Path
) -> None:
    topology = parse(f"""
        name: numbers
        source: {{type: foreign, data: {{a: [1, 2, 3, 4, 5, 6]}}}}
        stages:
          - filter: {__name__}:is_even
            per: row
          - map: {__name__}:double
            name: twice
            workers: [1, 2]
        dead_letters: {{type: folder, path: {tmp_path}/letters, format: jsonl}}
        error_budget: {{share: 0.5}}
        batch: {{size: 2, drop_last: true, map: {__name__}:negate}}
        loader: {{order: deterministic, max_bytes: 1MiB, seed: 7}}
        train: {{function: "{__name__}:train", rate: 0.5}}
        checkpoint: {{path: state.json, every: 10}}
    """)
    assert [batch["value"].tolist() for batch in topology.loader()] == [[-4, -8]]
    assert topology.name == "numbers"
    assert topology.loader_options == {"order": "deterministic", "max_bytes": 1 << 20, "seed": 7}
    assert topology.pipeline.workers == (1, 2)
    assert topology.pipeline.budget.share == 0.5
    assert isinstance(topology.pipeline.sink, FolderSink)
    assert topology.checkpoint is not None and topology.checkpoint.every == 10
    assert topology.train is not None and topology.train.options == {"rate": 0.5}
    assert topology.train.wants_checkpoint


def test_the_shortest_topology_is_a_source_and_a_batch(parse: Callable[..., Topology]) -> None:
    assert [b["value"].tolist() for b in parse(MINIMAL).loader()] == [[1, 2], [3]]


def test_decoders_and_augments_are_named_with_their_options(
    parse: Callable[..., Topology],
) -> None:
    topology = parse("""
        source: {type: foreign}
        stages:
          - decode: {json: {column: value, schema: {id: int64, tags: [string]}}}
          - decode: {jpeg: {column: image, size: [224, 224], fit: crop}}
          - augment: {flip: {p: 0.5, column: image}}
          - decode: {"forebay.decode:raw": {column: x, dtype: float32, shape: [2]}}
        batch: {size: 2, map: [{mixup: {images: image, labels: id, classes: 10}}]}
    """)
    names = [stage.name for stage in topology.pipeline.stages]
    assert names[:2] == ["decode.json(value)", "decode.jpeg(image)"]
    assert len(names) == 4
    assert len(topology.pipeline.batch_fns) == 1


def test_options_become_what_their_types_say(parse: Callable[..., Topology]) -> None:
    source: Any = parse("""
        source:
          type: foreign
          mode: fast
          rate: 3
          since: 2026-11-30T08:00:00Z
          names: [a, "10"]
          buffer_bytes: 2MiB
          auth: {user: me}
          config: {fetch.bytes: 10, yes: no, at: 2026-11-30T08:00:00+01:00, t: {0: 5}}
          on_event: json:dumps
        batch: 2
    """).pipeline.source
    assert (source.mode, source.rate, source.names) == ("fast", 3.0, ("a", "10"))
    assert source.since == datetime(2026, 11, 30, 8, tzinfo=timezone.utc)
    assert (source.buffer_bytes, source.auth) == (2 << 20, Auth("me"))
    assert source.config["at"] == datetime(2026, 11, 30, 7, tzinfo=timezone.utc)
    assert {k: source.config[k] for k in ("fetch.bytes", "yes", "t")} == {
        "fetch.bytes": 10, "yes": "no", "t": {0: 5},
    }  # fmt: skip
    assert source.on_event is sys.modules["json"].dumps


@pytest.mark.parametrize(
    ("section", "expected"),
    [
        # typos, old names, wrong level
        ("loader: {max_byte: 10}", "3:10: loader.max_byte: unknown key; did you mean 'max_bytes'?"),
        ("shufle: 10", "3:1: shufle: unknown section; did you mean 'shuffle'?"),
        ("prefetch: 4", "3:1: prefetch: unknown section; 'prefetch' belongs under 'loader'"),
        ("stages:\n- filtr: a:b", "4:3: stages[0]: a stage is exactly one of decode, map, filter, "
         "expand, augment; did you mean 'filter'?"),
        ("stages:\n- decode: {jpg: {column: v}}", "4:12: stages[0].decode.jpg: forebay.decode has "
         "no such thing; did you mean 'jpeg'?"),
        ("dead_letters: {type: foldr, path: x}", "3:22: dead_letters.type: there is no sink type "
         "'foldr'; did you mean 'folder'?"),
        # wrong types
        ('loader: {prefetch: "10"}', "3:20: loader.prefetch: must be a whole number, not the text "
         "'10': remove the quotes"),
        ("loader: {prefetch: 1.5}", "3:20: loader.prefetch: must be a whole number, not 1.5"),
        ("loader: {seed: true}", "3:16: loader.seed: must be a whole number, not true"),
        ("loader: {workers: [4, 2]}", "3:10: loader.workers: workers must be a number from 1, or "
         "(least, most) with 1 <= least <= most, not (4, 2)"),
        ("loader: {workers: 0}", "3:10: loader.workers: workers must be a number from 1, or "
         "(least, most) with 1 <= least <= most, not 0"),
        ("loader: {workers: [1, 2, 3]}", "3:19: loader.workers: must be a list of 2: a whole "
         "number, a whole number, not a list of 3"),
        ("loader: {max_bytes: 5 parsecs}", "3:21: loader.max_bytes: must be a whole number, not "
         "the text '5 parsecs': a number of bytes, or one with a unit such as 256MiB"),
        ("loader: {order: splits}", "3:17: loader.order: must be one of 'split', 'arrival', "
         "'deterministic', not the text 'splits'; did you mean 'split'?"),
        ("loader: {seed:}", "3:15: loader.seed: must be a whole number, not nothing: give a value, "
         "or remove the line"),
        ("name: 10", '3:7: name: must be text, not 10: put it in quotes: "10"'),
        ("loader: [1]", "3:9: loader: must be a mapping of options, not a list"),
        # wrong values, found by the constructor, told at the key that it names
        ("loader: {prefetch: 0}", "3:10: loader.prefetch: prefetch must be a positive integer, "
         "not 0"),
        ("error_budget: {share: 2}", "3:16: error_budget.share: error budget: share must be "
         "between 0 and 1, not 2.0"),
        ("checkpoint: {path: x, every: 0}", "3:23: checkpoint.every: every must be at least 1, "
         "not 0"),
        # things that are not there
        ("train: no_such_module:f", "3:8: train: module 'no_such_module' cannot be imported: "
         "ModuleNotFoundError: No module named 'no_such_module'"),
        ("train: json:dmps", "3:8: train: module 'json' has no 'dmps'; did you mean 'dumps'?"),
        ("train: json", "3:8: train: must be module:function, not the text 'json'"),
        ("stages:\n- decode: {json: {schema: {a: int64}}}", "4:18: stages[0].decode.json.column: "
         "is missing: text"),
        ("stages:\n- decode: {json: {column: v, schema: {a: int65}}}", "4:39: "
         "stages[0].decode.json.schema.a: decode.json(v): field 'a' has the unknown type 'int65'; "
         "use an Arrow name such as int64, float32, bool, string, binary, timestamp[us] or date32"),
        # YAML's own traps
        ("loader: {seed: 010}", "3:16: loader.seed: must be a whole number, not the text '010'"),
        ("batch: 3", "3:1: batch: given twice; the first is in line 2"),
        ("name: !!python/name:os.system", "3:7: name: the YAML tag 'tag:yaml.org,2002:python/"
         "name:os.system' is not supported; remove it"),
        ("loader: {seed: ${SEED}}", "3:17: this is no YAML: while parsing a flow mapping, expected "
         "',' or '}', but got '{'; inside { } and [ ] write \"${NAME}\" in quotes"),
        ("loader:\n  seed: ${SEED}", "4:9: loader.seed: the environment variable SEED is not set; "
         "set it, or write ${SEED:-a default}"),
    ],
)  # fmt: skip
def test_a_mistake_is_told_with_its_place_and_the_way_out(
    problems: Callable[..., list[str]], section: str, expected: str
) -> None:
    found = problems(MINIMAL + section)
    assert expected.split(": ", 1)[1][:25] in found[0]
    assert found == [expected]


@pytest.mark.parametrize("word", ["yes", "no", "on", "off", '"true"', "True"])
def test_only_true_and_false_are_booleans(problems: Callable[..., list[str]], word: str) -> None:
    (found,) = problems(f"source: {{type: foreign}}\nbatch: {{size: 2, drop_last: {word}}}")
    yes = word.strip('"').lower() in ("yes", "on", "true")
    assert found.startswith("2:29: batch.drop_last: must be true or false, not the text")
    assert found.endswith(f"write {'true' if yes else 'false'}, without quotes")


def test_options_of_a_third_party_source_are_checked_by_its_signature(
    problems: Callable[..., list[str]],
) -> None:
    assert problems("""
        source:
          type: foreign
          moed: fast
          mode: quick
          rate: fast
          since: 2026-11-30T08:00:00
          names: a
          auth: {usr: me}
          fetch.bytes: 1
          config: 5
        batch: 2
    """) == [
        "4:3: source.moed: unknown key; did you mean 'mode'?",
        "5:9: source.mode: must be one of 'fast', 'safe', not the text 'quick'",
        "6:9: source.rate: must be a number, not the text 'fast'",
        "7:10: source.since: must be a time (2026-11-30T08:00:00Z), not the text "
        "'2026-11-30T08:00:00'",
        "8:10: source.names: must be a list of text, not the text 'a'",
        "9:9: source.auth.user: is missing: text",
        "9:10: source.auth.usr: unknown key; did you mean 'user'?",
        "10:3: source.fetch.bytes: unknown key; 'fetch.bytes' belongs under 'config'",
        "11:11: source.config: must be a mapping, not 5",
    ]


def test_what_a_source_refuses_is_told_at_the_key_it_names(
    problems: Callable[..., list[str]],
) -> None:
    text = "source:\n  type: foreign\n  config:\n    a: 1\n    fetch.bytes: 0\nbatch: 2\n"
    assert problems(text) == [
        "5:5: source.config.fetch.bytes: config 'fetch.bytes' must be positive"
    ]


def test_a_broken_source_hides_no_other_problem(problems: Callable[..., list[str]]) -> None:
    found = problems("source: {type: nope}\nbatch: {size: x}\nloader: {a: 1}\n")
    assert [f.split(": ")[1] for f in found] == ["source.type", "batch.size", "loader.a"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", "the file is empty"),
        ("- a", "a topology is a mapping, not a list"),
        ("source: {type: foreign", "this is no YAML"),
        ("a: &a [*a]", "this alias refers to itself"),
        ("a: b\n---\nc: d", "this is no YAML"),
        ("batch: 2", "source: this section is missing"),
        ("source: {type: foreign}", "batch: this section is missing"),
    ],
)
def test_a_file_that_is_no_topology_is_refused(
    problems: Callable[..., list[str]], text: str, expected: str
) -> None:
    assert any(expected in found for found in problems(text))


def test_aliases_that_grow_without_bound_are_refused(problems: Callable[..., list[str]]) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 9)}]" for i in range(1, 9)]
    assert any("far too much" in found for found in problems("\n".join(lines)))


def test_an_anchor_shares_client_settings(parse: Callable[..., Topology], tmp_path: Path) -> None:
    source: Any = parse("""
        source: {type: foreign, config: &kafka {bootstrap.servers: host}, mode: fast}
        batch: 2
    """).pipeline.source
    assert source.config == {"bootstrap.servers": "host"}


def test_the_environment_fills_in_values(parse: Callable[..., Topology]) -> None:
    topology = parse(
        """
        source: {type: foreign, names: ["x-${NAME}", "${NONE:-other}", "$${KEPT}"]}
        batch: ${SIZE}
        """,
        NAME="yes",
        SIZE="2",
    )
    source: Any = topology.pipeline.source
    assert source.names == ("x-yes", "other", "${KEPT}")
    assert topology.pipeline.batching is not None and topology.pipeline.batching.size == 2


@pytest.mark.parametrize(
    "line",
    [
        "sasl.password: hunter2",
        "ssl.key.password: '1234'",
        "sasl.jaas.config: x",
        "aws_secret_access_key: abc",
        "sasl.password: ${PW:-hunter2}",
        "schema.registry.url: http://me:hunter2@host",
        "token: abc",
    ],
)
def test_a_secret_in_the_file_is_refused(problems: Callable[..., list[str]], line: str) -> None:
    (found,) = problems(f"source:\n  type: foreign\n  config:\n    {line}\nbatch: 2")
    assert "a secret must not stand in the file: write ${NAME}" in found
    assert "hunter2" not in found.partition("write")[0]


@pytest.mark.parametrize(
    "line",
    [
        "sasl.password: ${PW}",
        "ssl.key.location: /etc/key.pem",
        "sasl.oauthbearer.token.endpoint.url: http://host/token",
        "sasl.oauthbearer.client.credentials.client.id: me",
        "schema.registry.url: http://me:${PW}@host",
        "max.tokens: 5",
    ],
)
def test_what_is_no_secret_may_stand_there(parse: Callable[..., Topology], line: str) -> None:
    topology = parse(f"source:\n  type: foreign\n  config:\n    {line}\nbatch: 2", PW="S3CR3T-1")
    assert "S3CR3T-1" not in repr(topology.secrets) or "${PW}" in line
    assert ("${PW}" in line) == any("S3CR3T-1" in s for s in topology.secrets)


def test_sinks_are_found_without_the_rest_of_the_file(tmp_path: Path) -> None:
    path = tmp_path / "t.yaml"
    path.write_text("source: {type: gone}\ndead_letters: {type: folder, path: letters}\n")
    sink = load_sink(path)
    assert isinstance(sink, FolderSink) and sink.path == Path("letters")
    target = load_target(path, "folder:elsewhere")
    assert isinstance(target, FolderSink) and target.path == Path("elsewhere")


def test_sizes_have_decimal_and_binary_units() -> None:
    sizes = {"1B": 1, "2kB": 2000, "2KB": 2000, "2KiB": 2048, "1.5 MiB": 1_572_864, "1GB": 10**9}
    assert {text: size_in_bytes(text) for text in sizes} == sizes
    assert size_in_bytes("12") is size_in_bytes("1 mile") is None


GOOD = [
    MINIMAL,
    "source: {type: foreign, mode: fast, buffer_bytes: 1MiB, auth: {user: me}}\nbatch: {size: 2}",
    "source: {type: foreign}\nbatch: 2\nloader: {workers: [1, 2], order: arrival, passes: null}",
    "source: {type: foreign}\nbatch: 2\nstages: [{map: 'json:dumps', per: row}]\nshuffle: 100",
    "source: {type: foreign}\nbatch: 2\nstages: [{decode: {json: {column: v, schema: {a: int8}}}}]",
    "source: {type: foreign}\nbatch: 2\ndead_letters: {type: folder, path: x}\ncheckpoint: x.json",
]
BAD = [
    "batch: 2",
    "source: {type: nope}\nbatch: 2",
    "source: {type: foreign, moed: fast}\nbatch: 2",
    "source: {type: foreign}\nbatch: {size: 2, drop_last: 'yes'}",
    "source: {type: foreign}\nbatch: 2\nloader: {order: splits}",
    "source: {type: foreign}\nbatch: 2\nloader: {workers: [1]}",
    "source: {type: foreign}\nbatch: 2\nstages: [{filtr: 'a:b'}]",
    "source: {type: foreign}\nbatch: 2\nstages: [{decode: {jpg: {column: v}}}]",
    "source: {type: foreign}\nbatch: 2\nstages: [{map: json}]",
]


def is_valid(text: str) -> bool:
    schema = json_schema(SOURCES, SINKS)
    jsonschema.Draft202012Validator.check_schema(schema)
    errors = jsonschema.Draft202012Validator(schema).iter_errors(yaml.safe_load(text))
    return next(iter(errors), None) is None


@pytest.mark.parametrize("text", GOOD)
def test_the_json_schema_takes_what_loads(parse: Callable[..., Topology], text: str) -> None:
    parse(text)
    assert is_valid(text)


@pytest.mark.parametrize("text", BAD)
def test_the_json_schema_refuses_what_does_not_load(
    problems: Callable[..., list[str]], text: str
) -> None:
    assert problems(text)
    assert not is_valid(text)


def test_the_json_schema_says_what_options_mean() -> None:
    schema = json_schema(SOURCES, SINKS)
    loader = schema["properties"]["loader"]["properties"]
    assert loader["prefetch"]["description"] == "Batches made ahead of the trainer."
    assert loader["prefetch"]["default"] == LoaderOptions().prefetch
    assert loader["engine"]["description"].startswith("Where the stages run")
    (source,) = schema["properties"]["source"]["oneOf"]
    assert source["properties"]["mode"]["description"] == "how it reads."


def test_a_schema_of_columns_can_be_given_to_a_map(parse: Callable[..., Topology]) -> None:
    stage: Any = parse(f"""
        source: {{type: foreign}}
        stages: [{{map: "{__name__}:is_even", per: row, schema: {{a: int64, b: "string?"}}}}]
        batch: 2
    """).pipeline.stages[0]
    assert stage.schema.names == ["a", "b"]
    assert stage.schema.field("b").type == pa.string()


DOCS = Path(__file__).parent.parent / "docs"
EXAMPLES = [
    pytest.param(block.partition("```")[0], id=f"{name}-{i}")
    for name in sorted(page.name for page in DOCS.glob("*.md"))
    for i, block in enumerate((DOCS / name).read_text().split("```yaml\n")[1:])
    if "\nvary:" not in block  # a matrix of topologies, which has tests of its own
]


@pytest.mark.parametrize("text", EXAMPLES)
def test_the_examples_of_the_docs_are_valid(
    text: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    functions = ("normalise", "train", "is_wanted", "add_features", "crops")
    (tmp_path / "my_training.py").write_text("\n".join(f"def {f}(x): ..." for f in functions))
    decoder = "from forebay.decode import raw\ndef tiff(column): return raw(column, 'int8')\n"
    (tmp_path / "my_decoders.py").write_text(decoder)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "t.yaml").write_text(text)
    try:
        assert load(tmp_path / "t.yaml", env={"KAFKA_PASSWORD": "S3CR3T-1"})
    finally:
        for name in ("my_training", "my_decoders"):
            sys.modules.pop(name, None)  # other tests have modules of these names, too
