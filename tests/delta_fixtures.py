"""Delta tables that other writers made, with the rows that are right; kept outside the product.

They are looked for beside the repository, and every test that needs them is skipped, with a
reason, where they are not.
"""

from __future__ import annotations

import importlib.util
import json
import tarfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, lru_cache
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pyarrow as pa
import pytest

_FOLDER = Path(__file__).resolve().parents[2] / "shared" / "fixtures"
_ARCHIVE = _FOLDER / "delta-tables.tar.gz"

needs_fixtures = pytest.mark.skipif(
    not _ARCHIVE.is_file(), reason=f"the tables of other writers are not there: {_ARCHIVE}"
)


@dataclass(frozen=True)
class Fixture:
    """One table: where it is, and where its truth comes from."""

    name: str
    truth: str
    """``spark``, ``agreed``, ``single-reader`` or ``refuse``."""
    root: Path

    @property
    def table(self) -> str:
        """The table's root."""
        return str(self.root / "table")

    def expected_rows(self) -> list[str]:
        """Its rows at the newest version, in the canonical text form, sorted."""
        return (self.root / "expected.jsonl").read_text().splitlines()


class Fixtures:
    """The unpacked archive."""

    def __init__(self, root: Path) -> None:
        self.root = root

    @cached_property
    def all(self) -> list[Fixture]:
        """Every table of the manifest."""
        manifest = json.loads((self.root / "manifest.json").read_text())
        return [Fixture(m["name"], m["truth"], self.root / m["name"]) for m in manifest]

    def __getitem__(self, name: str) -> Fixture:
        return next(each for each in self.all if each.name == name)

    @cached_property
    def change_feeds(self) -> list[dict[str, Any]]:
        """What the change feed of some tables must be: ``table`` (a name without its origin),
        ``start`` and ``end`` version, ``columns`` and ``rows``, all values as text."""
        found: list[dict[str, Any]] = json.loads((self.root / "cdf_expected.json").read_text())
        return found


def fixture_names(*truths: str) -> list[str]:
    """Names for ``pytest.mark.parametrize``: of all tables, or of those with one of `truths`.

    Read from the archive itself, as parameters are needed before anything is unpacked; empty
    without the archive.
    """
    return [m["name"] for m in _manifest() if not truths or m["truth"] in truths]


@contextmanager
def fixtures() -> Iterator[Fixtures]:
    """Unpacks the archive; for a session-scoped fixture. Skips the test without the archive."""
    if not _ARCHIVE.is_file():
        pytest.skip(f"the tables of other writers are not there: {_ARCHIVE}")
    with TemporaryDirectory(prefix="forebay-tables-") as folder:
        with tarfile.open(_ARCHIVE) as archive:
            archive.extractall(folder, filter="data")
        yield Fixtures(Path(folder))


def canonical_rows(table: pa.Table) -> list[str]:
    """The rows of `table` in the form of ``Fixture.expected_rows``."""
    return _canon()(table)


@lru_cache
def _manifest() -> list[dict[str, Any]]:
    if not _ARCHIVE.is_file():
        return []
    with tarfile.open(_ARCHIVE) as archive:
        member = next(m for m in archive if Path(m.name).name == "manifest.json")
        data = archive.extractfile(member)
        assert data is not None
        found: list[dict[str, Any]] = json.load(data)
        return found


@lru_cache
def _canon() -> Callable[[pa.Table], list[str]]:
    spec = importlib.util.spec_from_file_location("canon", _FOLDER / "canon.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    rows: Callable[[pa.Table], list[str]] = module.rows
    return rows
