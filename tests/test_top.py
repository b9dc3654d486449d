"""``forebay top`` and ``forebay dashboard``: the picture in a terminal, and their errors."""

from __future__ import annotations

import io
import json
import re
import signal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from urllib.request import urlopen

import pytest
from rich.console import Console
from tests.histories import BEGAN, decision, history, letters, snapshot, told
from tests.http_support import served

from forebay.cli import invoke
from forebay.cli.exits import OK, SOURCE, USAGE
from forebay.observe.board import TargetSeen
from forebay.observe.picture import picture
from forebay.observe.snapshot import Snapshot
from forebay.observe.top import drawn

SECONDS = 30.0


def text(
    *histories: Sequence[Snapshot], rank: str | None = None, targets: Sequence[TargetSeen] = ()
) -> str:
    out = io.StringIO()
    shown = picture(histories, BEGAN + 40, targets)
    Console(file=out, width=110).print(drawn(shown, rank))
    return out.getvalue()


def test_it_shows_what_the_dashboard_shows() -> None:
    seen = text(
        [
            *history(39, starved=0.4),
            snapshot(
                40,
                starved=0.4,
                letters=letters("ValueError: no [b]number[/b]"),
                decisions=(decision(30, 2, 4, "the trainer starves"),),
                ranks=(told(0, 0.4), told(1, 0.1)),
            ),
        ]
    )
    for words in (
        "waits for data 40 % of the time",
        "starved 40%",
        "→ decode",
        "3 slices queued",
        "1 of 2 ready",
        "2 to 4 workers: the trainer starves",
        "ValueError: no [b]number[/b]",
        "rank 1",
        "kafka:clicks/2",
    ):
        assert words in seen


def test_the_verdict_says_of_which_time_it_is() -> None:
    assert "verdict: compute, of the last 30 s" in text(history(60, starved=0.05))
    assert "verdict: unknown ─" in text([snapshot(1)])


def test_what_is_not_known_is_a_dash() -> None:
    assert "0 of 4.0" not in text([snapshot(1)])
    assert "–" in text([snapshot(1)])  # noqa: RUF001


def test_a_reason_cannot_steer_the_terminal() -> None:
    seen = text([snapshot(1, letters=letters("ValueError: \x1b[2J\x1b]0;owned\x07"))])
    assert "owned" in seen
    assert "\x1b" not in seen


def test_another_rank_can_be_looked_at() -> None:
    ranks = [history(40, rank=r, world=2, starved=0.4 * r) for r in range(2)]
    assert "rank 1 of 2" in text(*ranks)
    assert "rank 0 of 2" in text(*ranks, rank="clicks/0")


def test_a_rank_that_is_not_there_is_said_with_those_that_are(
    capsys: pytest.CaptureFixture[str],
) -> None:
    ranks = [history(40, rank=r, world=2) for r in range(2)]
    why = "there is no rank clicks/7; there are clicks/0, clicks/1"
    assert why in text(*ranks, rank="clicks/7")
    with served(*ranks) as server:
        assert invoke(["top", server.url, "--once", "--rank", "clicks/7"]) == USAGE
    assert why in capsys.readouterr().err


def test_of_several_ranks_a_split_says_whose_it_is() -> None:
    ranks = [history(40, rank=r, world=2, splits=1) for r in range(2)]
    splits = [line.split() for line in text(*ranks).splitlines() if "kafka:clicks/0" in line]
    assert [line[1] for line in splits] == ["clicks/0", "clicks/1"]


def test_before_anything_was_seen_it_says_why() -> None:
    gone = TargetSeen(name="http://gpu-1:8420", ranks=0, trouble="not reached: refused")
    seen = text(targets=[gone])
    assert "http://gpu-1:8420: not reached: refused" in seen
    assert "Nothing was seen yet." in seen


def test_one_picture_of_a_running_job(capsys: pytest.CaptureFixture[str]) -> None:
    with served(history(40, starved=0.4)) as server:
        assert invoke(["top", server.url, "--once"]) == OK
        assert "waits for data 40 % of the time" in capsys.readouterr().out.replace("│\n│", "")
        assert invoke(["top", f"127.0.0.1:{server.port}", "--once", "--json"]) == OK
        assert json.loads(capsys.readouterr().out)["ranks"][0]["rows"] == 40_000


def test_a_job_that_cannot_be_reached_is_an_error_that_names_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "none.jsonl"
    assert invoke(["top", str(path), "--once"]) == SOURCE
    assert f"{path}: there is no such file. Give the address" in capsys.readouterr().err


def test_a_token_comes_from_the_environment_and_is_kept_out_of_messages(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    token = "a-token-that-nobody-guesses"
    with served(history(40), token=token) as server:
        target = f"{server.url}?token=${{CLICKS_TOKEN}}"
        assert invoke(["top", target, "--once"]) == USAGE
        assert "the environment variable CLICKS_TOKEN is not set" in capsys.readouterr().err
        monkeypatch.setenv("CLICKS_TOKEN", token)
        assert invoke(["top", target, "--once"]) == OK
    assert token not in "".join(capsys.readouterr())


# Where tests run in the background of a shell, Ctrl-C is ignored, and by all that they start.
HEEDING = """
import signal
signal.signal(signal.SIGINT, signal.default_int_handler)
from forebay.cli import main
main()
"""


def test_it_goes_on_until_it_is_interrupted_which_is_no_error() -> None:
    with served(history(40, starved=0.4)) as job:
        command = [sys.executable, "-c", HEEDING, "top", job.url, "--interval", "0.2"]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            for _ in range(2):
                assert any(b"waits for data 40 %" in line for line in process.stdout)
            process.send_signal(signal.SIGINT)
            process.stdout.read()
            assert process.wait(SECONDS) == OK


@pytest.mark.parametrize("command", ["top", "dashboard"])
def test_help_says_which_job_is_meant_where_none_is_named(
    command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke([command, "--help"]) == OK
    words = capsys.readouterr().out.partition("Options:")[0]
    assert "Without a TARGET it is http://127.0.0.1:9464." in words
    assert not re.search(r"\S  ", words)


def test_a_dashboard_shows_a_job_of_another_process_and_ends_in_order() -> None:
    with served(history(40)) as job:
        command = [sys.executable, "-m", "forebay.cli", "dashboard", job.url, "--listen", ":0"]
        with subprocess.Popen([*command, "--json"], stdout=subprocess.PIPE) as process:
            assert process.stdout is not None
            url = json.loads(process.stdout.readline())["url"]
            with urlopen(f"{url}events") as events:
                shown = next(line for line in events if b'"rows":40000' in line)
                process.terminate()
                assert process.wait(SECONDS) == OK
    assert json.loads(shown.removeprefix(b"data: "))["targets"][0]["trouble"] == ""


@pytest.mark.parametrize(
    ("given", "why"),
    [
        (["--listen", "0.0.0.0:0"], "could be seen from other machines"),
        (["--token", "written-in-plain-sight"], "must not stand on the command line"),
        (["--listen", "nowhere"], "no address to listen on"),
        (["ftp://host"], "cannot be followed"),
    ],
)
def test_a_dashboard_that_cannot_be_served_is_refused_before_it_begins(
    given: list[str], why: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert invoke(["dashboard", *given]) == USAGE
    assert why in capsys.readouterr().err
