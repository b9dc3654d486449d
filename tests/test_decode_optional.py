"""Images are an extra: all else works without OpenCV, and asking for them says what to install."""

from __future__ import annotations

import subprocess
import sys

import pytest

WITHOUT_OPENCV = """
import sys
sys.modules["cv2"] = None  # importing it fails, as where it is not installed
from forebay import decode
decode.json("value", {"x": "int64"}), decode.raw("value", "int8"), decode.arrow_ipc("value")
for line in ("decode.jpeg('v')", "decode.png('v')", "import forebay.augment", "decode.tiff"):
    try:
        exec(line)
    except Exception as e:
        print(line, "->", type(e).__name__, e)
"""


@pytest.fixture(scope="module")
def said() -> dict[str, str]:
    """What each line says in an interpreter without OpenCV."""
    run = [sys.executable, "-c", WITHOUT_OPENCV]
    out = subprocess.run(run, capture_output=True, text=True, check=True).stdout
    return dict(line.split(" -> ", 1) for line in out.splitlines())


@pytest.mark.parametrize("line", ["decode.jpeg('v')", "decode.png('v')", "import forebay.augment"])
def test_images_name_the_extra_where_opencv_is_missing(said: dict[str, str], line: str) -> None:
    assert said[line].startswith("ConfigError")
    assert "pip install 'forebay[image]'" in said[line]


def test_an_unknown_decoder_is_an_attribute_error(said: dict[str, str]) -> None:
    assert "no attribute 'tiff'" in said["decode.tiff"]
