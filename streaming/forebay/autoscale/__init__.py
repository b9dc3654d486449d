"""Autoscaling: how many workers each pool has, and the reason for it.

``Observation`` -> ``Policy.decide`` -> ``Decision``. Policies are pure; the loop around them has
the clock, the memory and the thread. Imports neither torch nor ray.
"""

from __future__ import annotations

from forebay.autoscale.decision import Decision, Policy
from forebay.autoscale.governor import Guards
from forebay.autoscale.log import DecisionLog, Taken
from forebay.autoscale.loop import AutoscaleLoop, Scaler
from forebay.autoscale.observation import Observation, PoolSeen, SourceSeen, TrainerSeen
from forebay.autoscale.observer import Observer, Sample
from forebay.autoscale.policies import Fixed, Lag, Starvation
from forebay.autoscale.settings import Autoscaling, PolicyName
from forebay.autoscale.trace import TraceFile, read_trace

__all__ = [
    "AutoscaleLoop",
    "Autoscaling",
    "Decision",
    "DecisionLog",
    "Fixed",
    "Guards",
    "Lag",
    "Observation",
    "Observer",
    "Policy",
    "PolicyName",
    "PoolSeen",
    "Sample",
    "Scaler",
    "SourceSeen",
    "Starvation",
    "Taken",
    "TraceFile",
    "TrainerSeen",
    "read_trace",
]
