"""Notices silence: a split that has records waiting and gives none."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection

from forebay.errors import SourceError, SourceStalled
from forebay_kafka.clienterrors import ErrorLog
from forebay_kafka.lag import News
from forebay_kafka.tracks import Track

# Between two polls this far apart nobody wanted records: that time is no silence of the source.
_UNWANTED_SECONDS = 1.0
_LOOK_SECONDS = 1.0


class Watchdog:
    """Measures for how long each split was asked and gave nothing. Reading thread only."""

    def __init__(
        self, seconds: float, errors: ErrorLog, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._seconds, self._errors, self._clock = seconds, errors, clock
        self._heard: dict[str, float] = {}
        self._asking_since = self._asked = self._looked = clock()

    def asked(self) -> None:
        """The source was asked for records."""
        now = self._clock()
        if now - self._asked > _UNWANTED_SECONDS:
            self._asking_since = now
        self._asked = now

    def heard(self, split: str) -> None:
        """A split gave records or its end, or is wanted again after a pause."""
        self._heard[split] = self._clock()

    def look(self, tracks: Collection[Track], news: News) -> None:
        """Nothing came: see, once a second, whether that has gone on for too long.

        ``tracks``: those that are wanted and fetched.

        Raises:
            SourceStalled: records wait at the brokers, or nothing is heard from them at all.
            SourceError: access has been refused for as long.
        """
        now = self._clock()
        if now - self._looked < _LOOK_SECONDS:
            return
        self._looked = now
        for track in tracks:
            self._check_access(track, now)
            self._check_arrival(track, news)
        since = news.silent_since
        if since is not None and now - since >= self._seconds and all(map(self._overdue, tracks)):
            raise SourceStalled(f"nothing is heard from the brokers. {news.trouble}")

    def _check_access(self, track: Track, now: float) -> None:
        since = track.refused_since
        if since is not None and now - since >= self._seconds:
            raise SourceError(
                f"{track.split}: access has been refused for {now - since:.0f} s: "
                f"{self._errors.words()}. Give the user the right to read the topic, and resume "
                "from the last checkpoint."
            )

    def _check_arrival(self, track: Track, news: News) -> None:
        end = news.ends.get(track.partition, track.next) if track.bound is None else track.bound
        if end <= track.next or not self._overdue(track):
            return
        raise SourceStalled(
            f"{track.split}: records {track.next} to {end - 1} wait at the brokers, and nothing "
            f"has arrived for {self._silent(track):.0f} s. The client's last error: "
            f"{self._errors.words()}. Likely cause: {self._errors.cause()}."
        )

    def _overdue(self, track: Track) -> bool:
        return self._silent(track) >= self._seconds

    def _silent(self, track: Track) -> float:
        """Seconds for which a split was asked and gave nothing."""
        since = max(self._heard.get(track.split, self._asking_since), self._asking_since)
        return self._clock() - since
