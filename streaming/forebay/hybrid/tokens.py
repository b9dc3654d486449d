"""Tokens of a history and of the live source that follows it: the member's own, and the hand-over.

A token of the history: ``{"of": ..., "seen": {live split: its largest offset so far}, "end": N}``;
``end`` is there once the split was read to its end. A token of the live source: ``{"of": ...,
"live": {group: splits that it had at the hand-over}}``. ``of`` is what the member gave, if it did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, TypeAlias

from forebay.errors import StateError
from forebay.slice import Token
from forebay.state import Position

OF, SEEN, END, LIVE = "of", "seen", "end", "live"

Numbers: TypeAlias = Mapping[str, int]
Wrap: TypeAlias = "Callable[[Token | None], Token]"


def history_token(of: Token | None, seen: Numbers, end: int | None = None) -> Token:
    """The token of rows of the history."""
    token = _wrapping(of) | {SEEN: seen}
    return token if end is None else token | {END: end}


def live_token(of: Token | None, groups: Numbers) -> Token:
    """The token of rows of the live source."""
    return _wrapping(of) | {LIVE: groups}


def is_history(p: Position) -> bool:
    """Whether this is a position in a history."""
    return SEEN in (p.token or {})


def is_live(p: Position) -> bool:
    """Whether this is a position in a live source."""
    return LIVE in (p.token or {})


def finished(p: Position) -> bool:
    """Whether a split of the history was delivered to its end."""
    end = end_of(p)
    return end is not None and p.low >= end


def end_of(p: Position) -> int | None:
    """Where a split of the history ends; None if that is not known yet."""
    end = (p.token or {}).get(END)
    if end is None or (isinstance(end, int) and not isinstance(end, bool)):
        return end
    raise _damaged(p.token)


def begun(p: Position) -> bool:
    """Whether anything of the split was delivered in this pass."""
    return (p.offset, p.skip, p.pending) != (p.base, 0, ())


def all_seen(positions: Iterable[Position]) -> dict[str, int]:
    """The largest offset of each live split that the history gave up to these positions."""
    return _largest(positions, SEEN)


def groups_of(positions: Iterable[Position]) -> dict[str, int]:
    """How many splits each group of the live source had at the hand-over."""
    return _largest(positions, LIVE)


def wrapped(p: Position, wrap: Wrap, end: int | None = None) -> Position:
    """The position with each of its tokens wrapped; ``end`` is kept in that of its offset."""
    token = wrap(p.token)
    return replace(
        p,
        token=token if end is None else {**token, END: end},
        pending=tuple(r._replace(token=wrap(r.token)) for r in p.pending),
    )


def unwrapped(p: Position) -> Position:
    """The position as the member knows it. Foreign tokens stay as they are."""
    pending = tuple(r._replace(token=_member(r.token)) for r in p.pending)
    return replace(p, token=_member(p.token), pending=pending)


def _wrapping(of: Token | None) -> dict[str, Any]:
    return {} if of is None else {OF: of}


def _member(token: Token | None) -> Token | None:
    if token is None or not (SEEN in token or LIVE in token):
        return token
    return token.get(OF)


def _tokens(p: Position) -> Iterator[Token]:
    yield from (t for t in (p.token, *(r.token for r in p.pending)) if t is not None)


def _largest(positions: Iterable[Position], key: str) -> dict[str, int]:
    out: dict[str, int] = {}
    for name, number in (n for p in positions for t in _tokens(p) for n in _numbers(t, key)):
        out[name] = max(number, out.get(name, number))
    return out


def _numbers(token: Token, key: str) -> list[tuple[str, int]]:
    try:
        return [(str(name), int(number)) for name, number in token.get(key, {}).items()]
    except (AttributeError, TypeError, ValueError) as e:
        raise _damaged(token) from e


def _damaged(token: Token | None) -> StateError:
    return StateError(f"the state's hand-over is damaged: {token!r}. Load an older checkpoint.")
