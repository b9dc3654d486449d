"""Who may see a dashboard: on this machine anybody, from elsewhere whoever has the token."""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from email.message import Message
from http.cookies import CookieError, SimpleCookie

from forebay.errors import ConfigError

LEAST_TOKEN = 16
_LOCAL_NAMES = ("localhost", "localhost.localdomain")


def parse_listen(text: str) -> tuple[str, int]:
    """``:9464``, ``9464`` or ``HOST:PORT`` as (host, port); without a host that is loopback.

    ``*`` is every address of the machine, port 0 any that is free.

    Raises:
        ConfigError: it is none of these.
    """
    found = re.fullmatch(r"(?:(?P<host>\[[0-9a-fA-F:.]+\]|[^\s:\[\]/]*):)?(?P<port>\d{1,5})", text)
    if found is None or int(found["port"]) > 65535:
        raise ConfigError(f"no address to listen on: {text!r}; write :9464, or HOST:PORT")
    host = (found["host"] or "127.0.0.1").strip("[]")
    return "0.0.0.0" if host == "*" else host, int(found["port"])


def is_loopback(host: str) -> bool:
    """Whether only this machine gets there."""
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return host.lower() in _LOCAL_NAMES


class Access:
    """Decides about requests.

    Args:
        host: where the server listens.
        token: what a request must bring; None: nothing, which only loopback allows.

    Raises:
        ConfigError: other machines would get in without a token, or it is easily guessed.
    """

    def __init__(self, host: str, token: str | None) -> None:
        if token is None and not is_loopback(host):
            raise ConfigError(
                f"the dashboard at {host} could be seen from other machines: protect it by a token "
                f"(--token '${{FOREBAY_TOKEN}}'), or listen on loopback (:PORT)"
            )
        if token is not None and len(token) < LEAST_TOKEN:
            raise ConfigError(
                f"the dashboard's token has {len(token)} characters, and can be guessed: take one "
                f"of {LEAST_TOKEN} or more, as `openssl rand -hex 16` makes"
            )
        self._token = token

    def names_us(self, host_header: str | None) -> bool:
        """Whether a request was meant for this machine, and not sent by a foreign page.

        A page from elsewhere can point its own name at 127.0.0.1 and then read what is served
        there; its requests carry that name. Where a token is needed they lack that.
        """
        if self._token is not None:
            return True
        name = re.sub(r":\d*$", "", host_header or "").strip("[]")
        return is_loopback(name)

    def allows(self, headers: Message, port: int) -> bool:
        """Whether a request with these headers brought the token, or none is needed."""
        if self._token is None:
            return True
        scheme, _, given = headers.get("Authorization", "").partition(" ")
        if scheme.lower() == "bearer" and self.is_token(given.strip()):
            return True
        cookie = _cookie(headers.get("Cookie", ""), _cookie_name(port))
        return _same(cookie, self._for_cookie())

    def is_token(self, given: str) -> bool:
        """Whether this is the token."""
        return self._token is not None and _same(given, self._token)

    def cookie(self, port: int) -> str:
        """The cookie for a browser that brought the token; scripts of a page cannot read it.

        Browsers send cookies of one port to all ports of a host: its name tells whose it is. It
        holds not the token, but what only its owner can make of it.
        """
        value = f"{_cookie_name(port)}={self._for_cookie()}"
        return f"{value}; Path=/; HttpOnly; SameSite=Strict"

    def _for_cookie(self) -> str:
        key = (self._token or "").encode()
        return hmac.new(key, b"forebay dashboard", hashlib.sha256).hexdigest()


def _cookie_name(port: int) -> str:
    return f"forebay_{port}"


def _cookie(header: str, name: str) -> str:
    try:
        found = SimpleCookie(header).get(name)
    except CookieError:
        return ""
    return found.value if found is not None else ""


def _same(a: str, b: str) -> bool:
    """In a time that does not tell how much of it is right."""
    return hmac.compare_digest(a.encode(), b.encode())
