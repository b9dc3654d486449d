"""What the client complained of: counted, and kept for the error that a person will read."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Mapping

from confluent_kafka import KafkaError, KafkaException

_LOCKED_OUT = {
    KafkaError._AUTHENTICATION,
    KafkaError.SASL_AUTHENTICATION_FAILED,
    KafkaError.UNSUPPORTED_SASL_MECHANISM,
}
_REFUSED = _LOCKED_OUT | {
    KafkaError.CLUSTER_AUTHORIZATION_FAILED,
    KafkaError.TOPIC_AUTHORIZATION_FAILED,
}
# The client skips a batch that it cannot read, with this as the only sign.
UNREADABLE = {KafkaError._BAD_MSG, KafkaError._BAD_COMPRESSION}
KINDS = ("refused", "unreachable", "unreadable", "other")
"""What errors are counted as."""
_UNREACHABLE = {
    KafkaError._ALL_BROKERS_DOWN,
    KafkaError._TRANSPORT,
    KafkaError._RESOLVE,
    KafkaError._TIMED_OUT,
}


class ErrorLog:
    """Counts the errors of a client and its partitions. Any thread."""

    def __init__(self, redact: Callable[[str], str]) -> None:
        self._redact = redact
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()
        self._kinds = dict.fromkeys(KINDS, 0)
        self._last: KafkaError | None = None

    def __call__(self, error: KafkaError) -> None:
        """Note an error: the client's ``error_cb``."""
        with self._lock:
            self._counts[error.name()] += 1
            self._kinds[_kind_of(error)] += 1
            # "All brokers are down" follows the error that says why: keep that one.
            if error.code() != KafkaError._ALL_BROKERS_DOWN or self._last is None:
                self._last = error

    @property
    def last(self) -> KafkaError | None:
        """The last one that says something."""
        return self._last

    def counts(self) -> Mapping[str, int]:
        """How often each was seen, by name."""
        with self._lock:
            return dict(self._counts)

    def by_kind(self) -> Mapping[str, int]:
        """How often each of ``KINDS`` was seen."""
        with self._lock:
            return dict(self._kinds)

    def words(self) -> str:
        """The last error, without secrets."""
        return "nothing" if self._last is None else self._redact(self._last.str()).strip()

    def cause(self) -> str:
        """The likely cause of silence, as a clause with the way out."""
        return likely_cause(self._last)

    def forget(self) -> None:
        """Data arrives again: what was wrong no longer explains anything."""
        self._last = None


def refused(error: KafkaError | None) -> bool:
    """Whether an error says that the brokers do not let us in."""
    return error is not None and error.code() in _REFUSED


def locked_out(error: KafkaError | None) -> bool:
    """Whether an error says that the credentials are wrong: no use in waiting."""
    return error is not None and error.code() in _LOCKED_OUT


def likely_cause(error: KafkaError | None) -> str:
    """What probably is wrong, as a clause with the way out."""
    if error is None:
        return "the client reported no error: the partition may have no leader, check the brokers"
    text = error.str()
    if error.code() == KafkaError._BAD_MSG or "receive.message.max.bytes" in text:
        return "a reply is larger than receive.message.max.bytes: raise it above the largest record"
    if refused(error):
        return "access is refused: check the credentials and the ACLs for reading the topic"
    if error.code() == KafkaError._SSL:
        return "TLS failed: check security.protocol and the ssl.* settings"
    if error.code() in _UNREACHABLE:
        return "the brokers cannot be reached: check that they run, and their advertised listeners"
    return "see the client's last error"


def _kind_of(error: KafkaError) -> str:
    if refused(error):
        return "refused"
    if error.code() in {*_UNREACHABLE, KafkaError._SSL}:
        return "unreachable"
    return "unreadable" if error.code() in UNREADABLE else "other"


def error_of(e: KafkaException) -> KafkaError:
    """The error in an exception."""
    error = e.args[0]
    assert isinstance(error, KafkaError)
    return error
