"""What is to be told of a running job, and where to."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from forebay.errors import ConfigError
from forebay.observe.access import Access, parse_listen


@dataclass(frozen=True, slots=True, kw_only=True)
class Metrics:
    """Where the metrics of one process go. Everything is optional."""

    listen: str | None = None
    """``[HOST]:PORT`` of the dashboard, and of ``/metrics`` for Prometheus; without a host on
    127.0.0.1 only. Of several ranks on one machine (``LOCAL_RANK``) each takes the port so many
    higher. Port 0: any that is free."""
    token: str | None = None
    """What a browser or a scraper must know, 16 characters or more; needed on any other address
    than loopback."""
    state_file: Path | None = None
    """Gets a line of JSON each ``interval``, for ``forebay dashboard``, ``top`` and ``doctor``."""
    tensorboard: Path | None = None
    """A folder for TensorBoard's event files."""
    otlp: str | None = None
    """The URL of an OpenTelemetry collector, OTLP over HTTP; needs ``forebay[otlp]``."""
    interval: float = 1.0
    """Seconds between two looks at the run."""

    def __post_init__(self) -> None:
        if not self.interval > 0:
            raise ConfigError(f"interval must be positive, not {self.interval}")
        if self.listen is not None:
            Access(parse_listen(self.listen)[0], self.token)

    @property
    def wanted(self) -> bool:
        """Whether anything is to be told to anybody."""
        return any((self.listen, self.state_file, self.tensorboard, self.otlp))
