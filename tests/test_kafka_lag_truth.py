"""Lag on the dev broker."""

from __future__ import annotations

from tests.lag_contract import LagContract


class TestDevBroker(LagContract):
    """As integration/test_lag_apache_kafka.py, with a broker that starts at once."""
