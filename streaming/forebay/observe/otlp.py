"""What runs, pushed to an OpenTelemetry collector by OTLP over HTTP: the metrics of ``catalog``.

Names, labels and values are those that Prometheus gets; counts are cumulative. Needs
``forebay[otlp]``.
"""

from __future__ import annotations

import importlib
import logging
import threading
from collections.abc import Mapping
from typing import Any, Protocol
from urllib.parse import urlsplit

from forebay.errors import ConfigError
from forebay.observe.catalog import MOST_SPLITS
from forebay.observe.readings import RATIO_SECONDS, History
from forebay.observe.snapshot import Snapshot

_log = logging.getLogger("forebay.observe")
_exporter_log = logging.getLogger("opentelemetry.exporter.otlp.proto.http.metric_exporter")
_TIMEOUT, _PATIENCE = 5.0, 2.0
_PATH = "/v1/metrics"


class Pusher(Protocol):
    """What speaks OTLP."""

    def push(self, history: History) -> bool:
        """Push the metrics of one rank; whether they were taken. Waits for the answer."""

    def close(self) -> None:
        """Push nothing more, and give up what is being tried again."""


class Otlp:
    """An output of a ``Monitor``: pushes the newest snapshot now and then, on a thread of its own.

    A collector that does not answer costs the training nothing: it is told once in the log, and
    tried again each time.

    Args:
        endpoint: the collector's URL; without a path ``/v1/metrics`` is meant. None: what the
            environment says (``OTEL_EXPORTER_OTLP_ENDPOINT``, as its ``_HEADERS`` and others).
        seconds: between two pushes.
        headers: to send with each, as a token.

    Raises:
        ConfigError: the OpenTelemetry SDK is not installed, or the URL is none.
    """

    def __init__(
        self,
        endpoint: str | None = None,
        *,
        seconds: float = 10.0,
        headers: Mapping[str, str] | None = None,
        most_splits: int = MOST_SPLITS,
    ) -> None:
        url = None if endpoint is None else _full(endpoint)
        self._seconds = seconds
        self._pusher: Pusher = _sdk().SdkPusher(url, headers, _TIMEOUT, most_splits)
        self._recent: tuple[Snapshot, ...] = ()
        self._failed = False
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="forebay-otlp", daemon=True)
        _exporter_log.addFilter(self._tells)

    def write(self, snapshot: Snapshot) -> None:
        """Take it for the next push."""
        since = snapshot.at - RATIO_SECONDS
        self._recent = (*(s for s in self._recent if s.at >= since), snapshot)
        if self._thread.ident is None:
            self._thread.start()

    def close(self) -> None:
        """Push what came last, and end; a collector that hangs is not waited for longer than some
        seconds."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(_PATIENCE)
        self._pusher.close()
        if self._thread.ident is not None:
            self._thread.join(_TIMEOUT)
        _exporter_log.removeFilter(self._tells)

    def _run(self) -> None:
        while not self._stopped.wait(self._seconds):
            self._push()
        self._push()

    def _push(self) -> None:
        try:
            taken = self._pusher.push(self._recent)
        except Exception as e:  # an error of a transport that the exporter does not know
            self._told(f"{type(e).__name__}: {e}")
        else:
            self._told("" if taken else "the collector does not take them")

    def _tells(self, record: logging.LogRecord) -> bool:
        """Whether what the exporter logs is to be seen: of failures in a row the first."""
        return not (self._failed and record.thread == self._thread.ident)

    def _told(self, trouble: str) -> None:
        if trouble and not self._failed:
            _log.warning("metrics could not be pushed by OTLP, which goes on trying: %s", trouble)
        self._failed = bool(trouble)


def _sdk() -> Any:
    """The module that needs the SDK. It takes a fifth of a second, so only who asks for it pays.

    Raises:
        ConfigError: the SDK is not installed.
    """
    try:
        return importlib.import_module("forebay.observe.otlpsdk")
    except ImportError as e:
        raise ConfigError(
            f"OTLP needs the OpenTelemetry SDK: pip install 'forebay[otlp]' ({e})"
        ) from e


def _full(endpoint: str) -> str:
    """With the path of metrics, if it has none.

    Raises:
        ConfigError: it is no URL.
    """
    url = urlsplit(endpoint)
    if url.scheme not in ("http", "https") or not url.netloc:
        raise ConfigError(
            f"otlp must be the URL of a collector, as http://localhost:4318, not {endpoint!r}"
        )
    return url._replace(path=_PATH).geturl() if url.path in ("", "/") else endpoint
