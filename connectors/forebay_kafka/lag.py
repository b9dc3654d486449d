"""Where the splits end, and whether their topics are still the same: asked on a thread of its own.

The consumer's cached watermarks freeze while its queue is full or a partition is paused, that is
exactly when lag matters; so the brokers themselves are asked, every few seconds.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from forebay.errors import SourceError
from forebay_kafka.cluster import Cluster, Stopped, Topic, earliest, latest
from forebay_kafka.positions import Partition

_log = logging.getLogger("forebay.kafka")
_CLOSE_SECONDS = 3.0
# However often the reader asks: a partition in trouble must not become a flood of questions.
_ASK_SECONDS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class News:
    """What the brokers said last. Immutable: handed from thread to thread whole."""

    answers: int = 0
    """The number of the last full question that this answers."""
    topics: Mapping[str, Topic] = field(default_factory=dict)
    low: Mapping[Partition, int] = field(default_factory=dict)
    high: Mapping[Partition, int] = field(default_factory=dict)
    ends: Mapping[Partition, int] = field(default_factory=dict)
    """One past the last record that may be read: before open transactions if committed."""
    unanswered: frozenset[Partition] = frozenset()
    """Partitions whose end is the one of before: the last question got no answer for them."""
    silent_since: float | None = None
    """Monotonic time since when the brokers have not answered; None if they do."""
    trouble: str = ""
    """What they did not answer with, then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pace:
    """Seconds between questions."""

    ends: float
    topics: float


class Lookout:
    """Asks the brokers in the background; the reader looks at ``news`` and never waits.

    The thread starts with ``start`` and ends with ``close``; the other methods are for any
    thread. ``wanted`` says which partitions to ask about, and is called on the thread.
    """

    def __init__(
        self,
        cluster: Cluster,
        news: News,
        wanted: Callable[[Partition], bool],
        *,
        committed: bool,
        pace: Pace,
    ) -> None:
        self._cluster, self._wanted = cluster, wanted
        self._committed, self._pace = committed, pace
        self._news = news
        self._asked = news.answers
        self._wake, self._stop = threading.Event(), threading.Event()
        self._thread: threading.Thread | None = None

    @property
    def news(self) -> News:
        """What the brokers said last."""
        return self._news

    def start(self) -> None:
        """Begin asking; does nothing if it has begun."""
        if self._thread is None and not self._stop.is_set():
            self._thread = threading.Thread(
                target=self._run, name="forebay-kafka-ends", daemon=True
            )
            self._thread.start()

    def ask(self) -> int:
        """Want everything asked anew, soon; returns the number that ``News.answers`` will reach."""
        self._asked += 1
        self._wake.set()
        return self._asked

    def close(self) -> None:
        """End the thread; waits for it for a bounded time. May be called twice."""
        self._stop.set()
        self._cluster.close()
        self._wake.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_SECONDS)

    def _run(self) -> None:
        full_at = time.monotonic() + self._pace.topics
        try:
            while not self._stop.is_set():
                self._wake.wait(min(self._pace.ends, max(full_at - time.monotonic(), 0)))
                self._wake.clear()
                if self._asked > self._news.answers or time.monotonic() >= full_at:
                    self._learn(self._everything)
                    full_at = time.monotonic() + self._pace.topics
                    self._stop.wait(_ASK_SECONDS)
                else:
                    self._learn(self._ends)
        except Stopped:
            return

    def _learn(self, ask: Callable[[], News]) -> None:
        try:
            self._news = ask()
        except SourceError as e:
            since = self._news.silent_since
            if since is None:
                _log.warning("%s", e)
            since = time.monotonic() if since is None else since
            self._news = replace(self._news, silent_since=since, trouble=str(e))

    def _everything(self) -> News:
        number = self._asked  # before asking: what is wanted meanwhile is not answered by this
        topics = self._cluster.topics(list(self._news.topics))
        wanted = [p for p in partitions_of(topics) if self._wanted(p)]
        news = survey(self._cluster, topics, wanted, self._committed, partial=True)
        return replace(news, answers=number)

    def _ends(self) -> News:
        wanted = list(self._news.ends)
        ends = self._cluster.offsets(wanted, latest(), committed=self._committed, partial=True)
        return replace(
            self._news,
            ends={**self._news.ends, **ends},
            unanswered=frozenset(wanted) - ends.keys(),
            silent_since=None,
            trouble="",
        )


def survey(
    cluster: Cluster,
    topics: Mapping[str, Topic],
    partitions: Sequence[Partition],
    committed: bool,
    *,
    partial: bool = False,
) -> News:
    """Ask for the edges of all partitions; ``partial`` leaves out those without an answer.

    Raises:
        SourceError: no answer in time.
    """
    low = cluster.offsets(partitions, earliest(), partial=partial)
    committed_ends = None
    if committed:
        committed_ends = cluster.offsets(partitions, latest(), committed=True, partial=partial)
    # Asked last: what is written meanwhile must not put an end beyond it, as of a log that was cut.
    high = cluster.offsets(partitions, latest(), partial=partial)
    ends = high if committed_ends is None else committed_ends
    return News(topics=topics, low=low, high=high, ends=ends)


def partitions_of(topics: Mapping[str, Topic]) -> list[Partition]:
    """The partitions of topics, in order."""
    return [Partition(name, n) for name, t in topics.items() for n in t.partitions]
