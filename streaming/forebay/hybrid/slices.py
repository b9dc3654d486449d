"""What a hybrid reader makes of the slices of its members."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from forebay.errors import ConfigError
from forebay.slice import Slice, Token

# Slices of a later phase wait for all of the earlier ones: no live row comes before the history
# was delivered, nor before the state knows where every live split begins.
HISTORY, HISTORY_ENDS, LIVE_BEGINS, LIVE_ROWS = range(4)
_NO_OFFSETS = np.zeros(0, np.int64)


def mark(split: str, at: int, token: Token, phase: int) -> Slice:
    """A slice without rows, which answers for no offset: it brings a token, or tells of a split."""
    return Slice(
        split=split,
        columns={},
        offsets=_NO_OFFSETS,
        start=at,
        next_offset=at,
        token=token,
        phase=phase,
    )


def given_on(s: Slice, token: Token, phase: int, columns: Sequence[str] | None) -> Slice:
    """The slice with another token and phase and, of its columns, only these.

    Raises:
        ConfigError: it lacks one of the columns.
    """
    if columns is None or not len(s):
        return replace(s, token=token, phase=phase)
    if missing := [name for name in columns if name not in s.columns]:
        raise ConfigError(
            f"{s.split}: columns={list(columns)} names {', '.join(map(repr, missing))}, the rows "
            f"have {', '.join(map(repr, s.columns))}"
        )
    kept = {name: s.columns[name] for name in columns}
    return replace(s, columns=kept, token=token, phase=phase)
