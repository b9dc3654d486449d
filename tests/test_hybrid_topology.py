"""A topology says which history a stream goes on from, and where."""

from __future__ import annotations

import json
import textwrap
from pathlib import Path

import jsonschema
import pytest
import yaml

from forebay.hybrid import AtOffsets, ByOffset, ByTime, Handover, HybridSource
from forebay.topology import SINKS, SOURCES, TopologyError, json_schema, load

CHAIN = """
    source:
      type: chain
      history: {type: delta, uri: clicks-table, until: latest}
      live: {type: kafka, topics: clicks, config: {"bootstrap.servers": "localhost:9092"}}
      handover: HANDOVER
      columns: [value]
    batch: 64
"""
RULES: dict[str, Handover] = {
    "{by_offset: {}}": ByOffset(),
    "{by_offset: {offset: _offset, split: '{_split}'}}": ByOffset("_offset", "{_split}"),
    '{at_offsets: {"kafka:clicks/0": 12}}': AtOffsets({"kafka:clicks/0": 12}),
    '{by_time: {at: "2026-11-30T08:00:00Z", column: at}}': ByTime(1796025600000, "at"),
    "{by_time: {at: 1796025600000}}": ByTime(1796025600000),
}


def written(folder: Path, handover: str) -> Path:
    path = folder / "topology.yaml"
    path.write_text(textwrap.dedent(CHAIN.replace("HANDOVER", handover)))
    return path


def plain(rule: Handover) -> object:
    return (rule.ms, rule.column) if isinstance(rule, ByTime) else rule


@pytest.mark.parametrize("text", RULES)
def test_a_chain_is_built_with_the_hand_over_that_is_written(tmp_path: Path, text: str) -> None:
    path = written(tmp_path, text)
    source = load(path).pipeline.source
    assert isinstance(source, HybridSource)
    assert (source.history.bounded, source.live.bounded) == (True, False)
    assert plain(source.handover) == plain(RULES[text])
    assert list(source.columns or ()) == ["value"]
    schema = json.loads(json.dumps(json_schema(SOURCES, SINKS)))
    jsonschema.validate(yaml.safe_load(path.read_text()), schema)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "hand over by exactly one of by_offset, at_offsets and by_time"),
        ("{by_offset: {}, by_time: {at: 5}}", "hand over by exactly one of"),
        ("{by_offset: {ofset: at}}", "did you mean 'offset'"),
        ("{by_offset: {split: '{0}'}}", "must name columns in braces"),
        ("{by_time: {at: noon}}", "must be a time"),
    ],
)
def test_a_wrong_hand_over_is_refused_at_its_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(TopologyError) as refused:
        load(written(tmp_path, text))
    (problem,) = refused.value.problems
    assert words in problem.text
    assert problem.place.line == 6
