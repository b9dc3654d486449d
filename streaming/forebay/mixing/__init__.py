"""Mixing: several sources in one run, each with its share of the rows that batches get."""

from forebay.mixing.layer import Mix
from forebay.mixing.source import MixedSource, WhenDry, mix, mix_in

__all__ = ["Mix", "MixedSource", "WhenDry", "mix", "mix_in"]
