"""Keeps Ray from telling of an execution of ours what it tells of data sets."""

from __future__ import annotations

import logging
import warnings

NAME, THREAD = "forebay", "forebay-ray"
"""What our data sets are called, and the threads that run them."""
_PROGRESS = "ray.data._internal.progress"
# Where another version has no such loggers it only talks more.
_LOGGERS = (
    _PROGRESS,
    "ray.data._internal.execution.streaming_executor",
    "ray.data._internal.logging",
)


class _NotOurs(logging.Filter):
    """Lets pass what is a warning, or of others: not that a data set of ours is begun or
    finished, and not how to get progress bars for it."""

    def filter(self, record: logging.LogRecord) -> bool:
        if record.levelno > logging.WARNING:
            return True
        about_bars = record.name == _PROGRESS and record.threadName == THREAD
        return not about_bars and f"{NAME}_" not in record.getMessage()


_not_ours = _NotOurs()


def quiet() -> None:
    """Set the filters, of the whole process; harmless to other uses of Ray Data in it."""
    for name in _LOGGERS:
        logging.getLogger(name).addFilter(_not_ours)
    # Of max_restarts and scheduling_strategy: in the versions that are allowed there is no other
    # way to give them to a pool, or only one that is deprecated as well.
    warnings.filterwarnings("ignore", "`ray_remote_args` is deprecated", module=r"forebay\.ray\.")
