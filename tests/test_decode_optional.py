"""Images are an extra: all else works without OpenCV, and asking for them says what to install."""

from __future__ import annotations

import subprocess
import sys

WITHOUT_OPENCV = """
import sys
sys.modules["cv2"] = None
from forebay import decode
decode.json("value", {"x": "int64"}), decode.raw("value", "int8"), decode.arrow_ipc("value")
try:
    %s
except Exception as e:
    print(type(e).__name__, e)
"""


def said(line: str) -> str:
    code = WITHOUT_OPENCV % line
    return subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True
    ).stdout


def test_image_decoders_name_the_extra_when_opencv_is_missing() -> None:
    assert "pip install 'forebay[image]'" in said("decode.jpeg('value')")
    assert said("decode.png('value')").startswith("ConfigError")


def test_augments_name_the_extra_when_opencv_is_missing() -> None:
    assert "pip install 'forebay[image]'" in said("import forebay.augment")


def test_an_unknown_decoder_is_an_attribute_error() -> None:
    assert "no attribute 'tiff'" in said("decode.tiff")
