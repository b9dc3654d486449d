"""What viewers of a dashboard are sent: made once for all of them, and only while there are any.

It is a stream of server-sent events. ``points`` are the new figures of the charts, ``picture`` is
all of the newest moment. The id of an event says which points its viewer has, so that one who
comes back after a while gets those that he missed.
"""

from __future__ import annotations

import secrets
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import astuple, dataclass

import msgspec

from forebay.observe.board import Board
from forebay.observe.picture import Picture, keys, picture
from forebay.observe.points import COLUMNS, Point, point
from forebay.observe.snapshot import Snapshot

KEPT_POINTS = 900
"""Of each rank."""


@dataclass(frozen=True, slots=True)
class _Numbered:
    number: int
    rank: str
    point: Point


class Events:
    """Looks at a board when asked to, and remembers the points. Any thread.

    Args:
        board: what it looks at.
        clock: wall-clock seconds.
    """

    def __init__(self, board: Board, clock: Callable[[], float] = time.time) -> None:
        self._board, self._clock = board, clock
        self._lock = threading.Lock()
        # A server that was started again counts anew: ids of another one mean nothing to it.
        self._epoch = secrets.token_hex(4)
        self._points: dict[str, deque[_Numbered]] = {}
        self._number = 0
        self._picture, self._encoded = picture((), 0.0), b""

    def look(self, max_age: float = 0.0) -> Picture:
        """The picture of now, or one that was made less than ``max_age`` seconds ago."""
        with self._lock:
            now = self._clock()
            if not 0 <= now - self._picture.at < max_age:
                histories = [h for h in self._board.histories() if h]
                self._remember(histories)
                self._picture = picture(histories, now, self._board.targets())
                self._encoded = msgspec.json.encode(self._picture)
            return self._picture

    def since(self, last_id: str | None) -> tuple[str, bytes]:
        """What a viewer is to get who has got all up to the event ``last_id``, and its new id.

        With None, or an id of another server, that is everything.
        """
        with self._lock:
            seen = self._seen(last_id)
            new = [n for kept in self._points.values() for n in kept if n.number > (seen or 0)]
            encoded, new_id = self._encoded, f"{self._epoch}-{self._number}"
        points = msgspec.json.encode(_points(new, anew=seen is None))
        return new_id, _event("points", points) + _event("picture", encoded, new_id)

    def _remember(self, histories: Sequence[Sequence[Snapshot]]) -> None:
        names = keys([h[-1].job for h in histories])
        self._points = {n: self._points.get(n) or deque(maxlen=KEPT_POINTS) for n in names}
        for name, history in zip(names, histories, strict=True):
            kept = self._points[name]
            newest = kept[-1].point.at if kept else 0.0
            for snapshot in history:
                if snapshot.at > newest:
                    self._number += 1
                    kept.append(_Numbered(self._number, name, point(history, snapshot)))

    def _seen(self, last_id: str | None) -> int | None:
        epoch, _, number = (last_id or "").partition("-")
        return int(number) if epoch == self._epoch and number.isdecimal() else None


def _points(new: Iterable[_Numbered], *, anew: bool) -> dict[str, object]:
    of: dict[str, list[tuple[object, ...]]] = {}
    for n in new:
        of.setdefault(n.rank, []).append(astuple(n.point))
    return {"anew": anew, "columns": COLUMNS, "ranks": of}


def _event(name: str, data: bytes, event_id: str | None = None) -> bytes:
    head = f"id: {event_id}\n" if event_id else ""
    return f"{head}event: {name}\ndata: ".encode() + data + b"\n\n"
