"""Kafka for Forebay: topics as a source, and as a place for dead letters."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from forebay_kafka.deadletters import KafkaSink
    from forebay_kafka.outbox import KafkaStats
    from forebay_kafka.reader import KafkaReader
    from forebay_kafka.source import KafkaSource

__all__ = ["KafkaReader", "KafkaSink", "KafkaSource", "KafkaStats"]

# Found when first used: the dev broker lives in this package, too, and must start without torch,
# which takes seconds to import.
_MODULES = {
    "KafkaReader": "forebay_kafka.reader",
    "KafkaSink": "forebay_kafka.deadletters",
    "KafkaSource": "forebay_kafka.source",
    "KafkaStats": "forebay_kafka.outbox",
}


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
