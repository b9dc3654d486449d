"""Client settings: checked before anything starts, and never shown with their secrets.

Every key of librdkafka passes under its own name. Refused are keys that the framework sets
itself, keys that would have no effect, and names or values that the client does not know.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Literal, NoReturn, TypeAlias

from confluent_kafka import Consumer, KafkaException, Producer

from forebay.errors import ConfigError
from forebay_kafka import properties

Kind: TypeAlias = Literal["consumer", "producer"]
ErrorCallback: TypeAlias = Callable[[Any], None]

_SECRET = re.compile(
    r"password|passphrase|secret|jaas|credential|oauthbearer\.config|"
    r"key\.pem|keystore\.pem|assertion\.file|token(?!\.endpoint)"
)
_CALLABLES = {"error_cb", "throttle_cb", "stats_cb", "oauth_cb", "logger"}
_PROTOCOLS = ("plaintext", "ssl", "sasl_plaintext", "sasl_ssl")

# Keys of which only one value is right here: the value, and why.
_POSITIONS = (
    "positions live in the training checkpoint, and an offset committed when a record was read "
    "would skip records that were not trained on; for lag monitors give commit_group='name'"
)
_OWNED: Mapping[str, tuple[str, str]] = {
    "enable.auto.commit": ("false", _POSITIONS),
    "auto.commit.enable": ("false", _POSITIONS),
    "enable.auto.offset.store": ("false", _POSITIONS),
    "auto.offset.reset": (
        "error",
        "a reset in the client skips records without a word; say start='earliest', 'latest', a "
        "timestamp or offsets for where to begin, and on_gap=... for what to do about lost records",
    ),
    "enable.partition.eof": ("true", "the end of a partition is known by these events"),
    "allow.auto.create.topics": ("false", "a mistyped topic would come into being, empty"),
    "group.protocol": ("classic", "partitions are assigned by rank, there is no group to join"),
}
_NO_GROUP = "partitions are assigned by rank, there is no group to be a member of; leave it out"
_USELESS = {
    "auto.commit.interval.ms": "nothing is committed on a timer; leave it out",
    "consume.callback.max.messages": "no consume callback is used; leave it out",
    "group.instance.id": _NO_GROUP,
    "group.remote.assignor": _NO_GROUP,
    "heartbeat.interval.ms": _NO_GROUP,
    "max.poll.interval.ms": _NO_GROUP,
    "offset.store.method": "offsets are not stored by the client; leave it out",
    "offset.store.path": "offsets are not stored by the client; leave it out",
    "offset.store.sync.interval.ms": "offsets are not stored by the client; leave it out",
    "partition.assignment.strategy": _NO_GROUP,
    "session.timeout.ms": _NO_GROUP,
    "topic.blacklist": "topics are named one by one; leave it out",
}
# Names of the Java client, whose documentation people have at hand.
_JAVA = {
    "fetch.max.wait.ms": "librdkafka calls it fetch.wait.max.ms",
    "max.poll.records": "it is a setting of the Java client; use slice_rows=...",
    "key.deserializer": "bytes are kept as they are; decode them with a stage",
    "value.deserializer": "bytes are kept as they are; decode them with a stage",
    "key.serializer": "bytes are written as they are; leave it out",
    "value.serializer": "bytes are written as they are; leave it out",
    "sasl.jaas.config": "librdkafka has sasl.username and sasl.password instead",
    "ssl.truststore.location": "librdkafka reads PEM: ssl.ca.location",
    "ssl.truststore.password": "librdkafka reads PEM: ssl.ca.location",
    "default.api.timeout.ms": "librdkafka calls it socket.timeout.ms",
    "max.block.ms": "librdkafka calls it message.timeout.ms",
}

_READING: Mapping[str, Any] = {
    "isolation.level": "read_committed",
    "check.crcs": True,
    # After its queue was full, the client waits this long before it fetches again; with the
    # default of a second a drained reader stands still for up to half of it.
    "fetch.queue.backoff.ms": 20,
    "fetch.wait.max.ms": 200,
    # A fetch gives each partition this much in one piece, and a slice is cut where the partition
    # changes: with records of 30 KB, 1 MB would make slices of 34.
    "fetch.message.max.bytes": 2 << 20,
    "queued.max.messages.kbytes": 32 << 10,
    "metadata.max.age.ms": 60_000,
    "reconnect.backoff.max.ms": 5_000,
}
_WRITING: Mapping[str, Any] = {
    "acks": "all",
    "enable.idempotence": True,
    "message.timeout.ms": 30_000,
    # A letter is a record that some broker took, plus headers; the topic's own limit decides.
    "message.max.bytes": 200 << 20,
    "reconnect.backoff.max.ms": 5_000,
}
# Replies longer than receive.message.max.bytes stall a consumer silently, so it must exceed the
# largest record; but the first bytes of a TLS alert, read as a length, say 352 MB, and below that
# the client still recognises a wrong security.protocol.
_RECEIVE_BYTES = 256 << 20


class Settings(Mapping[str, Any]):
    """Client settings by name; shows ``***`` for secrets. ``dict(settings)`` has them in clear."""

    __slots__ = ("_values",)

    def __init__(self, values: Mapping[str, Any]) -> None:
        self._values = dict(values)

    def __getitem__(self, key: str) -> Any:
        return self._values[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._values)

    def __len__(self) -> int:
        return len(self._values)

    def __repr__(self) -> str:
        return repr({k: "***" if is_secret(k) else v for k, v in self._values.items()})

    def redact(self, text: str) -> str:
        """``text`` with every secret value in it replaced."""
        for key, value in self._values.items():
            if is_secret(key) and str(value):
                text = text.replace(str(value), "***")
        return text

    @property
    def brokers(self) -> str:
        """The addresses, as configured."""
        return str(self.get("bootstrap.servers") or self.get("metadata.broker.list") or "")

    @property
    def read_committed(self) -> bool:
        """Whether records of open and aborted transactions are held back."""
        level = self.get("isolation.level", _READING["isolation.level"])
        return str(level).lower() == "read_committed"


def is_secret(key: str) -> bool:
    """Whether the value of this setting must not be shown."""
    return _SECRET.search(key) is not None


def check(config: Mapping[str, Any], kind: Kind, where: str) -> Settings:
    """The settings of a client, or an error that names what is wrong with them.

    ``where`` begins the error: "KafkaSource('clicks')".

    Raises:
        ConfigError: names the key and the way out, and the value unless it is a secret.
    """
    if not isinstance(config, Mapping):
        raise ConfigError(
            f"{where}: config must be a mapping of librdkafka settings, not "
            f"{type(config).__name__}: {{'bootstrap.servers': 'host:9092'}}"
        )
    settings = config if isinstance(config, Settings) else Settings(config)
    for key, value in settings.items():
        _check_key(key, value, kind, where)
    if not settings.brokers.strip():
        raise ConfigError(f"{where}: config needs 'bootstrap.servers': 'host:port[,host:port]'")
    _ask_the_client(settings, kind, where)
    return settings


def for_reading(settings: Settings, group: str, on_error: ErrorCallback) -> dict[str, Any]:
    """What the consumer is made with."""
    owned = {k: v for k, (v, _) in _OWNED.items() if k not in ("auto.commit.enable",)}
    out = {**_READING, **_quiet(settings), **settings, **owned, "group.id": group}
    largest = max(int(out.get("fetch.max.bytes", 0)), int(out.get("fetch.message.max.bytes", 0)))
    out.setdefault("receive.message.max.bytes", max(_RECEIVE_BYTES, largest + (1 << 20)))
    out.pop("auto.commit.enable", None)
    return out | {"error_cb": _both(on_error, settings.get("error_cb"))}


def for_asking(settings: Settings, on_error: ErrorCallback) -> dict[str, Any]:
    """What the admin client is made with: the keys that every client understands."""
    foreign = properties.CONSUMER | properties.PRODUCER | {"stats_cb", "statistics.interval.ms"}
    shared = {k: v for k, v in settings.items() if k not in foreign}
    return {**_quiet(settings), **shared, "error_cb": on_error}


def for_reading_from(settings: Settings) -> Settings:
    """A producer's settings without those that are of producers only."""
    return Settings({k: v for k, v in settings.items() if k not in properties.PRODUCER})


def for_writing(settings: Settings, on_error: ErrorCallback) -> dict[str, Any]:
    """What the producer is made with."""
    out = {**_WRITING, **_quiet(settings), **settings}
    return out | {"error_cb": _both(on_error, settings.get("error_cb"))}


def _check_key(key: Any, value: Any, kind: Kind, where: str) -> None:
    if not isinstance(key, str):
        raise ConfigError(f"{where}: config keys are text, not {key!r}")
    if key in _CALLABLES:
        return
    if not isinstance(value, (str, int, float, bool)):
        raise ConfigError(
            f"{where}: config {key!r} must be text, a number or a boolean, not "
            f"{type(value).__name__}; join a list with commas"
        )
    if key in _JAVA:
        raise ConfigError(f"{where}: config {key!r} is not known: {_JAVA[key]}")
    other = properties.PRODUCER if kind == "consumer" else properties.CONSUMER
    if key in other:
        role = "producers" if kind == "consumer" else "consumers"
        raise ConfigError(f"{where}: config {key!r} is for {role} and has no effect here")
    if kind == "consumer":
        _refuse_ours(key, value, where)
    if key == "security.protocol" and str(value).lower() not in _PROTOCOLS:
        raise ConfigError(f"{where}: config {key!r} must be one of {_PROTOCOLS}, not {value!r}")


def _refuse_ours(key: str, value: Any, where: str) -> None:
    if key in _USELESS:
        raise ConfigError(f"{where}: config {key!r} has no effect here: {_USELESS[key]}")
    ours, why = _OWNED.get(key, (None, ""))
    if ours is not None and str(value).lower() != ours:
        raise ConfigError(f"{where}: config {key!r} must stay {ours!r}, not {value!r}: {why}")


def _ask_the_client(settings: Settings, kind: Kind, where: str) -> None:
    """Let a client that connects to nothing judge names and values.

    Left out are the keys whose values are looked at when a client is made, such as files: they
    may exist only where the source is opened.
    """
    later = _CALLABLES | {
        "bootstrap.servers",
        "metadata.broker.list",
        "security.protocol",
        "plugin.library.paths",
    }
    asked = {k: v for k, v in settings.items() if k not in later}
    try:
        if kind == "consumer":
            Consumer({"group.id": "check", **asked, "log_level": 0}).close()
        else:
            Producer({**asked, "log_level": 0})
    except KafkaException as e:
        text = settings.redact(e.args[0].str()).strip()
    except (TypeError, ValueError) as e:
        text = settings.redact(str(e))
    else:
        return
    _explain(text, settings, kind, where)  # outside: the cause may hold a secret


def _explain(text: str, settings: Settings, kind: Kind, where: str) -> NoReturn:
    unknown = re.search(r'No such configuration property: "(.*)"', text)
    if unknown is None:
        raise ConfigError(f"{where}: config: {text}")
    own = properties.CONSUMER if kind == "consumer" else properties.PRODUCER
    known = sorted(properties.BOTH | own)
    close = difflib.get_close_matches(unknown[1].replace("_", "."), known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    raise ConfigError(f"{where}: config {unknown[1]!r} is not a librdkafka setting{hint}")


def _quiet(settings: Settings) -> dict[str, Any]:
    """No log lines on standard error: what the client complains of stands in our errors."""
    return {} if "debug" in settings or "log_level" in settings else {"log_level": 2}


def _both(ours: ErrorCallback, theirs: ErrorCallback | None) -> ErrorCallback:
    if theirs is None:
        return ours

    def call(error: Any) -> None:
        ours(error)
        theirs(error)

    return call
