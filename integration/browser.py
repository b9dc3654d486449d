"""A headless Chromium for tests: Debian's, with its ChromeDriver."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from selenium.webdriver import Chrome, ChromeOptions
from selenium.webdriver.chrome.service import Service

CHROMIUM, DRIVER = Path("/usr/bin/chromium"), Path("/usr/bin/chromedriver")
INSTALL = "apt-get install -y --no-install-recommends chromium chromium-driver"
ARTEFACTS = Path(os.environ.get("FOREBAY_ARTEFACTS", ".cache/artefacts"))
_SWITCHES = (
    "--headless=new",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--disable-dev-shm-usage",
    "--no-first-run",
    "--no-default-browser-check",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
    "--disable-extensions",
    "--hide-scrollbars",
    "--force-color-profile=srgb",
)


class BrowserUnavailable(Exception):
    """There is no Chromium here; says how to come by it."""


def ensure_installed() -> None:
    """Install Chromium where that is wanted: in CI, or with FOREBAY_INSTALL_BROWSER=1, as root.

    Raises:
        BrowserUnavailable: it is not there and not to be installed, or cannot be.
    """
    if CHROMIUM.exists() and DRIVER.exists():
        return
    wanted = os.environ.get("CI") or os.environ.get("FOREBAY_INSTALL_BROWSER") == "1"
    if not wanted or os.geteuid() != 0:
        raise BrowserUnavailable(f"no {CHROMIUM} with {DRIVER}; as root: {INSTALL}")
    environment = {**os.environ, "DEBIAN_FRONTEND": "noninteractive"}
    for command in ("apt-get update -q", INSTALL):
        done = subprocess.run(command.split(), env=environment, capture_output=True, text=True)
        if done.returncode != 0:
            raise BrowserUnavailable(f"{command} failed: {done.stderr.strip()[-500:]}")


@contextmanager
def chromium() -> Iterator[Chrome]:
    """A browser with a new and empty profile."""
    ensure_installed()
    with TemporaryDirectory(prefix="forebay-browser-") as profile:
        options = ChromeOptions()
        options.binary_location = str(CHROMIUM)
        for switch in (*_SWITCHES, f"--user-data-dir={profile}"):
            options.add_argument(switch)
        options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
        driver = Chrome(options=options, service=Service(str(DRIVER)))
        try:
            yield driver
        finally:
            driver.quit()


def resize(driver: Chrome, width: int, height: int) -> None:
    """Make the page itself so wide: a window cannot be as narrow as a phone."""
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False},
    )


def prefer(driver: Chrome, theme: str, *, reduced_motion: bool = False) -> None:
    """Let the system prefer ``light`` or ``dark``."""
    features = [
        {"name": "prefers-color-scheme", "value": theme},
        {"name": "prefers-reduced-motion", "value": "reduce" if reduced_motion else ""},
    ]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})


def messages(driver: Chrome) -> list[str]:
    """The errors that the browser has told since it was last asked."""
    told: list[dict[str, Any]] = driver.get_log("browser")  # type: ignore[no-untyped-call]
    return [x["message"] for x in told if x["level"] == "SEVERE"]


def screenshot(driver: Chrome, name: str) -> Path:
    """The whole page as a picture among the test artefacts."""
    ARTEFACTS.mkdir(parents=True, exist_ok=True)
    path = ARTEFACTS / f"{name}.png"
    width = driver.execute_script("return window.innerWidth")
    height = driver.execute_script("return document.documentElement.scrollHeight")
    resize(driver, width, min(int(height), 6000))
    path.write_bytes(driver.get_screenshot_as_png())
    return path
