"""Kafka topics as a source: one split for each partition, positions in the training checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Literal, get_args

from confluent_kafka import Consumer, KafkaException

from forebay.errors import ConfigError
from forebay.source import Owns, Split
from forebay.state import Position
from forebay_kafka.clienterrors import ErrorLog, error_of
from forebay_kafka.cluster import Cluster
from forebay_kafka.config import Settings, check, for_reading
from forebay_kafka.drain import COLUMNS, Payload, PythonDrain, Shape
from forebay_kafka.gaps import OnGap
from forebay_kafka.lag import Lookout, Pace, partitions_of, survey
from forebay_kafka.opening import Openings, check_partitions_exist, saved_positions
from forebay_kafka.positions import Edge, Place, parse_place
from forebay_kafka.reader import KafkaReader
from forebay_kafka.upkeep import Rules

_TOPIC = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
_DEFAULT_GROUP = "forebay"  # the client wants a name; nothing is joined or committed under it


@dataclass(frozen=True, slots=True)
class KafkaSource:
    """Reads topics by assignment: no consumer group, so nothing is taken away from a slow trainer.

    Holds configuration only: it opens nothing and can be pickled. ``config`` takes every
    librdkafka setting under its own name; secrets in it are never shown.

    The client's own queue (``queued.max.messages.kbytes``, 32 MiB here for all partitions
    together, plus one fetch for each broker) comes on top of the loader's ``max_bytes``.

    Raises:
        ConfigError: an argument or a setting is wrong; names it, its value and the way out.
    """

    topics: str | Sequence[str]
    config: Mapping[str, Any]
    start: str | Mapping[str, Any] = field(default="earliest", kw_only=True)
    """Where a run without a saved position begins: ``"earliest"`` (a training job wants what the
    topic holds; ``"latest"`` would skip it silently), ``"latest"``, ``{"timestamp": ms or aware
    datetime}``, or ``{topic: {partition: offset}}`` (partitions left out begin at their first)."""
    until: str | Mapping[str, Any] | None = field(default=None, kw_only=True)
    """Where reading ends: ``None`` (never), ``"latest"`` (the end at the moment of opening),
    ``{"timestamp": ...}`` or ``{topic: {partition: offset}}``. Never beyond what is there when
    the source is opened: an end further on is cut, with a warning."""
    columns: Sequence[str] = field(default=COLUMNS, kw_only=True)
    """The columns to build; those left out cost nothing."""
    on_gap: OnGap = field(default="fail", kw_only=True)
    """What to do when records that were not delivered are gone (retention, a re-created topic, a
    cut log): raise ``DataLossError``, go on at the ``"earliest"`` record there is, or at the
    ``"latest"``. Lost records are counted."""
    tombstones: Literal["keep", "skip"] = field(default="keep", kw_only=True)
    """Records without a value: kept as null, or left out. ``b""`` is a value."""
    payload: Payload = field(default="auto", kw_only=True)
    """The form of ``value``: ``"arrow"`` (binary), ``"objects"`` (an object array of the bytes
    that the client made, not copied), or ``"auto"``: objects where the first records of a topic
    have half a KB or more on average."""
    slice_rows: int = field(default=500, kw_only=True)
    slice_bytes: int = field(default=4 << 20, kw_only=True)
    """Most bytes of values in a slice; larger slices lose more to page faults than they save."""
    discover_seconds: float = field(default=30.0, kw_only=True)
    """How often topics are looked at for new partitions, and for having been re-created."""
    lag_seconds: float = field(default=5.0, kw_only=True)
    """How often the brokers are asked for the ends."""
    stall_seconds: float = field(default=30.0, kw_only=True)
    """For how long records may wait at the brokers while nothing arrives."""
    connect_seconds: float = field(default=8.0, kw_only=True)
    """For how long brokers may leave a question unanswered when opening."""
    commit_group: str | None = field(default=None, kw_only=True)
    """A group of its own to which trained positions are committed, for lag monitors to read."""

    def __post_init__(self) -> None:
        topics = (self.topics,) if isinstance(self.topics, str) else tuple(self.topics)
        self._set("topics", topics)
        self._set("columns", tuple(self.columns))
        _check_topics(topics)
        self._set("config", check(self.config, "consumer", self._where))
        self._check_choices()
        self._check_numbers()
        self._start_place()
        self._until_place()
        group = self.config.get("group.id")
        if self.commit_group and group not in (None, self.commit_group):
            raise ConfigError(
                f"{self._where}: commit_group={self.commit_group!r} and config "
                f"'group.id'={group!r} differ; give one of them"
            )

    @property
    def bounded(self) -> bool:
        """Whether reading ends by itself."""
        return self.until is not None

    def splits(self) -> Sequence[Split]:
        errors = ErrorLog(self._settings.redact)
        topics = self._cluster(errors).existing_topics(self._names, self._where)
        return [p.split for p in partitions_of(topics)]

    def open(self, positions: Mapping[str, Position], owns: Owns) -> KafkaReader:
        """Open a reader; the client is made here, in the process that is going to poll.

        Takes at most a few times ``connect_seconds``, one of it where no broker answers.

        Raises:
            ConfigError: a topic, partition or offset that is named does not exist.
            StateError, DataLossError, SourceError: see ``forebay.source.Source.open``.
        """
        saved = saved_positions(positions, self._names)
        errors = ErrorLog(self._settings.redact)
        cluster = self._cluster(errors)
        topics = cluster.existing_topics(self._names, self._where)
        check_partitions_exist(saved, topics, owns, self.on_gap)
        committed = self._settings.read_committed
        owned = [p for p in partitions_of(topics) if owns(p.split)]
        news = survey(cluster, topics, owned, committed)
        places = Openings(cluster, news, self._start_place(), self._until_place(), self._where)
        openings = places.all(saved, self.on_gap)
        consumer = self._consumer(errors)
        lookout = Lookout(
            cluster,
            news,
            lambda p: owns(p.split),
            committed=committed,
            pace=Pace(ends=self.lag_seconds, topics=self.discover_seconds),
        )
        rules = Rules(
            on_gap=self.on_gap,
            bounded=self.bounded,
            owns=owns,
            stall_seconds=self.stall_seconds,
            commit_group=self.commit_group,
        )
        drain = PythonDrain(consumer, self._shape())
        return KafkaReader(consumer, drain, lookout, errors, rules, openings)

    def starting_at(self, timestamp_ms: int) -> KafkaSource:
        """The same source, beginning at each partition's first record of this time or later."""
        return replace(self, start={"timestamp": timestamp_ms})

    @property
    def _where(self) -> str:
        return f"KafkaSource({', '.join(map(repr, self._names))})"

    @property
    def _names(self) -> tuple[str, ...]:
        assert isinstance(self.topics, tuple)
        return self.topics

    @property
    def _settings(self) -> Settings:
        assert isinstance(self.config, Settings)
        return self.config

    def _set(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)

    def _cluster(self, errors: ErrorLog) -> Cluster:
        return Cluster(self._settings, errors, self.connect_seconds)

    def _consumer(self, errors: ErrorLog) -> Consumer:
        group = self.commit_group or str(self.config.get("group.id", _DEFAULT_GROUP))
        try:
            return Consumer(for_reading(self._settings, group, errors))
        except KafkaException as e:
            text = self._settings.redact(error_of(e).str())
        raise ConfigError(f"{self._where}: the Kafka client cannot be made: {text}")

    def _shape(self) -> Shape:
        return Shape(
            topics=len(self._names),
            columns=frozenset(self.columns),
            payload=self.payload,
            skip_tombstones=self.tombstones == "skip",
            rows=self.slice_rows,
            nbytes=self.slice_bytes,
        )

    def _start_place(self) -> Place:
        return parse_place("start", self.start, self._names, self._where)

    def _until_place(self) -> Place | None:
        if self.until is None:
            return None
        place = parse_place("until", self.until, self._names, self._where)
        if place == Edge("earliest"):
            raise ConfigError(f"{self._where}: until='earliest' would read nothing; leave it out")
        return place

    def _check_choices(self) -> None:
        choices = {
            "on_gap": get_args(OnGap),
            "tombstones": ("keep", "skip"),
            "payload": get_args(Payload),
        }
        for name, allowed in choices.items():
            if getattr(self, name) not in allowed:
                raise ConfigError(
                    f"{self._where}: {name} must be one of {', '.join(map(repr, allowed))}, not "
                    f"{getattr(self, name)!r}"
                )
        unknown = [c for c in self.columns if c not in COLUMNS]
        if unknown or not self.columns:
            raise ConfigError(
                f"{self._where}: columns must be some of {', '.join(COLUMNS)}, not {self.columns}"
            )

    def _check_numbers(self) -> None:
        for name in ("slice_rows", "slice_bytes"):
            value = getattr(self, name)
            if not isinstance(value, int) or isinstance(value, bool) or not 0 < value <= 1 << 30:
                raise ConfigError(
                    f"{self._where}: {name} must be a whole number >= 1, not {value!r}"
                )
        for name in ("discover_seconds", "lag_seconds", "stall_seconds", "connect_seconds"):
            value = getattr(self, name)
            if not isinstance(value, (int, float)) or isinstance(value, bool) or value <= 0:
                raise ConfigError(f"{self._where}: {name} must be more than 0 s, not {value!r}")


def _check_topics(topics: tuple[Any, ...]) -> None:
    if not topics:
        raise ConfigError("KafkaSource: name at least one topic: KafkaSource('clicks', {...})")
    for topic in topics:
        if not isinstance(topic, str) or not topic or not set(topic) <= _TOPIC:
            raise ConfigError(
                f"KafkaSource: {topic!r} cannot be a topic's name: letters, digits, '.', '_' and "
                "'-' only; a pattern is not understood, name the topics one by one"
            )
    if len(set(topics)) < len(topics):
        raise ConfigError(f"KafkaSource: a topic is named twice: {', '.join(topics)}")
