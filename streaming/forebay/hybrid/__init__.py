"""History, then live: a bounded source first, then a stream from where the history ends.

source = HybridSource(table, topic, ByOffset())
"""

from __future__ import annotations

from forebay.hybrid.chain import chain
from forebay.hybrid.handover import AtOffsets, ByOffset, ByTime, Handover, StartsAt
from forebay.hybrid.reader import HybridReader
from forebay.hybrid.source import HybridSource

__all__ = [
    "AtOffsets",
    "ByOffset",
    "ByTime",
    "Handover",
    "HybridReader",
    "HybridSource",
    "StartsAt",
    "chain",
]
