"""The Ray Data engine, for when one machine is not enough: ``loader(engine="ray")``.

The only package that imports ray.
"""

from __future__ import annotations

from forebay.ray.engine import RayEngine

__all__ = ["RayEngine"]
