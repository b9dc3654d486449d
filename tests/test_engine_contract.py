"""The contract of engines, kept by the engine of threads."""

from __future__ import annotations

import pytest
from tests.engine_contract import EngineContract

from forebay import Engine, ThreadEngine


class TestThreads(EngineContract):
    @pytest.fixture
    def engine(self) -> Engine:
        return ThreadEngine()
