"""Secrets: which keys hold one, and that none stands in the file itself."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from forebay.topology.nodes import Node, joined
from forebay.topology.problems import Problems

_SECRET = re.compile(
    r"password|passphrase|passwd|secret|jaas|credential|oauthbearer\.config|user\.info|"
    r"key\.pem|keystore\.pem|(^|[._-])token$|api[._-]?key$|(access|account)[._-]key$"
)
_NO_SECRET = re.compile(r"[._-](id|url|uri|location|path|file|name|type)$")
_LOGIN_IN_URL = re.compile(r"://[^/@\s:]+:(?!\$\{)[^/@\s]+@")
_LITERAL_DEFAULT = re.compile(r"\$\{\w+:-[^}]+\}")
_SHORTEST = 4  # a shorter value would blank out half of a message


def is_secret(key: str) -> bool:
    """Whether the value of a key of this name must not be shown."""
    key = key.lower()
    return _SECRET.search(key) is not None and _NO_SECRET.search(key) is None


def refuse_literals(root: Node, problems: Problems) -> None:
    """Note a problem for each secret that is written in the file."""
    for path, key, node in _scalars(root, "", ""):
        if not isinstance(node.value, (str, int, float)):
            continue
        literal = not node.from_env or _LITERAL_DEFAULT.search(node.text) is not None
        in_url = isinstance(node.value, str) and _LOGIN_IN_URL.search(node.text) is not None
        if in_url or (is_secret(key) and literal and not isinstance(node.value, bool)):
            problems.add(
                node.place,
                path,
                "a secret must not stand in the file: write ${NAME}, and set NAME in the "
                "environment",
            )


def secret_values(root: Node) -> frozenset[str]:
    """The secrets that came from the environment, to be kept out of messages."""
    return frozenset(
        str(node.value)
        for _, key, node in _scalars(root, "", "")
        if node.from_env and (is_secret(key) or "://" in node.text)
        if len(str(node.value)) >= _SHORTEST
    )


def redacted(text: str, secrets: Iterable[str]) -> str:
    """``text`` with every secret in it replaced by ``***``."""
    for secret in sorted(secrets, key=len, reverse=True):
        text = text.replace(secret, "***")
    return text


def _scalars(node: Node, path: str, key: str) -> Iterator[tuple[str, str, Node]]:
    for name, item in node.mapping().items():
        yield from _scalars(item, joined(path, name), name)
    for i, item in enumerate(node.items()):
        yield from _scalars(item, f"{path}[{i}]", key)
    if not node.is_mapping and not node.is_list:
        yield path, key, node
