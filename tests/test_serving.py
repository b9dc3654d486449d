"""The dashboard's server: what it gives to whom, and that no viewer holds it up."""

from __future__ import annotations

import socket
import threading

import pytest
from tests.histories import BEGAN, history, snapshot
from tests.http_support import Stream, ask, board, served

from forebay.errors import ConfigError
from forebay.observe import serving
from forebay.observe.access import parse_listen
from forebay.observe.serving import Server
from forebay.observe.snapshot import Snapshot

TOKEN = "a-token-that-nobody-guesses"
BEARER = {"Authorization": f"Bearer {TOKEN}"}


@pytest.fixture(autouse=True)
def often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Events come as soon as there is something new, not once a second."""
    monkeypatch.setattr(serving, "SECONDS_BETWEEN_EVENTS", 0.01)


def viewers() -> list[str]:
    """Threads of servers that are still there."""
    names = ("forebay-viewer", "forebay-dashboard")
    return [t.name for t in threading.enumerate() if t.name.startswith(names)]


def test_the_page_and_the_files_that_it_names_are_served() -> None:
    with served(history(3)) as server:
        page = ask(server, "/")
        assert "<!doctype html>" in page.text
        for name in ("style.css", "theme.js", "app.js", "icon.svg"):
            assert f'"/page/{name}"' in page.text
            assert ask(server, f"/page/{name}").status == 200


@pytest.mark.parametrize(
    "path",
    ["/page/../serving.py", "/page/%2e%2e/serving.py", "//etc/passwd", "/page/", "/page/x.js"],
)
def test_nothing_but_the_pages_own_files_is_served(path: str) -> None:
    with served(history(3)) as server:
        assert ask(server, path).status == 404


def test_nothing_from_elsewhere_may_run_in_the_page_or_read_from_it() -> None:
    with served(history(3)) as server:
        for path in ("/", "/api/state", "/nowhere"):
            headers = ask(server, path, {"Origin": "http://evil.example"}).headers
            assert headers["Content-Security-Policy"].startswith("default-src 'none';")
            assert "unsafe" not in headers["Content-Security-Policy"]
            assert headers["X-Content-Type-Options"] == "nosniff"
            assert "Access-Control-Allow-Origin" not in headers


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS", "HEAD"])
def test_only_get_is_answered(method: str) -> None:
    with served(history(3)) as server:
        answer = ask(server, "/api/state", method=method)
        assert (answer.status, answer.headers["Allow"], answer.body) == (405, "GET", b"")


@pytest.mark.parametrize("host", ["evil.example", "evil.example:80", "127.0.0.1.evil.example", ""])
def test_a_foreign_name_that_points_at_loopback_is_refused(host: str) -> None:
    with served(history(3)) as server:
        assert ask(server, "/api/state", {"Host": host}).status == 403


@pytest.mark.parametrize("host", ["localhost", "localhost:9999", "127.0.0.1:1", "[::1]:8420"])
def test_loopback_may_be_named_as_one_likes_and_reached_through_another_port(host: str) -> None:
    with served(history(3)) as server:
        assert ask(server, "/api/state", {"Host": host}).status == 200


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.7", "gpu-1.example"])
def test_other_machines_get_in_only_with_a_token(host: str) -> None:
    with pytest.raises(ConfigError, match=r"from other machines.*--token"):
        Server(board(history(3)), host, 0)


def test_a_token_that_can_be_guessed_is_refused() -> None:
    with pytest.raises(ConfigError, match="has 3 characters, and can be guessed"):
        Server(board(history(3)), "0.0.0.0", 0, token="abc")


def test_without_the_token_nothing_is_told_but_that_the_server_lives() -> None:
    with served(history(3), token=TOKEN) as server:
        for path in ("/", "/page/app.js", "/metrics", "/api/state", "/api/history", "/events"):
            for headers in ({}, {"Authorization": "Bearer wrong"}, {"Cookie": "forebay_1=wrong"}):
                answer = ask(server, path, headers)
                assert answer.status == 401
                assert "clicks" not in answer.text
        assert ask(server, "/?token=wrong").status == 401
        assert ask(server, "/healthz").json == {"status": "ok"}


def test_a_scraper_brings_the_token_and_may_use_any_name_of_the_machine() -> None:
    with served(history(3), token=TOKEN) as server:
        answer = ask(server, "/metrics", {**BEARER, "Host": "gpu-1.example:8420"})
        assert answer.status == 200
        assert "forebay_rows_total" in answer.text


def test_a_browser_brings_the_token_once_and_it_stays_in_no_address() -> None:
    with served(history(3), token=TOKEN) as server:
        taken = ask(server, f"/?token={TOKEN}")
        cookie, *flags = taken.headers["Set-Cookie"].split("; ")
        assert (taken.status, taken.headers["Location"]) == (303, "/")
        assert {"HttpOnly", "SameSite=Strict"} <= set(flags)
        assert TOKEN not in cookie
        assert ask(server, "/api/state", {"Cookie": f"other=1; {cookie}"}).status == 200


def test_metrics_come_in_the_format_that_is_asked_for() -> None:
    with served(history(3)) as server:
        plain = ask(server, "/metrics")
        asked = ask(server, "/metrics", {"Accept": "application/openmetrics-text; version=1.0.0"})
        assert plain.headers["Content-Type"].startswith("text/plain")
        assert asked.headers["Content-Type"].startswith("application/openmetrics-text")
        assert asked.text.endswith("# EOF\n")


def test_the_state_is_each_ranks_newest_snapshot_and_its_verdict() -> None:
    ranks = [history(40, rank=r, world=2, starved=0.5 * r) for r in range(2)]
    with served(*ranks) as server:
        state = ask(server, "/api/state").json
        assert [Snapshot.from_json(r["snapshot"]) for r in state["ranks"]] == [h[-1] for h in ranks]
        assert "50 %" in state["ranks"][1]["verdict"]["sentence"]


def test_the_history_is_what_came_after_a_moment() -> None:
    with served(history(9)) as server:
        (told,) = ask(server, f"/api/history?since={BEGAN + 6}").json["histories"]
        assert [Snapshot.from_json(s) for s in told] == history(9)[6:]
        assert ask(server, "/api/history?since=yesterday").status == 400


def test_a_history_of_very_many_splits_is_thinned_but_for_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(serving, "MOST_SPLITS_OF_HISTORY", 300)
    with served(history(500, splits=3)) as server:
        (told,) = ask(server, "/api/history").json["histories"]
        seconds = [s["at"] - BEGAN for s in told]
        assert len(seconds) <= 101
        assert (seconds[0], seconds[-50:]) == (1, list(range(451, 501)))


def test_a_viewer_gets_the_points_so_far_then_each_new_one() -> None:
    seen = history(5)
    with served(seen) as server, Stream(server) as stream:
        first = stream.next("points").data
        assert first["anew"] is True
        assert len(first["ranks"]["clicks/0"]) == 5
        assert stream.next("picture").data["ranks"][0]["rows"] == 5000
        seen.append(snapshot(6))
        new = next(e.data for e in stream.events() if e.name == "points" and e.data["ranks"])
        at = new["columns"].index("at")
        assert [p[at] for p in new["ranks"]["clicks/0"]] == [BEGAN + 6]


def test_a_viewer_that_comes_back_gets_what_he_missed() -> None:
    seen = history(5)
    with served(seen) as server:
        with Stream(server) as stream:
            last = stream.next("picture").id
        seen.extend([snapshot(6), snapshot(7)])
        with Stream(server, last) as stream:
            missed = next(e.data for e in stream.events() if e.name == "points" and e.data["ranks"])
    assert missed["anew"] is False
    assert len(missed["ranks"]["clicks/0"]) == 2


def test_a_viewer_of_a_server_that_was_started_again_gets_everything() -> None:
    with served(history(5)) as server, Stream(server) as stream:
        last = stream.next("picture").id
    with served(history(3)) as server, Stream(server, last) as stream:
        assert stream.next("points").data["anew"] is True


def test_viewers_are_told_how_the_run_ended() -> None:
    seen = history(5)
    with served(seen) as server, Stream(server) as stream:
        stream.next("picture")
        seen.append(snapshot(6, ended="failed"))
        server.close()
        pictures = [e.data for e in stream.events() if e.name == "picture"]
    assert pictures[-1]["ranks"][0]["ended"] == "failed"


def test_a_viewer_that_does_not_read_holds_up_nobody_and_close_ends_him() -> None:
    with served(history(3, splits=2000)) as server:
        deaf = socket.socket()
        deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        deaf.connect(("127.0.0.1", server.port))
        deaf.sendall(b"GET /events HTTP/1.1\r\nHost: localhost\r\n\r\n")
        with Stream(server) as stream:
            for _ in range(30):  # more than the kernel takes for him who does not read
                assert stream.next("picture").data["split_count"] == 2000
        server.close()
        assert viewers() == []
        deaf.close()


def test_a_client_that_says_nothing_does_not_keep_the_server_from_closing() -> None:
    with served(history(3)) as server:
        with socket.create_connection(("127.0.0.1", server.port)):
            ask(server, "/healthz")
            server.close()
            assert viewers() == []


def test_there_are_only_so_many_viewers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving, "MOST_CONNECTIONS", 2)
    with served(history(3)) as server:
        with Stream(server) as one, Stream(server) as two:
            one.next("picture")
            two.next("picture")
            assert ask(server, "/healthz").status == 503


def test_a_port_that_is_taken_is_named_and_what_to_do() -> None:
    with served(history(3)) as server:
        with pytest.raises(ConfigError, match=f"cannot listen on 127.0.0.1:{server.port}") as e:
            Server(board(history(3)), port=server.port)
    assert "the port is in use. Take another one, or port 0 for any that is free" in str(e.value)
    assert "Errno" not in str(e.value)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        (":8420", ("127.0.0.1", 8420)),
        ("8420", ("127.0.0.1", 8420)),
        (":0", ("127.0.0.1", 0)),
        ("*:80", ("0.0.0.0", 80)),
        ("gpu-1.example:80", ("gpu-1.example", 80)),
        ("[::1]:80", ("::1", 80)),
    ],
)
def test_an_address_to_listen_on(text: str, address: tuple[str, int]) -> None:
    assert parse_listen(text) == address


@pytest.mark.parametrize("text", ["", ":", "host", ":70000", "a:b", "http://host:80", "::1:80"])
def test_what_is_no_address_to_listen_on_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="no address to listen on"):
        parse_listen(text)
