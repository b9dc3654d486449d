"""The optional libraries that images need, imported in one place."""

from __future__ import annotations

from forebay.errors import ConfigError

try:
    import cv2
    import simplejpeg
except ImportError as e:
    raise ConfigError(
        f"images need OpenCV and simplejpeg ({e}): pip install 'forebay[image]'"
    ) from e

__all__ = ["cv2", "simplejpeg"]
