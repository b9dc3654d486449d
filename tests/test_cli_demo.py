"""``forebay demo`` finds the demos of every connector; without a name it is the one on Kafka."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from tests.cli_support import Workshop, install_plugins, workshop_at


@pytest.fixture
def shop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Workshop:
    return workshop_at(tmp_path, capsys, monkeypatch)


def test_the_demos_are_listed_without_being_imported(shop: Workshop) -> None:
    listed = (
        "import sys; from forebay.cli import invoke; invoke(['demo', '--help']); "
        "sys.exit(any(name.startswith(('torch', 'forebay_')) for name in sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", listed], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "delta  Train on a Delta table" in done.stdout
    assert "kafka  Train on live images" in done.stdout


@pytest.mark.parametrize("name", [[], ["kafka"]])
def test_options_without_a_name_are_those_of_the_kafka_demo(
    shop: Workshop, name: list[str]
) -> None:
    done = shop.forebay("demo", *name, "--images", "many")
    assert done.code == 2
    assert "Invalid value for '--images': 'many'" in done.err


def test_a_mistyped_demo_is_told_with_the_near_one(shop: Workshop) -> None:
    done = shop.forebay("demo", "detla")
    assert (done.code, done.err) == (2, "error: there is no demo 'detla'; did you mean 'delta'?\n")


def test_another_package_adds_a_demo(
    shop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shop.write("files_demo.py", "import click\ndemo = click.Command('files', callback=dict)\n")
    site = install_plugins(tmp_path / "more", {"forebay.demos": {"files": "files_demo:demo"}})
    monkeypatch.syspath_prepend(site)
    monkeypatch.syspath_prepend(tmp_path)
    assert shop.forebay("demo", "files").code == 0
    assert "(from package forebay-test-plugins)" in shop.forebay("demo", "--help").out


def test_a_folder_that_is_not_empty_is_refused(shop: Workshop) -> None:
    done = shop.forebay("demo", "delta", "--folder", shop.folder)
    assert done.code == 2
    assert "is not empty: the demo starts anew" in done.err
