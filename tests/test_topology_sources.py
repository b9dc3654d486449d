"""A topology's source may be made of other sources, each with a type and options of its own."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from forebay import MixedSource, Source, mix
from forebay.plugins import Plugins
from forebay.testing import MemorySource
from forebay.topology import SINKS, SOURCES, Topology, TopologyError, json_schema, load


@dataclass(frozen=True, kw_only=True)
class Numbers(MemorySource):
    """A member."""

    data: Mapping[str, Any] = field(default_factory=dict)
    split: str = "numbers"
    rows: int = 4

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", {self.split: list(range(self.rows))})


def after(first: Source, then: Source, *, gap: int = 0) -> MemorySource:
    """A source made of two, given by a parameter each."""
    assert isinstance(first, MemorySource)
    assert isinstance(then, MemorySource)
    return MemorySource({**first.data, **then.data, "gap": [0] * gap})


HERE = Plugins("no.such.group", "source type", {"numbers": Numbers, "mix": mix, "after": after})
MIX = """
    source:
      type: mix
      sources:
        live: {type: numbers, split: live, rows: 30}
        replay: {type: numbers, split: replay, rows: "${ROWS}"}
      weights: {live: 3, replay: 1}
      when_dry: others
    batch: 4
"""


def loaded(tmp_path: Path, text: str) -> Topology:
    path = tmp_path / "topology.yaml"
    path.write_text(textwrap.dedent(text))
    return load(path, sources=HERE, env={"ROWS": "10"})


def problems(tmp_path: Path, text: str) -> list[str]:
    with pytest.raises(TopologyError) as e:
        loaded(tmp_path, text)
    return [f"{p.place.line}: {p.path}: {p.text}" for p in e.value.problems]


def test_a_mix_is_built_from_the_sources_below_it(tmp_path: Path) -> None:
    topology = loaded(tmp_path, MIX)
    source = topology.pipeline.source
    assert isinstance(source, MixedSource)
    assert (source.weights, source.when_dry) == ({"live": 3.0, "replay": 1.0}, "others")
    assert sum(b.rows for b in topology.loader()) == 40


def test_a_source_may_take_others_by_a_parameter_each_and_be_a_member_itself(
    tmp_path: Path,
) -> None:
    text = """
        source:
          type: mix
          sources:
            both:
              type: after
              first: {type: numbers, split: a}
              then: {type: numbers, split: b}
              gap: 2
          weights: {both: 1}
        batch: 4
    """
    assert sum(b.rows for b in loaded(tmp_path, text).loader()) == 10


def test_what_is_wrong_with_a_member_is_told_with_its_line_and_path(tmp_path: Path) -> None:
    text = MIX.replace("rows: 30", "raws: 30").replace("type: numbers, split: replay", "type: x")
    assert problems(tmp_path, text) == [
        "5: source.sources.live.raws: unknown key; did you mean 'rows'?",
        "6: source.sources.replay.type: there is no source type 'x'; installed are: after, mix, "
        "numbers",
    ]


@pytest.mark.parametrize(
    ("old", "new", "words"),
    [
        ("replay: 1}", "reply: 1}", "'reply', which is none of the sources; did you mean 'replay'"),
        ("live: 3", "live: -3", "weight of 'live' must be a positive number, not -3"),
        ("when_dry: others", "when_dry: other", "did you mean 'others'?"),
        ("type: mix\n", "type: mix\n      quantums: 3\n", "source.quantums: unknown key"),
        ("sources:", "nothing:", "source.sources: is missing: a mapping of sources"),
    ],
)
def test_what_is_wrong_with_the_mix_is_told_as_of_any_source(
    tmp_path: Path, old: str, new: str, words: str
) -> None:
    assert words in "\n".join(problems(tmp_path, MIX.replace(old, new)))


def test_a_wrong_weight_is_told_where_it_stands(tmp_path: Path) -> None:
    (found,) = problems(tmp_path, MIX.replace("replay: 1}", "reply: 1}"))
    assert ": source.weights.reply: " in found


def test_sources_must_be_a_mapping_and_a_missing_one_is_named(tmp_path: Path) -> None:
    assert problems(tmp_path, "source: {type: mix, sources: [1], weights: {}}\nbatch: 1") == [
        "1: source.sources: must be a mapping of names to sources, not a list"
    ]
    found = problems(tmp_path, "source: {type: after, then: {type: numbers}}\nbatch: 1")
    assert found == ["1: source.first: is missing: a source"]


def test_the_schema_knows_sources_in_sources(tmp_path: Path) -> None:
    schema = json_schema(HERE, SINKS)
    file = yaml.safe_load(textwrap.dedent(MIX))
    jsonschema.validate(file, schema)
    file["source"]["sources"]["live"]["type"] = "nothing"
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(file, schema)
    two = {"type": "after", "first": {"type": "numbers"}, "then": {"type": "numbers"}}
    jsonschema.validate({"source": two, "batch": 1}, schema)


def test_mix_is_a_source_type_without_any_package() -> None:
    assert "mix" in SOURCES.names()
