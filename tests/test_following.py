"""Running jobs are followed from another process, and stay in view when they are gone."""

from __future__ import annotations

import json
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from threading import Thread

import pytest
from tests.histories import BEGAN, history, snapshot
from tests.http_support import served

from forebay.errors import ConfigError
from forebay.observe.following import Followed, follow
from forebay.observe.statefile import StateFile
from forebay.testing import TurnableClock


def test_a_job_is_followed_by_its_address() -> None:
    seen = history(5)
    with served(seen) as server:
        board = follow([server.url])
        board.refresh()
        assert board.histories() == [history(5)]
        seen.append(snapshot(6))
        board.refresh()
        assert board.histories() == [history(6)]
        assert board.targets()[0].trouble == ""


def test_a_state_file_is_followed_while_it_grows(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    file, board = StateFile(path), follow([str(path)])
    file.write(snapshot(1))
    board.refresh()
    file.write(snapshot(2))
    board.refresh()
    file.close()
    assert board.histories() == [history(2)]


def test_several_targets_are_several_ranks(tmp_path: Path) -> None:
    path = tmp_path / "run.jsonl"
    file = StateFile(path)
    file.write(snapshot(1, rank=2))
    file.close()
    with served(history(3), history(3, rank=1)) as server:
        board = follow([server.url, str(path)])
        board.refresh()
    assert [h[-1].job.rank for h in board.histories()] == [0, 1, 2]
    assert [t.ranks for t in board.targets()] == [2, 1]


def test_a_job_that_is_gone_keeps_its_last_state_and_says_how_long_it_is_silent() -> None:
    clock = TurnableClock()
    with served(history(5)) as server:
        board = Followed([server.url], clock=clock)
        board.refresh()
    clock.turn(34)
    board.refresh()
    (target,) = board.targets()
    assert board.histories() == [history(5)]
    assert target.trouble.startswith("not reached: ")
    assert target.silent_seconds == 34


def test_a_file_in_which_nothing_new_comes_is_a_job_that_is_gone(tmp_path: Path) -> None:
    path, clock = tmp_path / "run.jsonl", TurnableClock()
    file, board = StateFile(path), Followed([str(path)], clock=clock)
    file.write(snapshot(1))
    board.refresh()
    clock.turn(11)
    board.refresh()
    assert "is its process gone?" in board.targets()[0].trouble
    file.write(snapshot(2, ended="done"))
    file.close()
    board.refresh()
    clock.turn(11)
    board.refresh()
    assert board.targets()[0].trouble == ""


def test_a_job_that_was_started_again_begins_anew() -> None:
    seen = history(5)
    with served(seen) as server:
        board = follow([server.url])
        board.refresh()
        seen[:] = history(2, began=BEGAN + 100)
        board.refresh()
    assert board.histories() == [history(2, began=BEGAN + 100)]


def test_a_token_in_the_address_is_sent_and_never_shown() -> None:
    token = "a-token-that-nobody-guesses"
    with served(history(5), token=token) as server:
        board = follow([f"{server.url}?token={token}", server.url, f"{server.url}?token=wrong"])
        board.refresh()
        with_it, without, with_another = board.targets()
        assert (with_it.ranks, with_it.trouble) == (1, "")
        assert token not in with_it.name
        assert without.trouble == "it wants a token: write http://HOST:PORT?token=${NAME}"
        assert with_another.trouble.startswith("it refused the token")


def test_what_is_not_there_yet_is_waited_for(tmp_path: Path) -> None:
    board = follow([str(tmp_path / "later.jsonl")])
    board.refresh()
    (target,) = board.targets()
    assert (target.trouble, target.silent_seconds) == ("there is no such file", None)


class Foreign(BaseHTTPRequestHandler):
    """A server of something else."""

    def do_GET(self) -> None:
        self.send_response(200)
        self.end_headers()
        self.wfile.write(json.dumps({"hello": "world"}).encode())

    def log_message(self, format: str, *args: object) -> None:
        """Nothing."""


def test_a_server_of_something_else_is_told_from_a_dashboard() -> None:
    with HTTPServer(("127.0.0.1", 0), Foreign) as foreign:
        thread = Thread(target=foreign.handle_request)
        thread.start()
        board = follow([f"127.0.0.1:{foreign.server_port}"])
        board.refresh()
        thread.join()
    assert "is no dashboard of this version" in board.targets()[0].trouble


@pytest.mark.parametrize(
    "target", ["ftp://host", "http://", "http://host:port", "kafka://a?token=x"]
)
def test_what_cannot_be_followed_is_refused_at_once(target: str) -> None:
    with pytest.raises(ConfigError, match="cannot be followed: give http://HOST:PORT") as refused:
        follow([target])
    assert "token" not in str(refused.value)
