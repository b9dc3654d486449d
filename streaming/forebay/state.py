"""What a checkpoint holds: for each split, which records the trainer was given.

Positions are kept by split, never by rank: the states of N ranks merge into one, and any number
of ranks can go on from it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

from forebay.errors import StateError
from forebay.slice import Slice, Token

VERSION = 1
_END_OF_TIME = 1 << 62


class Range(NamedTuple):
    """Offsets ``start`` to ``stop``, of which ``skip`` rows of the first record are done."""

    start: int
    stop: int
    skip: int = 0
    token: Token | None = None
    """Valid at ``start``."""

    def to_json(self, offset: int) -> list[Any]:
        """Plain JSON, relative to the offset of the position."""
        numbers = [offset - self.start, self.stop - self.start, self.skip]
        return numbers if self.token is None else [*numbers, dict(self.token)]

    @classmethod
    def from_json(cls, offset: int, d: Any) -> Range:
        """The inverse of ``to_json``."""
        back, length, skip, *token = d
        start = offset - _integer(back)
        return cls(start, start + _integer(length), _integer(skip), token[0] if token else None)


@dataclass(frozen=True, slots=True)
class Position:
    """All records of a split before ``offset`` were delivered, except the pending ranges."""

    offset: int
    skip: int = 0
    """Rows already delivered that stages made of the record at ``offset``."""
    pending: tuple[Range, ...] = ()
    """Ranges before ``offset`` that were overtaken: ordered, apart, not yet delivered."""
    token: Token | None = None
    """Valid at ``offset``; a pending range has its own."""
    base: int | None = None
    """The first offset of the split that this run ever read."""

    @property
    def low(self) -> int:
        """The oldest offset that was not wholly delivered: where reading must begin."""
        return self.pending[0].start if self.pending else self.offset

    @property
    def low_token(self) -> Token | None:
        """The token that is valid at ``low``."""
        return self.pending[0].token if self.pending else self.token

    def undelivered(self) -> Iterator[Range]:
        """The ranges still to be delivered, the last one open-ended."""
        yield from self.pending
        yield Range(self.offset, _END_OF_TIME, self.skip, self.token)

    def remaining(self, s: Slice) -> list[Slice]:
        """The parts of ``s`` that were not delivered, each of one contiguous range."""
        if s.resets or (self.offset, self.skip) <= (s.start, s.lead):
            return [s]
        ranges = [r for r in self.undelivered() if r.start < s.next_offset and r.stop > s.start]
        parts = [s.between(r.start, r.stop, r.skip) for r in ranges]
        kept = [p for p in parts if len(p) or p.next_offset > p.start or p.failures]
        return [replace(p, ticket=0) for p in kept[:-1]] + kept[-1:]

    def advance(self, s: Slice) -> Position:
        """The position after ``s``, too, was delivered."""
        if s.resets:
            fresh = Position(s.start, token=s.token, base=s.start)
            return fresh.advance(replace(s, resets=False))
        pending = list(_without(self.pending, s))
        offset, skip = self.offset, self.skip
        if s.start > offset:
            pending.append(Range(offset, s.start, skip, self.token))
        token = self.token
        if s.next_offset >= offset:
            token = s.token or token
        if s.next_offset > offset or (s.next_offset == offset and s.skip > skip):
            offset, skip = s.next_offset, s.skip
        return Position(offset, skip, tuple(pending), token, self.base)

    def covers(self, other: Position) -> bool:
        """Whether everything that ``other`` says was delivered is delivered here, too."""
        if (self.offset, self.skip) < (other.offset, other.skip):
            return False
        return all(any(_inside(r, o) for o in other.undelivered()) for r in self.pending)

    def to_json(self) -> dict[str, Any]:
        """Plain JSON; pending ranges relative to ``offset``, defaults left out."""
        out: dict[str, Any] = {"offset": self.offset}
        if self.skip:
            out["skip"] = self.skip
        if self.pending:
            out["pending"] = [r.to_json(self.offset) for r in self.pending]
        if self.token:
            out["token"] = dict(self.token)
        if self.base is not None:
            out["base"] = self.base
        return out

    @classmethod
    def from_json(cls, split: str, d: Any) -> Position:
        """The inverse of ``to_json``.

        Raises:
            StateError: ``d`` is not what ``to_json`` gives; the message names the split.
        """
        try:
            offset = _integer(d["offset"])
            pending = tuple(Range.from_json(offset, r) for r in d.get("pending", ()))
            base = d.get("base")
            return cls(
                offset,
                _integer(d.get("skip", 0)),
                pending,
                d.get("token"),
                None if base is None else _integer(base),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise StateError(
                f"the state of split {split!r} is damaged: {d!r}. Load an older checkpoint."
            ) from e


@dataclass(frozen=True, slots=True, kw_only=True)
class Window:
    """A shuffle window in the middle of its delivery.

    Its rows are those that ``after`` has and the positions of the state have not. Numbered in
    the order (split, offset), they are delivered in the order of the permutation keyed by
    (seed, pass, index), and the first ``delivered`` of that order are done.
    """

    seed: int
    index: int
    delivered: int
    after: Mapping[str, Position]
    rows: Mapping[str, int]
    """Rows of each split, in the order of their numbering; what was re-sharded away included."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON."""
        return {
            "seed": self.seed,
            "index": self.index,
            "delivered": self.delivered,
            "splits": {
                k: {"rows": n, **(self.after[k].to_json() if k in self.after else {})}
                for k, n in self.rows.items()
            },
        }

    @classmethod
    def from_json(cls, d: Mapping[str, Any]) -> Window:
        """The inverse of ``to_json``."""
        try:
            splits = d["splits"]
            return cls(
                seed=_integer(d["seed"]),
                index=_integer(d["index"]),
                delivered=_integer(d["delivered"]),
                after={k: Position.from_json(k, p) for k, p in splits.items() if "offset" in p},
                rows={k: _integer(p["rows"]) for k, p in splits.items()},
            )
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise StateError(f"the state's shuffle window is damaged: {d!r}") from e


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixture:
    """Where a mix of sources stands in the sequence of its members."""

    owed: Mapping[str, int]
    """Millionths of a row that each member should have given more by now; negative: fewer."""
    turn: str | None = None
    """The member whose turn is not over."""
    left: int = 0
    """Rows that it has left."""
    ended: frozenset[str] = frozenset()
    """Members that came to an end."""

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, defaults left out."""
        out: dict[str, Any] = {"owed": dict(self.owed)}
        if self.turn is not None:
            out["turn"] = [self.turn, self.left]
        if self.ended:
            out["ended"] = sorted(self.ended)
        return out

    @classmethod
    def from_json(cls, d: Any) -> Mixture:
        """The inverse of ``to_json``.

        Raises:
            StateError: ``d`` is not what ``to_json`` gives.
        """
        try:
            turn, left = d.get("turn", (None, 0))
            return cls(
                owed={str(k): _integer(v) for k, v in d["owed"].items()},
                turn=turn,
                left=_integer(left),
                ended=frozenset(d.get("ended", ())),
            )
        except (KeyError, TypeError, ValueError, AttributeError) as e:
            raise StateError(
                f"the state of the mix is damaged: {d!r}. Load an older checkpoint."
            ) from e

    @classmethod
    def merged(cls, parts: Sequence[Mixture]) -> Mixture | None:
        """One for the mixes of several ranks; of a single one, itself.

        Each rank keeps the shares by itself, so what a member is owed is the mean over the ranks
        that have it, and it ended if it ended on all of them.
        """
        if len(parts) < 2:
            return parts[0] if parts else None
        owed: dict[str, list[int]] = {}
        for name, rows in ((k, v) for p in parts for k, v in p.owed.items()):
            owed.setdefault(name, []).append(rows)
        ended = {
            name
            for name in frozenset().union(*(p.ended for p in parts))
            if all(name in p.ended or name not in p.owed for p in parts)
        }
        return cls(owed={k: sum(v) // len(v) for k, v in owed.items()}, ended=frozenset(ended))


@dataclass(frozen=True, slots=True, kw_only=True)
class State:
    """Where a training job stands in its stream."""

    splits: Mapping[str, Position] = field(default_factory=dict)
    pass_index: int = 0
    """How often a bounded source was read to its end before."""
    windows: int = 0
    """Shuffle windows that were begun, in this pass."""
    open_windows: tuple[Window, ...] = ()
    """Windows in the middle of their delivery: one, or as many as ranks were merged."""
    batches: int = 0
    """Batches delivered so far, over all passes and restarts."""
    mixture: Mixture | None = None
    """Where the members of a mix stand: after the open window, if there is one."""

    def only(self, owned: Callable[[str], bool]) -> State:
        """The part of the state that a rank needs that owns these splits."""
        windows = [
            replace(w, after={k: p for k, p in w.after.items() if owned(k)})
            for w in self.open_windows
        ]
        return replace(
            self,
            splits={k: p for k, p in self.splits.items() if owned(k)},
            open_windows=tuple(w for w in windows if w.after),
        )

    def to_json(self) -> dict[str, Any]:
        """Plain JSON, a few kB for 64 splits: equal tokens are listed once."""
        splits = {k: p.to_json() for k, p in self.splits.items()}
        out: dict[str, Any] = {
            "version": VERSION,
            "pass": self.pass_index,
            "batches": self.batches,
            "splits": splits,
        }
        if tokens := _gathered_tokens(splits.values()):
            out["tokens"] = tokens
        if self.windows:
            out["windows"] = self.windows
        if self.open_windows:
            out["open_windows"] = [w.to_json() for w in self.open_windows]
        if self.mixture is not None:
            out["mix"] = self.mixture.to_json()
        return out

    @classmethod
    def from_json(cls, d: Any) -> State:
        """The inverse of ``to_json``.

        Raises:
            StateError: ``d`` is of another version, or damaged.
        """
        if not isinstance(d, Mapping) or "version" not in d:
            raise StateError(
                f"this is no state of a Forebay loader: {type(d).__name__} without a 'version'. "
                "Pass what loader.state_dict() returned."
            )
        if d["version"] != VERSION:
            raise StateError(
                f"the state has version {d['version']!r}, this Forebay reads version {VERSION}. "
                "Resume with the Forebay that wrote it, or start anew without a state."
            )
        try:
            tokens = d.get("tokens", [])
            splits = {k: Position.from_json(k, p) for k, p in d["splits"].items()}
            return cls(
                splits={k: _with_tokens(p, tokens) for k, p in splits.items()},
                pass_index=_integer(d["pass"]),
                windows=_integer(d.get("windows", 0)),
                open_windows=tuple(Window.from_json(w) for w in d.get("open_windows", ())),
                batches=_integer(d["batches"]),
                mixture=Mixture.from_json(d["mix"]) if "mix" in d else None,
            )
        except (KeyError, IndexError, TypeError, ValueError, AttributeError) as e:
            raise StateError("the state is damaged. Load an older checkpoint.") from e


def merge_states(states: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Join the states that the ranks of one job saved at one step into one for any world size.

    Args:
        states: what ``Loader.state_dict()`` returned on each rank.

    Raises:
        StateError: two ranks delivered the same split, or stand in different passes.
    """
    parts = [State.from_json(d) for d in states]
    if not parts:
        raise StateError("there is no state to merge")
    if len({p.pass_index for p in parts}) > 1:
        raise StateError("the states stand in different passes: merge states of the same step")
    splits: dict[str, Position] = {}
    for part in parts:
        if both := sorted(splits.keys() & part.splits.keys()):
            raise StateError(f"two ranks delivered the same splits: {', '.join(both)}")
        splits.update(part.splits)
    merged = State(
        splits=splits,
        pass_index=parts[0].pass_index,
        windows=max(p.windows for p in parts),
        open_windows=tuple(w for p in parts for w in p.open_windows),
        batches=max(p.batches for p in parts),
        mixture=Mixture.merged([p.mixture for p in parts if p.mixture is not None]),
    )
    return merged.to_json()


def advanced(splits: Mapping[str, Position], slices: Iterable[Slice]) -> dict[str, Position]:
    """The positions after these slices, too, were delivered."""
    out = dict(splits)
    for s in slices:
        out[s.split] = out.get(s.split, Position(s.start, base=s.start)).advance(s)
    return out


def _gathered_tokens(splits: Iterable[dict[str, Any]]) -> list[Token]:
    """The distinct tokens; each position is left with the place of its own in the list."""
    places: dict[str, int] = {}
    tokens: list[Token] = []

    def place_of(token: Token) -> int:
        place = places.setdefault(repr(token), len(tokens))
        if place == len(tokens):
            tokens.append(token)
        return place

    for position in splits:
        if "token" in position:
            position["token"] = place_of(position["token"])
        for pending in position.get("pending", ()):
            pending[3:] = map(place_of, pending[3:])
    return tokens


def _with_tokens(p: Position, tokens: list[Token]) -> Position:
    """The inverse of ``_gathered_tokens`` for one position."""
    pending = tuple(r._replace(token=_found(r.token, tokens)) for r in p.pending)
    return replace(p, token=_found(p.token, tokens), pending=pending)


def _found(token: Any, tokens: list[Token]) -> Token | None:
    return None if token is None else tokens[_integer(token)]


def _without(pending: Iterable[Range], s: Slice) -> Iterator[Range]:
    """The pending ranges less what ``s`` answers for."""
    for r in pending:
        if s.next_offset < r.start or s.start >= r.stop:
            yield r
            continue
        if r.start < s.start:
            yield Range(r.start, s.start, r.skip, r.token)
        if s.next_offset < r.stop:
            same = s.next_offset == r.start
            skip = max(s.skip, r.skip) if same else s.skip
            yield Range(s.next_offset, r.stop, skip, s.token or r.token)


def _inside(inner: Range, outer: Range) -> bool:
    return (outer.start, outer.skip) <= (inner.start, inner.skip) and inner.stop <= outer.stop


def _integer(value: Any) -> int:
    if not isinstance(value, int) or isinstance(value, bool):
        raise TypeError(f"not an integer: {value!r}")
    return value
