"""Kafka for forebay."""
