"""What is to be compared: a topology, and for some of its keys other values, one at a time."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, TypeAlias

from forebay import topology
from forebay.errors import ConfigError
from forebay.topology import Change, Topology, TopologyError
from forebay.topology.changes import as_yaml, value_at
from forebay.topology.nodes import Node, parse
from forebay.topology.parameters import parameters
from forebay.topology.problems import Problems
from forebay.topology.values import attempt, read_arguments

Check: TypeAlias = Literal["bytes", "ids"]
BASELINE = "baseline"
_FORM = {"value", "prepare", "name"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """How a comparison is run; all of a matrix file but what is varied."""

    topology: Path
    """The file that is the baseline, relative to the matrix."""
    batches: int = 200
    """How much each run reads: as many records as the baseline's first batches are made of."""
    warmup: int | None = None
    """Batches that are not timed, at the start of each run; None: a tenth."""
    repeats: int = 5
    """Rounds; in each of them every variant runs once. Below 5 little can be shown."""
    check: Check = "bytes"
    """What of a variant's rows must be as the baseline's: ids and contents, or the ids alone."""
    ids: str | None = None
    """The column that identifies a row; None: its split and offset. For variants that read the
    same rows from elsewhere."""
    least: float = 0.03
    """The smallest difference that is worth a change, as a share."""
    timeout: float = 600.0
    """Seconds after which a run is stopped and counts as failed."""
    seed: int = 0
    """Of the order in which variants run, and of the intervals."""

    def __post_init__(self) -> None:
        for name in ("batches", "repeats"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} must be at least 1, not {getattr(self, name)}")
        if not 0 <= self.warmup_batches < self.batches:
            raise ConfigError(f"warmup must be less than the {self.batches} batches of a run")
        if not 0 <= self.least < 1:
            raise ConfigError(f"least must be a share from 0 to below 1, not {self.least}")
        if not self.timeout > 0:
            raise ConfigError(f"timeout must be positive, not {self.timeout}")

    @property
    def warmup_batches(self) -> int:
        """Batches that are not timed."""
        return self.batches // 10 if self.warmup is None else self.warmup


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A topology that is run: the file as it is, or with one key changed."""

    name: str
    change: Change | None = None
    prepare: str | None = None
    """A command to run once before, such as one that converts the data."""

    @property
    def changes(self) -> Mapping[str, str]:
        """What is changed, in YAML, by path."""
        return {} if self.change is None else {self.change.path: self.change.yaml}


@dataclass(frozen=True, slots=True, kw_only=True)
class Matrix:
    """Everything that a comparison needs, checked. Nothing has run yet."""

    file: Path
    settings: Settings
    variants: tuple[Variant, ...]
    """The baseline first."""
    baseline: Topology
    same: tuple[str, ...] = ()
    """Values that were left out, for they are those of the file."""
    secrets: frozenset[str] = frozenset()

    @property
    def trains(self) -> bool:
        """Whether there is a training function to time as well."""
        return self.baseline.train is not None


def read_matrix(
    path: str | os.PathLike[str],
    *,
    env: Mapping[str, str] = os.environ,
    importable_from: Callable[[str], object] = str,
) -> Matrix:
    """Read a matrix, and check the topology with every change that it asks for.

    Args:
        importable_from: told the path of the topology before it is loaded, so that modules beside
            it can be found.

    Raises:
        TopologyError: something is wrong in the matrix or the topology; all problems with lines.
        ConfigError: a file cannot be read.
    """
    file, problems = Path(path), Problems()
    root = parse(_text(file), str(file), env, problems)
    problems.stop_if_any()
    assert root is not None
    settings = _settings(root, file, problems)
    variants = _variants(root, problems)
    problems.stop_if_any()
    assert settings is not None
    importable_from(str(settings.topology))
    # What is wrong with the topology itself is told by itself, not once for each variant.
    baseline = topology.load(settings.topology, env=env)
    tree = parse(_text(settings.topology), str(settings.topology), env, Problems())
    assert tree is not None
    same = [v for v in variants if v.change is not None and _is_value(tree, v.change)]
    others = [v for v in variants if v not in same]
    secrets = baseline.secrets.union(*_checked(settings.topology, others, problems, env))
    problems.stop_if_any()
    return Matrix(
        file=file,
        settings=settings,
        variants=(Variant(name=BASELINE), *others),
        baseline=baseline,
        same=tuple(v.name for v in same),
        secrets=secrets,
    )


def _text(file: Path) -> str:
    try:
        return file.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as e:
        why = e.strerror if isinstance(e, OSError) else "it is not UTF-8"
        raise ConfigError(f"{file} cannot be read: {why}") from e


def _settings(root: Node, file: Path, problems: Problems) -> Settings | None:
    before = len(problems.found)
    arguments: dict[str, Any] = read_arguments(
        root, parameters(Settings), "", problems, also=("vary",)
    )
    if not root.is_mapping:
        problems.add(root.place, "", f"a matrix is a mapping, not {root.shown()}")
    if len(problems.found) > before:
        return None
    arguments["topology"] = file.parent / arguments["topology"]
    made: Settings | None = attempt(lambda: Settings(**arguments), root, "", problems)
    return made


def _variants(root: Node, problems: Problems) -> list[Variant]:
    node = root.mapping().get("vary")
    if node is None or not node.mapping():
        place = node.place if node else root.place
        text = "say what to vary: keys of the topology by their paths, each with a list of values"
        problems.add(place, "vary", text)
        return []
    found: list[Variant] = []
    for path, values in node.mapping().items():
        if not values.items():
            problems.add(values.place, f"vary.{path}", "must be a list of values to try")
        found += [_variant(path, value, problems) for value in values.items()]
    names = [v.name for v in found]
    for variant in found:
        if names.count(variant.name) > 1 and variant.change is not None:
            problems.add(variant.change.node.place, "vary", f"{variant.name!r} is there twice")
    return found


def _variant(path: str, node: Node, problems: Problems) -> Variant:
    """One value, or a mapping of the value and what it needs."""
    given = node.mapping()
    if "value" not in given or not _FORM.issuperset(given):
        return Variant(name=f"{path} = {as_yaml(node)}", change=Change(path, node))
    value, texts = given["value"], {}
    for key in ("prepare", "name"):
        if (text := given.get(key)) is not None and not isinstance(text.value, str):
            problems.add(text.place, f"vary.{path}.{key}", f"must be text, not {text.shown()}")
        texts[key] = None if text is None else str(text.value)
    name = texts["name"] or f"{path} = {as_yaml(value)}"
    return Variant(name=name, change=Change(path, value), prepare=texts["prepare"])


def _is_value(tree: Node, change: Change) -> bool:
    """Whether the file says just that already."""
    now = value_at(tree, change.path)
    return now is not None and as_yaml(now) == change.yaml


def _checked(
    file: Path, variants: Sequence[Variant], problems: Problems, env: Mapping[str, str]
) -> list[frozenset[str]]:
    """The secrets of each variant; what is wrong with one is a problem of the matrix."""
    secrets = []
    for variant in variants:
        assert variant.change is not None
        try:
            loaded = topology.load(file, env=env, changes=(variant.change,))
            secrets.append(loaded.secrets)
        except TopologyError as e:
            # A mistyped key has as many values as are to be tried, and is one problem.
            told = {(p.path, p.text) for p in problems.found}
            problems.found.extend(p for p in e.problems if (p.path, p.text) not in told)
    return secrets
