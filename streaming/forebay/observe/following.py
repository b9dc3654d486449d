"""Follows running jobs from another process: by the address of their dashboard, or a state file.

    with follow(["http://gpu-3:9464", "run/rank-1.jsonl"]) as board:
        board.histories()

A job that is gone stays on the board with its last state, and with why nothing new comes.
"""

from __future__ import annotations

import http.client
import re
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Protocol
from urllib.parse import SplitResult, parse_qs, quote, urlsplit

import msgspec

from forebay.errors import ConfigError, ForebayError
from forebay.observe.board import TargetSeen
from forebay.observe.monitor import KEPT_SECONDS
from forebay.observe.points import same_run
from forebay.observe.snapshot import Snapshot
from forebay.observe.statefile import read_snapshots

_TIMEOUT = 5.0
_MOST_BYTES = 128 << 20
_SILENT_SECONDS = 10.0
"""So long nothing new may come of a file before its job counts as gone."""
_APART_SECONDS = 30.0
"""How far the ranks of a job are apart at most, by clocks and by snapshots."""
_JOIN_SECONDS = _TIMEOUT + 1.0


class Unreached(Exception):
    """Nothing can be heard of a target now; says why."""


class _Asked(Protocol):
    """Where a target's snapshots come from."""

    name: str

    def ask(self, since: float) -> Sequence[Sequence[Snapshot]]:
        """The histories of its ranks after a wall-clock time.

        Raises:
            Unreached: now is nothing to be heard of it.
        """


class Followed:
    """A board of targets, each asked on a thread of its own from ``start`` to ``close``.

    Args:
        targets: each ``http://HOST:PORT`` with ``?token=…`` where one is needed, or a state file.
        interval: seconds between two questions.
        clock: monotonic seconds.

    Raises:
        ConfigError: a target is neither.
    """

    def __init__(
        self,
        targets: Sequence[str],
        interval: float = 1.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._targets = [_Target(_asked(t), clock) for t in targets]
        self._interval = interval
        self._stopped = threading.Event()
        self._threads = [
            threading.Thread(target=self._run, args=(t,), name="forebay-follow", daemon=True)
            for t in self._targets
        ]

    def refresh(self) -> None:
        """Ask every target once, here and now; for who does not ``start``."""
        for target in self._targets:
            target.refresh()

    def start(self) -> None:
        """Begin to ask."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """End asking, within seconds."""
        self._stopped.set()
        deadline = time.monotonic() + _JOIN_SECONDS
        for thread in self._threads:
            if thread.ident is not None:
                thread.join(max(0.0, deadline - time.monotonic()))

    def __enter__(self) -> Followed:
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def histories(self) -> Sequence[Sequence[Snapshot]]:
        """Those of all ranks of all targets."""
        return [h for t in self._targets for h in t.histories()]

    def targets(self) -> Sequence[TargetSeen]:
        """The targets as they are now."""
        return [t.seen() for t in self._targets]

    def _run(self, target: _Target) -> None:
        while not self._stopped.is_set():
            target.refresh()
            self._stopped.wait(self._interval)


def follow(targets: Sequence[str], interval: float = 1.0) -> Followed:
    """A board of these targets, as ``Followed`` takes them."""
    return Followed(targets, interval)


class _Target:
    """What is known of one target. One thread refreshes, any may look."""

    def __init__(self, asked: _Asked, clock: Callable[[], float]) -> None:
        self._asked, self._clock = asked, clock
        self._kept: dict[tuple[str, int], list[Snapshot]] = {}
        self._heard: float | None = None
        self._trouble = "not asked yet"

    def refresh(self) -> None:
        """Ask for what is new."""
        try:
            found = self._asked.ask(self._since())
        except Unreached as e:
            self._trouble = str(e)
            return
        kept = dict(self._kept)
        news = [n for history in found if history and (n := _added(kept, history))]
        self._kept = kept
        if news:
            self._heard = self._clock()
        self._trouble = self._silence()

    def _since(self) -> float:
        """What to ask from on: the rank that is furthest back, but of one that ended nothing comes,
        and for it the others' last minutes are not asked for again each second."""
        newest = [h[-1].at for h in self._kept.values()]
        return max(min(newest), max(newest) - _APART_SECONDS) if newest else 0.0

    def histories(self) -> list[list[Snapshot]]:
        """One for each rank."""
        return list(self._kept.values())

    def seen(self) -> TargetSeen:
        """How it stands with it."""
        heard, ranks = self._heard, self._kept
        return TargetSeen(
            name=self._asked.name,
            ranks=len(ranks),
            silent_seconds=None if heard is None else self._clock() - heard,
            trouble=self._trouble,
        )

    def _silence(self) -> str:
        """Why an answer without anything new is trouble; empty if it is none."""
        if not self._kept:
            return "nothing was told yet"
        ended = all(h[-1].ended is not None for h in self._kept.values())
        silent = self._clock() - (self._heard or 0.0) > _SILENT_SECONDS
        return "nothing new comes: is its process gone?" if silent and not ended else ""


def _added(kept: dict[tuple[str, int], list[Snapshot]], history: Sequence[Snapshot]) -> bool:
    """Add what is new of a rank; whether there was something."""
    job = history[-1].job
    old = kept.get((job.name, job.rank), [])
    if old and not same_run(old[-1], history[-1]):
        old = []  # started again: its counts begin anew
    new = [s for s in history if not old or s.at > old[-1].at]
    horizon = history[-1].at - KEPT_SECONDS
    kept[job.name, job.rank] = [s for s in [*old, *new] if s.at >= horizon]
    return bool(new)


class _File:
    """A state file."""

    def __init__(self, path: str) -> None:
        self.name = path

    def ask(self, since: float) -> Sequence[Sequence[Snapshot]]:
        if not Path(self.name).exists():
            raise Unreached("there is no such file")
        try:
            return [read_snapshots(self.name, since)]
        except ForebayError as e:
            raise Unreached(str(e).removeprefix(f"{self.name} ")) from e  # it stands before it


class _Endpoint:
    """A dashboard's server."""

    def __init__(self, url: SplitResult) -> None:
        self.name = f"{url.scheme}://{url.netloc.rpartition('@')[2]}"
        self._https = url.scheme == "https"
        self._host, self._port = url.hostname or "", url.port
        self._path = url.path.rstrip("/")
        self._token = parse_qs(url.query).get("token", [""])[0]

    def ask(self, since: float) -> Sequence[Sequence[Snapshot]]:
        body = self._get(f"{self._path}/api/history?since={quote(repr(since))}")
        try:
            found: Any = msgspec.json.decode(body)["histories"]
            return [[Snapshot.from_json(s) for s in h] for h in found]
        except (ValueError, TypeError, KeyError) as e:
            raise Unreached(f"what answers there is no dashboard of this version: {e}") from e

    def _get(self, path: str) -> bytes:
        kind = http.client.HTTPSConnection if self._https else http.client.HTTPConnection
        connection = kind(self._host, self._port, timeout=_TIMEOUT)
        headers = {"Authorization": f"Bearer {self._token}"} if self._token else {}
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            body = answer.read(_MOST_BYTES)
        except (OSError, http.client.HTTPException) as e:
            raise Unreached(f"not reached: {e or type(e).__name__}") from e
        finally:
            connection.close()
        if answer.status == 401 and self._token:
            raise Unreached("it refused the token: is it the one that the job was given?")
        if answer.status == 401:
            raise Unreached("it wants a token: write http://HOST:PORT?token=${NAME}")
        if answer.status != 200:
            raise Unreached(f"it answers with status {answer.status} {answer.reason}")
        return body


def _asked(target: str) -> _Asked:
    is_host = re.fullmatch(r"[\w.-]*:\d{1,5}|\[[0-9a-fA-F:]+\]:\d{1,5}", target) is not None
    if is_host and not Path(target).exists():
        target = f"http://{'127.0.0.1' if target.startswith(':') else ''}{target}"
    if "://" not in target:
        return _File(target)
    url = urlsplit(target)
    try:
        fits = url.scheme in ("http", "https") and url.hostname and (url.port or 80)
    except ValueError:
        fits = False
    if not fits:
        raise ConfigError(
            f"{url.scheme}://{url.hostname or ''}… cannot be followed: give http://HOST:PORT, or "
            "the path of a state file"
        )
    return _Endpoint(url)
