"""Stores: a folder and an object store answer alike, ask little, and fail in words."""

from __future__ import annotations

import io
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tests.delta_s3 import S3Place, S3Server, s3_server

from forebay.errors import ConfigError, SourceError
from forebay_delta.paths import without_credentials
from forebay_delta.storageoptions import sort_options
from forebay_delta.store import Store, open_store


@pytest.fixture(scope="module")
def server() -> Iterator[S3Server]:
    with s3_server() as running:
        yield running


class Folder:
    """A local table with the face of `S3Place`."""

    def __init__(self, root: Path) -> None:
        self.uri, self.storage_options = str(root), {}  # type: ignore[var-annotated]

    def put(self, path: str, data: bytes) -> None:
        file = Path(self.uri) / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(data)


@pytest.fixture(params=["folder", "s3"])
def place(request: pytest.FixtureRequest, server: S3Server, tmp_path: Path) -> Folder | S3Place:
    return server.place() if request.param == "s3" else Folder(tmp_path / "table")


def opened(place: Folder | S3Place) -> Store:
    return open_store(place.uri, place.storage_options)


def parquet(rows: int) -> bytes:
    out = io.BytesIO()
    values = np.random.default_rng(0).random(rows)
    pq.write_table(pa.table({"x": values, "y": values}), out, row_group_size=max(rows // 4, 1))
    return out.getvalue()


def test_a_file_is_read_whole_or_in_part_by_its_literal_path(place: Folder | S3Place) -> None:
    place.put("p=a b%20c/f.bin", b"0123456789")
    store = opened(place)
    assert store.get("p=a b%20c/f.bin") == b"0123456789"
    assert store.get_range("p=a b%20c/f.bin", 3, 4) == b"3456"
    assert store.get_range("p=a b%20c/f.bin", 8, 10) == b"89"


def test_a_path_of_an_action_is_decoded_once(place: Folder | S3Place) -> None:
    place.put("p=a b%20c/f.bin", b"hello")
    with opened(place).open_data("p=a%20b%2520c/f.bin") as file:
        assert file.read() == b"hello"


def test_what_is_absent_is_a_file_not_found_error_with_its_whole_name(
    place: Folder | S3Place,
) -> None:
    store = opened(place)
    assert not store.exists("no/f")
    for read in (store.get, store.open, store.open_data, lambda p: store.get_range(p, 0, 1)):
        with pytest.raises(FileNotFoundError, match=f"no file .*{Path(place.uri).name}/no/f"):
            read("no/f")


def test_a_listing_has_the_files_directly_under_a_folder(place: Folder | S3Place) -> None:
    place.put("_delta_log/00.json", b"abc")
    place.put("_delta_log/_sidecars/x.parquet", b"d")
    store = opened(place)
    (entry,) = store.list("_delta_log")
    assert (entry.name, entry.size) == ("00.json", 3)
    assert entry.modified_ms > 1_600_000_000_000
    assert store.list("nothing") == []


def test_many_files_come_in_the_order_asked_for(place: Folder | S3Place) -> None:
    names = [f"log/{i}" for i in range(40)]
    for name in names:
        place.put(name, name.encode())
    wanted = names[::-1]
    assert [data.decode() for data in opened(place).get_many(wanted)] == wanted


def test_many_files_can_be_left_early_and_miss_in_their_place(place: Folder | S3Place) -> None:
    place.put("a", b"1")
    files = opened(place).get_many(["a", "gone", "a"])
    assert next(files) == b"1"
    with pytest.raises(FileNotFoundError, match="gone"):
        next(files)
    early = opened(place).get_many(["a"] * 50)
    next(early)
    early.close()  # type: ignore[attr-defined]
    assert not [t for t in threading.enumerate() if t.name.startswith("forebay-get")]


def test_an_opened_file_serves_a_parquet_reader(place: Folder | S3Place) -> None:
    data = parquet(200_000)
    place.put("f.parquet", data)
    for options in ({"pre_buffer": True}, {"pre_buffer": False, "buffer_size": 1 << 20}):
        with pq.ParquetFile(opened(place).open("f.parquet", len(data)), **options) as file:
            assert sum(batch.num_rows for batch in file.iter_batches(4096)) == 200_000


@pytest.mark.parametrize("form", ["{root}/f", "file://{root}/f", "file:{root}/f"])
def test_a_local_absolute_path_is_kept(tmp_path: Path, form: str) -> None:
    Folder(tmp_path / "else where").put("f", b"far")
    path = form.format(root=str(tmp_path / "else%20where"))
    assert open_store(tmp_path / "table").open_data(path).read() == b"far"


def test_an_absolute_path_in_a_store_may_name_another_bucket(server: S3Server) -> None:
    one, other = server.place(), server.place()
    other.put("x y", b"far")
    for path in (f"s3://{other.bucket}/table/x%20y", f"s3a://{other.bucket}/table/x%20y"):
        assert opened(one).open_data(path).read() == b"far"
    one.put("near", b"near")
    assert opened(one).open_data("/table/near").read() == b"near"


def test_all_files_of_another_bucket_are_read_by_one_client(server: S3Server) -> None:
    store, (bucket, other) = opened(server.place()), (server.place().bucket, server.place().bucket)
    assert store.at(f"s3://{bucket}/a")[0] is store.at(f"s3://{bucket}/b/c")[0]
    assert store.at(f"s3://{bucket}/a")[0] is not store.at(f"s3://{other}/a")[0]


def test_a_local_table_may_name_files_in_a_store(server: S3Server, tmp_path: Path) -> None:
    other = server.place()
    other.put("x", b"far")
    store = open_store(tmp_path, other.storage_options)
    assert store.open_data(f"{other.uri}/x").read() == b"far"


@pytest.mark.parametrize("uri", ["file:///tmp/a%20b", "file:/tmp/a%20b", "/tmp/a b"])
def test_a_folder_may_be_given_as_a_path_or_as_an_address(uri: str) -> None:
    assert open_store(uri).uri == "/tmp/a b"


def test_one_request_tells_whether_a_file_is_there_and_one_reads_it(server: S3Server) -> None:
    place = server.place()
    place.put("f", b"x")
    store = opened(place)
    start = len(place.requests())
    store.exists("f"), store.exists("no"), store.get("f"), store.get_range("f", 0, 1)
    asked = [line.split()[0] for line in place.requests()[start:]]
    assert asked == ["HEAD", "HEAD", "GET", "GET"]


@pytest.mark.parametrize(("rows", "most"), [(10_000, 1), (400_000, 2)])
def test_a_file_whose_size_is_known_needs_few_requests(
    server: S3Server, rows: int, most: int
) -> None:
    place, data = server.place(), parquet(rows)
    place.put("f.parquet", data)
    start = len(place.requests())
    with pq.ParquetFile(opened(place).open("f.parquet", len(data)), pre_buffer=True) as file:
        file.read_row_group(0, columns=["x"], use_threads=False)
    assert len(place.requests()) - start == most


def test_nothing_is_asked_of_a_store_by_opening_it() -> None:
    store = open_store("s3://no-such-bucket/t", {"AWS_ENDPOINT_URL": "http://127.0.0.1:1"})
    assert (store.uri, store.local) == ("s3://no-such-bucket/t", False)


def test_the_options_of_a_writer_do_no_harm(server: S3Server) -> None:
    place = server.place()
    place.put("f", b"x")
    writer = {"AWS_S3_ALLOW_UNSAFE_RENAME": "true", "AWS_S3_LOCKING_PROVIDER": "dynamodb"}
    store = open_store(place.uri, place.storage_options | writer | {"timeout": "20s"})
    assert store.get("f") == b"x"


@pytest.mark.parametrize(
    ("uri", "options", "message"),
    [
        ("s3://b/t", {"AWS_ACCES_KEY_ID": "x"}, "aws_acces_key_id.*'aws_access_key_id'"),
        ("gs://b/t", {"AWS_REGION": "x"}, "'aws_region' is for another kind of store"),
        ("s3://b/t", {"AWS_ALLOW_HTTP": "perhaps"}, "AWS_ALLOW_HTTP.*'true' or 'false'"),
        ("s3://b/t", {"retry_timeout": "soon"}, "retry_timeout.*'30s'"),
        ("hdfs://host/t", {}, "hdfs://host/t: no store.*s3://"),
        ("az://container/t", {}, "az://container/t.*Account"),
    ],
)
def test_an_option_or_address_that_cannot_be_is_named(
    uri: str, options: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        open_store(uri, options)


def test_a_bucket_that_is_not_there_is_a_source_error(server: S3Server) -> None:
    options = server.place().storage_options
    with pytest.raises(SourceError, match=r"s3://no-such-bucket/t.*NoSuchBucket"):
        open_store("s3://no-such-bucket/t", options).list("_delta_log")


def test_a_server_that_is_not_there_is_a_source_error_with_the_way_out() -> None:
    options = {"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_ALLOW_HTTP": "true"}
    keys = {"AWS_ACCESS_KEY_ID": "k", "AWS_SECRET_ACCESS_KEY": "s", "max_retries": "1"}
    with pytest.raises(SourceError, match=r"s3://b/t: 'x' cannot be read: .*Check the address"):
        open_store("s3://b/t", options | keys).get("x")


@pytest.mark.parametrize(
    ("uri", "shown"),
    [
        ("s3://key:secret@bucket/t", "s3://bucket/t"),
        ("abfss://container@account.dfs.core.windows.net/t", None),
        ("https://account.blob.core.windows.net/c/t?sig=secret", None),
        ("/a/b?c", "/a/b?c"),
    ],
)
def test_an_address_is_shown_without_credentials(uri: str, shown: str | None) -> None:
    assert without_credentials(uri) == (shown or uri.partition("?")[0])


def test_a_signature_in_an_address_is_not_shown() -> None:
    options = sort_options({"azure_storage_sas_token": "sv=1&sig=abc"}, "az://c/t")
    assert options.shown("GET https://a/c/t?sig=x%2F failed: sv=1&sig=abc") == (
        "GET https://a/c/t failed: ***"
    )


class Gate:
    """An S3 server that holds one file and lets only some tokens pass."""

    def __init__(self, status: int, code: str) -> None:
        self.valid, self.seen = {"token-A"}, []  # type: ignore[var-annotated]
        gate = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                token = self.headers.get("x-amz-security-token", "")
                gate.seen.append(token)
                good = token in gate.valid
                body = b"data" if good else f"<Error><Code>{code}</Code></Error>".encode()
                self.send_response((206 if "Range" in self.headers else 200) if good else status)
                self.send_header("Content-Range", "bytes 0-3/4")
                self.send_header("Content-Length", str(len(body)))
                self.send_header("Last-Modified", "Wed, 01 Jan 2025 00:00:00 GMT")
                self.end_headers()
                self.wfile.write(b"" if self.command == "HEAD" else body)

            do_HEAD = do_GET

            def log_message(self, *_: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.server.daemon_threads = True
        self._thread = threading.Thread(target=self.server.serve_forever, args=(0.01,))

    def options(self, token: str) -> dict[str, str]:
        return {
            "AWS_ENDPOINT_URL": f"http://127.0.0.1:{self.server.server_port}",
            "AWS_ALLOW_HTTP": "true",
            "AWS_ACCESS_KEY_ID": "key-id-value",
            "AWS_SECRET_ACCESS_KEY": "secret-value",
            "AWS_SESSION_TOKEN": token,
        }

    def __enter__(self) -> Gate:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.server.shutdown()
        self.server.server_close()
        self._thread.join()


@pytest.mark.parametrize(
    ("status", "code"), [(400, "ExpiredToken"), (401, "Unauthorized"), (403, "AccessDenied")]
)
def test_keys_that_expire_are_fetched_again_once_and_the_read_goes_on(
    status: int, code: str
) -> None:
    with Gate(status, code) as gate:
        tokens = iter(["token-A", "token-B", "token-C"])
        store = open_store("s3://b/t", lambda: gate.options(next(tokens)))
        assert store.get("f") == b"data"
        gate.valid = {"token-B"}
        assert store.get("f") == b"data"
        assert store.exists("f")
        assert gate.seen == ["token-A", "token-A", "token-B", "token-B"]


def test_threads_that_are_refused_together_fetch_keys_once() -> None:
    with Gate(403, "ExpiredToken") as gate:
        given: list[str] = []

        def options() -> dict[str, str]:
            given.append("token-A" if not given else "token-B")
            return gate.options(given[-1])

        store = open_store("s3://b/t", options)
        gate.valid = {"token-B"}
        assert list(store.get_many(["f"] * 30)) == [b"data"] * 30
        assert given == ["token-A", "token-B"]


def test_keys_that_stay_refused_end_in_an_error_without_them_though_the_server_says_them() -> None:
    with Gate(403, "AccessDenied: key-id-value, secret-value, token-X") as gate:
        gate.valid = set()
        for options in (gate.options("token-X"), lambda: gate.options("token-X")):
            store = open_store("s3://b/t", options)
            with pytest.raises(SourceError, match=r"AccessDenied.*Check the keys") as failure:
                store.get("f")
            for secret in ("token-X", "secret-value", "key-id-value"):
                assert secret not in str(failure.value)


def test_a_file_that_is_open_outlives_its_keys_and_fails_in_our_words() -> None:
    with Gate(403, "ExpiredToken") as gate:
        tokens = iter(["token-A", "token-B", "token-C"])
        store = open_store("s3://b/t", lambda: gate.options(next(tokens)))
        first, second = store.open("f", 4), store.open("f", 4)
        gate.valid = {"token-B"}
        assert first.read() == b"data"
        gate.valid = set()
        with pytest.raises(SourceError, match=r"s3://b/t: 'f' cannot be read.*ExpiredToken"):
            second.read()


FORK = """
import os, sys
from forebay_delta.store import open_store
store = open_store(sys.argv[1])
store.get("f")
child = os.fork()
if child == 0:
    os._exit(0 if store.get("f") == store.open("f").read() == b"data" else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_folder_that_the_parent_has_read_can_be_read_in_a_forked_process(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"data")
    subprocess.run([sys.executable, "-c", FORK, str(tmp_path)], check=True, timeout=60)
