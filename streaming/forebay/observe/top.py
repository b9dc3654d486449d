"""The dashboard's picture in a terminal."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence

from rich.console import Group, RenderableType
from rich.markup import escape
from rich.panel import Panel
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from forebay.observe.board import TargetSeen
from forebay.observe.picture import Picture, RankPicture, SplitRow
from forebay.observe.points import PARTS

UNKNOWN = "–"  # noqa: RUF001
MOST_SPLITS, MOST_LETTERS, MOST_DECISIONS, MOST_RANKS = 8, 3, 3, 16
SILENT_SECONDS = 10.0
_COLOURS = {
    "starved": "red",
    "copy": "yellow",
    "compute": "blue",
    "communication": "magenta",
    "other": "bright_black",
}
_STATE_STYLES = {"OK": "green", "BEHIND": "yellow", "STALLED": "bold red", "STOPPED": "bold red"}
_BAR = 40


def drawn(picture: Picture, rank: str | None = None) -> RenderableType:
    """The picture, of the rank with that key; without one of the rank that is worst off."""
    chosen = next((r for r in picture.ranks if r.key == (rank or picture.worst)), None)
    parts = [*_targets(picture.targets)]
    if chosen is None:
        why = no_such_rank(picture, rank) if rank and picture.ranks else "Nothing was seen yet."
        return Group(*parts, Text(why, style="bold"))
    parts += [_head(chosen), _verdict(chosen), _figures(chosen), _flow(chosen)]
    if len(picture.ranks) > 1 or chosen.ranks:
        parts.append(_ranks(picture, chosen))
    parts.append(_splits(picture))
    parts += [*_decisions(chosen), *_letters(chosen), *_gpus(chosen)]
    return Group(*parts)


def no_such_rank(picture: Picture, rank: str) -> str:
    """What to say where no rank has that key; empty if one has."""
    known = [r.key for r in picture.ranks]
    if rank in known:
        return ""
    some = known[:MOST_RANKS] + ["…"] * (len(known) > MOST_RANKS)
    return f"there is no rank {rank}; there are {', '.join(some)}"


def _targets(targets: Sequence[TargetSeen]) -> Iterator[RenderableType]:
    for t in targets:
        if t.trouble:
            heard = (
                "" if t.silent_seconds is None else f", last heard {_time(t.silent_seconds)} ago"
            )
            yield Text(f"{t.name}: {t.trouble}{heard}", style="bold yellow")


def _head(r: RankPicture) -> RenderableType:
    of = f"rank {r.job.rank} of {r.job.world_size}, " if r.job.world_size > 1 else ""
    words = Text.assemble((r.job.name, "bold"), f"  {of}{r.job.host}, process {r.job.pid}")
    if r.ended is not None:
        words.append(f"  ended: {r.ended}", "bold")
    elif r.age > SILENT_SECONDS:
        words.append(f"  told nothing for {_time(r.age)}", "bold yellow")
    return words


def _verdict(r: RankPicture) -> RenderableType:
    v = r.verdict
    lines: list[RenderableType] = [Text(v.sentence, style="bold")]
    if v.shares:
        lines += [_bar(v.shares), _legend(v.shares)]
    lines += [Text(f"· {e}") for e in v.evidence]
    lines += [Text(f"? {g}", style="dim") for g in v.guess]
    if v.advice:
        lines.append(Text(f"next: {v.advice}", style="cyan"))
    of = "" if v.seconds is None else f", of the last {v.seconds:.0f} s"
    return Panel(Group(*lines), title=f"verdict: {v.cause}{of}", title_align="left")


def _bar(shares: Mapping[str, float]) -> Text:
    """Blocks in proportion; which is which is said below it, colours or not."""
    bar = Text()
    for part in PARTS:
        bar.append("█" * round(shares.get(part, 0.0) * _BAR), _COLOURS[part])
    return bar


def _legend(shares: Mapping[str, float]) -> Text:
    known = [p for p in PARTS if p in shares]
    return Text("  ").join(Text(f"{p} {_percent(shares[p])}", style=_COLOURS[p]) for p in known)


def _figures(r: RankPicture) -> RenderableType:
    grid = Table.grid(padding=(0, 3))
    figures = {
        "rows/s": _number(r.now.rows),
        "starved": _percent(r.now.starved),
        "lag": _number(r.now.lag_records),
        "behind": _time(r.now.lag_seconds),
        "freshness p50, p95": f"{_time(r.now.fresh_p50)}, {_time(r.now.fresh_p95)}",
        "dead letters": _number(r.letters.total),
        "memory": _bytes(r.process.rss_bytes),
        "CPUs": f"{_number(r.cpu, 1)} of {_number(r.process.cpus, 1)}",
    }
    grid.add_row(*(Text(name, style="dim") for name in figures))
    grid.add_row(*figures.values())
    return grid


def _flow(r: RankPicture) -> RenderableType:
    table = _table(("", "rows/s", "busy", "", "at this moment"))
    for s in r.sources:
        of = f"{_number(s.splits)} splits, {_number(s.lag_records)} records behind"
        read = r.stages[0].rows_in if r.stages else r.now.rows
        table.add_row(escape(s.name), _number(read) if len(r.sources) == 1 else UNKNOWN, "", "", of)
    for stage in r.stages:
        failed = f"{_number(stage.failed)} failed" if stage.failed else ""
        table.add_row(
            escape(f"→ {stage.name}"),
            _number(stage.rows_out),
            _percent(stage.share),
            _meter(stage.share),
            failed,
        )
    for p in r.pools:
        most = "more" if p.most is None else str(p.most)
        words = f"{p.workers} workers of {p.least} to {most}, {p.queued} slices queued"
        table.add_row(escape(f"  pool {p.name}"), "", _percent(p.busy), _meter(p.busy), words)
    b = r.batch
    ready = f"{b.ready} of {b.prefetch} ready, {_bytes(b.bytes_in_flight)} in flight"
    table.add_row("→ batches", _number(r.now.rows), "", "", ready)
    if r.trainer.there:
        step = f"{_number(r.trainer.steps_per_second, 1)} steps/s, p95 {_time(r.trainer.step_p95)}"
        table.add_row(
            "→ trainer", _number(r.now.rows), _percent(r.now.compute), _meter(r.now.compute), step
        )
    return _titled("flow", table)


def _ranks(picture: Picture, r: RankPicture) -> RenderableType:
    table = _table(("", *PARTS))
    if r.ranks:
        for told in r.ranks:
            shares = [_percent(getattr(told, part)) for part in PARTS]
            table.add_row(f"rank {told.rank}", *shares)
    else:
        for each in picture.ranks:
            shares = [_percent(getattr(each.now, part)) for part in PARTS]
            table.add_row(escape(each.key), *shares)
    return _titled("ranks", table)


def _splits(picture: Picture) -> RenderableType:
    states = ", ".join(f"{n:,} {state}" for state, n in picture.split_states.items())
    title = f"splits: {picture.split_count:,}" + (f" ({states})" if states else "")
    several = len(picture.ranks) > 1
    table = _table(("", *(["rank"] if several else []), "lag", "behind", "state"))
    for s in picture.splits[:MOST_SPLITS]:
        of = [escape(s.rank)] if several else []
        lag = _number(s.lag_records), _time(s.lag_seconds)
        table.add_row(escape(s.name), *of, *lag, _state(s))
    return _titled(title, table)


def _state(split: SplitRow) -> Text:
    return Text(split.state or UNKNOWN, style=_STATE_STYLES.get(split.state or "", ""))


def _decisions(r: RankPicture) -> Iterator[RenderableType]:
    if r.decisions:
        yield Text("\nscaling", style="bold")
    for d in r.decisions[-MOST_DECISIONS:]:
        what = f"holds {d.workers}" if d.holds else f"{d.before} to {d.workers} workers"
        yield Text(f"{_clock(d.at)} {d.pool}: {what}: {d.reason}")


def _letters(r: RankPicture) -> Iterator[RenderableType]:
    if r.letters.last:
        yield Text("\ndead letters", style="bold")
    for x in r.letters.last[-MOST_LETTERS:]:
        # As text: a reason may hold markup, and control characters that a terminal obeys.
        words = f"{_clock(x.at)} {x.stage}: {x.split}@{x.offset}: {x.reason}"
        yield Text("".join(c if c.isprintable() else " " for c in words), style="red")


def _gpus(r: RankPicture) -> Iterator[RenderableType]:
    for g in r.gpus:
        memory = f"{_bytes(g.memory_used)} of {_bytes(g.memory_total)}"
        words = f"{g.uuid}: any kernel {_percent(g.busy)}, {memory}, {_number(g.watts)} W"
        yield Text(f"{words} {g.trouble}".rstrip())


def _table(columns: Sequence[str]) -> Table:
    table = Table(box=None, padding=(0, 2, 0, 0))
    for i, column in enumerate(columns):
        figure = i > 0 and column not in ("", "at this moment", "rank", "state")
        table.add_column(column, header_style="dim", justify="right" if figure else "left")
    return table


def _titled(title: str, table: Table) -> RenderableType:
    return Group(Text(f"\n{title}", style="bold"), table)


def _meter(share: float | None) -> RenderableType:
    return "" if share is None else ProgressBar(total=1.0, completed=share, width=12)


def _number(value: float | None, digits: int = 0) -> str:
    return UNKNOWN if value is None else f"{value:,.{digits}f}"


def _percent(share: float | None) -> str:
    return UNKNOWN if share is None else f"{share:.0%}"


def _time(seconds: float | None) -> str:
    if seconds is None:
        return UNKNOWN
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 120:
        return f"{seconds:.1f} s"
    return f"{seconds / 60:.0f} min" if seconds < 7200 else f"{seconds / 3600:.1f} h"


def _bytes(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value / (1 << 20):,.0f} MiB"


def _clock(at: float) -> str:
    return time.strftime("%H:%M:%S", time.localtime(at))
