"""A loader whose source is recorded."""

from __future__ import annotations

from typing import Any

from forebay.loader import Loader
from forebay.recording import RecordedSource


class RecordedLoader(Loader):
    """A ``Loader`` that gives no state before everything that it covers is recorded."""

    _source: RecordedSource

    def state_dict(self) -> dict[str, Any]:
        """As ``Loader.state_dict``; waits until all that was read so far is recorded.

        Raises:
            SourceError: it could not be recorded, or dead letters could not be stored.
        """
        self._source.flush()
        return super().state_dict()
