"""An S3 server on this machine for tests: a bucket for each test, and what was asked of it."""

from __future__ import annotations

import itertools
import logging
import re
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any

import boto3
from moto.server import ThreadedMotoServer

_numbers = itertools.count()


class _RequestLog(logging.Handler):
    """Keeps the server's access log as ``"GET /bucket/path"``, and off the terminal."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        found = re.search(r"(GET|HEAD|PUT|POST|DELETE) (\S+) HTTP", record.getMessage())
        if found:
            self.lines.append(f"{found[1]} {found[2]}")


@dataclass(frozen=True)
class S3Place:
    """A bucket of its own on the server; readers and deltalake's writers take the same options."""

    endpoint: str
    bucket: str
    log: _RequestLog = field(repr=False)

    @property
    def uri(self) -> str:
        """Where a table may be."""
        return f"s3://{self.bucket}/table"

    @property
    def storage_options(self) -> dict[str, str]:
        return {
            "AWS_ACCESS_KEY_ID": "testing-key-id",
            "AWS_SECRET_ACCESS_KEY": "testing-secret",
            "AWS_ENDPOINT_URL": self.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ALLOW_HTTP": "true",
        }

    def requests(self) -> list[str]:
        """Every request on this bucket so far, as ``"HEAD /bucket/table/path"``."""
        return [line for line in self.log.lines if f"/{self.bucket}" in line]

    def put(self, path: str, data: bytes) -> None:
        """A file under the table's root."""
        self.client().put_object(Bucket=self.bucket, Key=f"table/{path}", Body=data)

    def delete(self, path: str) -> None:
        """Removes a file under the table's root."""
        self.client().delete_object(Bucket=self.bucket, Key=f"table/{path}")

    def names(self, prefix: str = "") -> list[str]:
        """The paths under the table's root that begin with `prefix`."""
        found = self.client().list_objects_v2(Bucket=self.bucket, Prefix=f"table/{prefix}")
        return [each["Key"].removeprefix("table/") for each in found.get("Contents", [])]

    def client(self) -> Any:
        """A boto3 client of the server."""
        return _client(self.endpoint)


@lru_cache
def _client(endpoint: str) -> Any:
    """One for all: making it takes longer than most tests."""
    return boto3.client(
        "s3",
        endpoint_url=endpoint,
        aws_access_key_id="testing-key-id",
        aws_secret_access_key="testing-secret",
        region_name="us-east-1",
    )


class S3Server:
    """The server; ``place()`` gives a new bucket."""

    def __init__(self, endpoint: str, log: _RequestLog) -> None:
        self._endpoint, self._log = endpoint, log

    def place(self) -> S3Place:
        place = S3Place(self._endpoint, f"forebay-test-{next(_numbers)}", self._log)
        place.client().create_bucket(Bucket=place.bucket)
        return place


@contextmanager
def s3_server() -> Iterator[S3Server]:
    """A server on a free port. For a module-scoped fixture: it takes a second to start."""
    log, access = _RequestLog(), logging.getLogger("werkzeug")
    server = ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    access.addHandler(log)
    access.propagate, access.level = False, logging.INFO
    server.start()
    try:
        host, port = server.get_host_and_port()
        yield S3Server(f"http://{host}:{port}", log)
    finally:
        server.stop()
        access.removeHandler(log)
