"""Kafka for Forebay: topics as a source, and as a place for dead letters."""

from forebay_kafka.outbox import KafkaStats
from forebay_kafka.reader import KafkaReader
from forebay_kafka.source import KafkaSource

__all__ = ["KafkaReader", "KafkaSource", "KafkaStats"]
