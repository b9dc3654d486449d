"""Puts the slices of several sources into the sequence of a mix, by their shares of rows."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from forebay.errors import SourceError
from forebay.intake import Slices
from forebay.merge import Merge
from forebay.mixing.repeat import round_of
from forebay.mixing.shares import Shares
from forebay.mixing.source import MixedSource
from forebay.slice import Edition, Slice
from forebay.state import Mixture, Position
from forebay.supply import Ledger, Portion, SliceSupply, Supply


class Mix:
    """Gives slices by the shares of their members; waits for the member whose turn it is.

    Shares are counted in rows after the stages. The order of members depends on the rows given
    alone, not on how they were cut into slices; with ``deterministic`` that holds for the order
    of rows, too.

    Args:
        slices: the slices of all members, as they come.
        positions: of every owned split.
        mixture: where the run goes on.
    """

    def __init__(
        self,
        slices: Slices,
        source: MixedSource,
        positions: Mapping[str, Position],
        mixture: Mixture | None,
        *,
        deterministic: bool,
    ) -> None:
        self._slices, self._source = slices, source
        self._deterministic = deterministic
        self._members: dict[str, _Member] = {}
        for split, position in positions.items():
            self._member(source.member_of(split)).begin(split, position)
        ended = mixture.ended if mixture and source.when_dry == "others" else frozenset()
        self._shares = Shares.of(
            source.weights, self._members.keys() - ended, source.quantum, mixture
        )
        self._to_look_at = ended & self._members.keys()
        self._given: deque[_Given] = deque()
        self.delivered = self._shares

    def next(self, want: Collection[str] = ()) -> Slice | None:
        """The next slice by the shares, whatever is wanted; None at the end of the run."""
        self._look_again()
        while (name := self._due()) is not None:
            s = self._members[name].next()
            if s is None:
                if not self._go_on_without(name):
                    return None
            else:
                return self._cut(name, s) if len(s) else s
        return None

    def unmixed(self) -> Unmixed:
        """What comes next of each member, without counting it: for rows counted before."""
        return Unmixed(self._source, self._members)

    def counted(self, supplies: Iterable[Supply], ledger: Ledger) -> Iterator[Supply]:
        """These supplies of rows of this mix; taking them moves ``mixture`` in the ledger, too."""
        rebuilt = len(ledger.open_windows)
        for i, supply in enumerate(supplies):
            yield supply if i < rebuilt else _Counted(supply, self, ledger)

    def deliver(self, rows: int) -> Mixture:
        """Count the next ``rows`` rows as delivered; where the mix then stands."""
        while rows:
            given = self._given.popleft()
            step = min(rows, given.rows)
            self.delivered = given.shares.after(given.member, step)
            if step < given.rows:
                self._given.appendleft(_Given(given.rows - step, given.member, self.delivered))
            rows -= step
        return self.delivered.mixture()

    def _due(self) -> str | None:
        """The member whose turn it is; None if none is left."""
        while self._shares.owed:
            ready = [k for k in self._shares.owed if not self._members[k].dry]
            if ready:
                self._shares = self._shares.begun(ready)
                return self._shares.turn
            self._fill({s for k in self._shares.owed for s in self._members[k].splits})
        return None

    def _go_on_without(self, name: str) -> bool:
        """Do what is to be done when a member has nothing; False if that is the end of the run."""
        member, policy = self._members[name], self._source.when_dry
        if member.dry:
            return True
        self._shares = self._shares.ending(name)
        if policy == "others":
            self._shares = self._shares.among(self._shares.owed.keys() - {name})
        elif self._source.repeats(name) and not self._shares.owed.keys() <= self._shares.ended:
            member.begin_round()
        else:
            return False
        return True

    def _cut(self, name: str, s: Slice) -> Slice:
        """The part of the slice that belongs to this turn. A single member needs no turns."""
        rows = len(s) if len(self._shares.owed) == 1 else min(len(s), self._shares.left)
        if rows < len(s):
            self._members[name].put_back(s.tail(rows))
            s = s.head(rows)
        self._given.append(_Given(rows, name, self._shares))
        self._shares = self._shares.after(name, rows)
        return s

    def _look_again(self) -> None:
        """Whether members that had ended when the state was saved have more by now."""
        names, self._to_look_at = self._to_look_at, frozenset()
        for name in sorted(names):
            s = self._members[name].next()
            if s is not None:
                self._members[name].put_back(s)
                self._join(name)

    def _join(self, name: str) -> None:
        self._shares = self._shares.among({*self._shares.owed, name})

    def _fill(self, want: Collection[str]) -> bool:
        """Take a slice for the member it is of; False if nothing more comes of ``want``."""
        s = self._slices.next(want)
        if s is None:
            return False
        name = self._source.member_of(s.split)
        self._member(name).arrive(s)
        if len(s) and name not in self._shares.owed and name not in self._to_look_at:
            self._join(name)
        return True

    def _member(self, name: str) -> _Member:
        if name not in self._members:
            source = self._source
            waits = source.when_dry != "others" or self._deterministic
            self._members[name] = _Member(
                name,
                self._fill,
                merged=self._deterministic,
                repeats=source.repeats(name),
                waits=waits,
            )
        return self._members[name]


class Unmixed:
    """The next slices of wanted splits, of whatever member. See ``Mix.unmixed``."""

    def __init__(self, source: MixedSource, members: Mapping[str, _Member]) -> None:
        self._source, self._members = source, members

    def next(self, want: Collection[str] = ()) -> Slice | None:
        for member in list(self._members.values()):
            wanted = [k for k in want if k in member.splits]
            if wanted and (s := member.next(wanted)) is not None:
                return s
        return None

    def put_back(self, slices: Collection[Slice]) -> None:
        """Give these again before anything else of their members."""
        for s in reversed(list(slices)):
            self._members[self._source.member_of(s.split)].put_back(s)


class _Member:
    """The slices of one member in their order, round by round if it is repeated."""

    def __init__(
        self,
        name: str,
        fill: Callable[[Collection[str]], bool],
        *,
        merged: bool,
        repeats: bool,
        waits: bool,
    ) -> None:
        self._name, self._merged, self._waits = name, merged, waits
        self._lane = _Lane(fill, repeats)
        self._positions: dict[str, Position] = {}
        self._merge: Merge | None = None
        self._back: deque[Slice] = deque()
        self._whole_round, self._rows = False, 0

    @property
    def splits(self) -> Collection[str]:
        return self._lane.splits

    @property
    def dry(self) -> bool:
        """Whether it has no data now, and is not to be waited for."""
        return not self._waits and not self._back and self._lane.dry

    def begin(self, split: str, position: Position) -> None:
        """Have a split whose reading begins here."""
        self._positions[split] = position
        self._lane.splits.add(split)

    def arrive(self, s: Slice) -> None:
        """Keep a slice for its turn."""
        self._lane.arrive(s)

    def put_back(self, s: Slice) -> None:
        """Give this again before anything else."""
        self._back.appendleft(s)

    def next(self, want: Collection[str] = ()) -> Slice | None:
        """The next slice; None at the end of the round, or if it is dry and none is wanted."""
        if self._back:
            return self._back.popleft()
        if self._merged and self._merge is None:
            self._merge = Merge(self._lane, self._positions)
        s = self._lane.next(want, waits=self._waits) if self._merge is None else self._merge.next()
        self._rows += 0 if s is None else len(s)
        return s

    def begin_round(self) -> None:
        """Go on with the next round.

        Raises:
            SourceError: a whole round gave no row, and so would all that follow.
        """
        if self._whole_round and not self._rows:
            raise SourceError(
                f"mix: a whole round of the source {self._name!r} gave no row: the stages leave "
                'none. Leave it out of the mix, or mix with when_dry="others".'
            )
        begins = self._lane.begin_round()
        self._whole_round, self._rows = len(begins) == len(self.splits), 0
        self._positions = {s.split: Position(s.start, base=s.start) for s in begins}
        self._back.extend(begins)
        self._merge = None


class _Lane:
    """The slices of one member as they come; those of a later round are kept for it.

    Args:
        fill: takes one more slice of these splits, or of any other; False if none comes.
    """

    def __init__(self, fill: Callable[[Collection[str]], bool], repeats: bool) -> None:
        self._fill, self._repeats = fill, repeats
        self.splits: set[str] = set()
        self._queue: deque[Slice] = deque()
        self._later: deque[Slice] = deque()
        self._over: set[str] = set()
        self._quiet: set[str] = set()

    @property
    def dry(self) -> bool:
        """Whether the last that came of every split says that there is no more now."""
        open_splits = self.splits - self._over
        return bool(open_splits) and not self._queue and self._quiet >= open_splits

    def arrive(self, s: Slice) -> None:
        """Keep a slice that was read."""
        self.splits.add(s.split)
        self._queue.append(s)
        if _says_dry(s):
            self._quiet.add(s.split)
        else:
            self._quiet.discard(s.split)

    def begin_round(self) -> list[Slice]:
        """Let the slices of the next round come; the slices that begin it, of each split one.

        They are to be delivered together: in a state all splits are in one round. Splits that
        are a round ahead (the state is of another order or number of ranks) stay out of it.
        """
        self._queue, self._later = self._later, self._queue
        self._over.clear()
        found = [s for split in sorted(self.splits) if (s := self._beginning(split)) is not None]
        number = min((round_of(s.token) for s in found), default=0)
        begins = [s for s in found if round_of(s.token) == number]
        self._queue.extendleft(s for s in found if round_of(s.token) != number)
        self._over = self.splits - {s.split for s in begins}
        return begins

    def _beginning(self, split: str) -> Slice | None:
        """Wait for the slice with which the split begins anew; None if it does not."""
        while True:
            for s in self._queue:
                if s.resets and s.split == split:
                    self._queue.remove(s)
                    return s
            if not self._fill({split}):
                return None

    def next(self, want: Collection[str] = (), *, waits: bool = True) -> Slice | None:
        """The next slice of this round; None when it is over for all of ``want``.

        None, too, if nothing is wanted of a member that is dry and need not be waited for.
        """
        while True:
            while self._queue:
                s = self._queue.popleft()
                if self._is_of_this_round(s):
                    return s
                self._later.append(s)
            waited_for = (set(want) or self.splits) - self._over
            if not waited_for or (not want and not waits and self.dry):
                return None
            if not self._fill(waited_for):
                self._over |= waited_for

    def _is_of_this_round(self, s: Slice) -> bool:
        if not self._repeats:
            return True
        if s.resets:
            self._over.add(s.split)
        return s.split not in self._over


@dataclass(frozen=True, slots=True)
class _Given:
    """Rows that the mix gave and that were not delivered yet."""

    rows: int
    member: str
    shares: Shares
    """Before them."""


class _Counted:
    """A supply of rows of a mix: a ``Supply``.

    While a window is open, the state holds where the mix stands after it: a resume reads the
    window's rows again by their positions, without asking the mix.
    """

    def __init__(self, supply: Supply, mix: Mix, ledger: Ledger) -> None:
        self._supply, self._mix, self._ledger = supply, mix, ledger
        self._window = 0 if isinstance(supply, SliceSupply) else supply.left

    @property
    def left(self) -> int:
        return self._supply.left

    @property
    def editions(self) -> frozenset[Edition]:
        return self._supply.editions

    def take(self, n: int) -> Portion:
        portion = self._supply.take(n)
        rows = self._window or (len(portion) if isinstance(self._supply, SliceSupply) else 0)
        self._window = 0
        if rows:
            self._ledger.mixture = self._mix.deliver(rows)
        return portion


def _says_dry(s: Slice) -> bool:
    """Whether the slice says nothing but that its split has no more now."""
    nothing = not len(s) and not s.failures and not s.resets
    return nothing and (s.start, s.lead) == (s.next_offset, s.skip)
