"""``forebay doctor`` of a running job, or of its state files: judged by what its ranks tell.

Knows nothing of torch, whose import takes longer than all of this.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import click

from forebay.cli.common import Options
from forebay.cli.following import followed, unreached
from forebay.diagnose.overtime import history_into
from forebay.diagnose.telling import verdict_into, verdict_json, verdict_lines
from forebay.errors import ConfigError
from forebay.observe.snapshot import Snapshot
from forebay.observe.verdict import Verdict, judge
from forebay.report import Report

_PATIENCE_SECONDS = 15.0


def attached(options: Options, targets: Sequence[str], out: str | None) -> list[Verdict]:
    """Judge what the ranks of a job tell, and write it.

    Raises:
        SourceError: nothing is heard of one of the targets.
        ConfigError: the report cannot be written.
    """
    report, verdicts = Report("Doctor"), []
    for i, history in enumerate(_histories(options, targets)):
        job, before = history[-1].job, _before_end(history)
        verdict, end = judge(before), _end(history)
        verdicts.append(verdict)
        name = f"{job.name}, rank {job.rank} of {job.world_size}"
        report.section(name)
        if end:
            report.text(end)
        verdict_into(report, verdict)
        history_into(report, before, f"rank-{job.rank}-{i}")
        event = {"event": "verdict", "job": job.name, "rank": job.rank, **_how_ended(history)}
        lines = [f"{name}:", *([end] if end else []), *verdict_lines(verdict)]
        options.emit({**event, **verdict_json(verdict)}, "\n".join(lines))
    if written := saved(report, out):
        options.emit({"event": "report", "folder": written}, where(written).strip())
    return verdicts


def is_url(target: str) -> bool:
    """Whether it is the address of a dashboard."""
    return target.startswith(("http://", "https://"))


def saved(report: Report, out: str | None) -> str | None:
    """The folder of the report, if one was asked for.

    Raises:
        ConfigError: it cannot be written.
    """
    if out is None:
        return None
    try:
        return str(report.save(out))
    except OSError as e:
        raise ConfigError(f"the report cannot be written to {out}: {e}") from e


def where(report: str | None) -> str:
    """A line that says where the report is; empty if there is none."""
    return "" if report is None else f"\n  report: {Path(report) / 'report.html'}"


def _histories(options: Options, targets: Sequence[str]) -> Sequence[Sequence[Snapshot]]:
    """What the targets tell, once it is enough for a verdict, or after some patience.

    Raises:
        SourceError: nothing is heard of one of them.
    """
    board, until = followed(options, targets), time.monotonic() + _PATIENCE_SECONDS
    told = False
    while True:
        board.refresh()
        for target in board.targets():
            if not target.ranks:
                raise unreached([target])
        histories = board.histories()
        enough = all(judge(h).cause != "unknown" for h in histories)
        if enough or time.monotonic() >= until or not any(map(is_url, targets)):
            return histories
        if not told:
            click.echo(f"too little was seen yet; waiting {_PATIENCE_SECONDS:.0f} s", err=True)
            told = True
        time.sleep(1.0)


def _before_end(history: Sequence[Snapshot]) -> Sequence[Snapshot]:
    """Without the last word of a run that ended, which is about its end."""
    before = [s for s in history if s.ended is None]
    return before or history


def _end(history: Sequence[Snapshot]) -> str:
    """How a run ended, and when; empty while it goes on."""
    last = history[-1]
    if last.ended is None:
        return ""
    when = datetime.fromtimestamp(last.at).astimezone().isoformat(" ", "seconds")
    return f"{judge(history).sentence} That was at {when}. In its last half minute:"


def _how_ended(history: Sequence[Snapshot]) -> dict[str, Any]:
    last = history[-1]
    return {"ended": last.ended, "ended_at": None if last.ended is None else last.at}
