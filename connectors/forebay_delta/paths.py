"""The forms of a path: of this machine, with a scheme, and percent-encoded in a log."""

from __future__ import annotations

import re
from pathlib import Path
from urllib.parse import unquote, urlsplit, urlunsplit

_SCHEME = re.compile(r"^([A-Za-z][A-Za-z0-9+.-]+):/")


def scheme_of(uri: str) -> str:
    """``s3`` of ``s3://b/x``, ``file`` of ``file:/x``; empty for a plain path."""
    found = _SCHEME.match(uri)
    return found[1].lower() if found else ""


def local_path(uri: str) -> Path | None:
    """The path on this machine; None if `uri` has the scheme of another place.

    A ``file:`` address is percent-encoded by the rules of its scheme; a plain path is not.
    """
    scheme = scheme_of(uri)
    if scheme == "":
        return Path(uri)
    if scheme == "file":
        return Path(unquote(urlsplit(uri).path))
    return None


def split_root(uri: str) -> tuple[str, str]:
    """``("s3://bucket", "a/b")`` of ``s3://bucket/a/b``."""
    scheme, host, path, _, _ = urlsplit(uri)
    return f"{scheme}://{host}", path.lstrip("/")


def without_credentials(uri: str) -> str:
    """`uri` for messages: no password before the host, no query (which may be a signature)."""
    if not scheme_of(uri):
        return uri
    scheme, host, path, _, _ = urlsplit(uri)
    user, at, rest = host.rpartition("@")
    return urlunsplit((scheme, rest if ":" in user else user + at + rest, path, "", ""))
