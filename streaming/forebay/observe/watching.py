"""Watching a loader in one line: a monitor, and all that its settings ask for.

with watch(loader, listen=":9464", tensorboard="runs/1") as watching:
    print(watching.url)
    for batch in loader: ...
"""

from __future__ import annotations

import os
from contextlib import ExitStack, suppress
from types import TracebackType
from typing import Any

from forebay.observe import ranks
from forebay.observe.access import parse_listen
from forebay.observe.board import OwnRanks
from forebay.observe.monitor import Monitor, Output, Watched
from forebay.observe.otlp import Otlp
from forebay.observe.serving import Server
from forebay.observe.settings import Metrics
from forebay.observe.snapshot import JobSeen
from forebay.observe.statefile import StateFile
from forebay.observe.tensorboard import TensorBoard


class Watching:
    """A monitor with its outputs and its server, from ``start`` to ``stop``.

    Args:
        loader: what is watched; it may be started, closed and started again meanwhile.
        metrics: what is told, and where to.
        job: whose process this is; None: by what is known of the program.

    Raises:
        ConfigError: a file cannot be written, the address is none or in use, or a library is
            missing. Nothing is left open.
    """

    def __init__(self, loader: Watched, metrics: Metrics, job: JobSeen | None = None) -> None:
        with ExitStack() as undo:
            outputs = _outputs(metrics, undo)
            self.monitor = Monitor(
                loader, job, outputs=outputs, interval=metrics.interval, ranks=ranks.of_job()
            )
            self._server = None if metrics.listen is None else _server(self.monitor, metrics)
            undo.pop_all()

    @property
    def url(self) -> str | None:
        """Of the dashboard, without the token; None if there is none."""
        return None if self._server is None else self._server.url

    def start(self) -> None:
        """Begin to watch and to answer."""
        self.monitor.start()
        if self._server is not None:
            self._server.start()

    def stop(self, ended: str | None = None) -> None:
        """End it; ``ended`` says how the run ended: ``done``, ``stopped`` or ``failed``."""
        try:
            self.monitor.stop(ended)
        finally:
            if self._server is not None:
                self._server.close()

    def __enter__(self) -> Watching:
        self.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        tb: TracebackType | None,
    ) -> None:
        self.stop("done" if kind is None else "failed")


def watch(
    loader: Watched, metrics: Metrics | None = None, *, job: JobSeen | None = None, **settings: Any
) -> Watching:
    """Watch a loader, by ``Metrics`` or by its fields as keywords; a context manager.

    Raises:
        ConfigError: see ``Watching``.
    """
    return Watching(loader, Metrics(**settings) if metrics is None else metrics, job)


def _outputs(metrics: Metrics, undo: ExitStack) -> list[Output]:
    made: list[Output] = []

    def add(output: Output) -> None:
        undo.callback(output.close)
        made.append(output)

    if metrics.state_file is not None:
        add(StateFile(metrics.state_file))
    if metrics.tensorboard is not None:
        add(TensorBoard(metrics.tensorboard))
    if metrics.otlp is not None:
        add(Otlp(metrics.otlp))
    return made


def _server(monitor: Monitor, metrics: Metrics) -> Server:
    assert metrics.listen is not None
    host, port = parse_listen(metrics.listen)
    if port:
        port += _local_rank()
    return Server(OwnRanks(monitor.history), host, port, metrics.token)


def _local_rank() -> int:
    """Among the ranks on this machine, as torchrun says."""
    with suppress(ValueError):
        return int(os.environ.get("LOCAL_RANK", "0"))
    return 0
