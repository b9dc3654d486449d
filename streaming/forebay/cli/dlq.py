"""``forebay dlq``: list dead letters, show one, and run them through today's stages."""

from __future__ import annotations

import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

import click

from forebay.cli.common import Options, common_options, importable_from, read_topology
from forebay.deadletter import Letter
from forebay.errors import ConfigError
from forebay.letterbox import FolderSink, to_json_row, to_record
from forebay.replay import ReadableSink, readable, remove, send
from forebay.replay import replay as replay_letters
from forebay.topology import SINKS, load_sink, load_target, sink_named

_PREVIEW_BYTES = 256
_MOST_GROUPS = 20


@dataclass(frozen=True, slots=True)
class Wanted:
    """Which letters a command is about."""

    stage: str | None = None
    reason: str | None = None
    split: str | None = None

    def __call__(self, letter: Letter) -> bool:
        failure = letter.failure
        return (
            (self.stage is None or failure.stage == self.stage)
            and (self.reason is None or self.reason in failure.reason)
            and (self.split is None or letter.split == self.split)
        )


def selecting(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command ``--stage``, ``--reason`` and ``--split``."""
    for name, text in (
        ("--split", "Only letters of this split."),
        ("--reason", "Only letters whose reason contains this text."),
        ("--stage", "Only letters of this stage."),
    ):
        command = click.option(name, help=text)(command)
    return command


@click.group()
def dlq() -> None:
    """Look at dead letters, and run them again.

    WHERE is a folder of dead letters, a Delta table of them (a folder, or delta:ADDRESS), or a
    topology file, whose section dead_letters then says where they are.
    """


@dlq.command("ls")
@click.argument("where")
@selecting
@click.option("--limit", type=click.IntRange(0), default=20, show_default=True, help="Rows shown.")
@common_options
@click.pass_obj
def list_letters(options: Options, /, where: str, limit: int, **selection: str | None) -> None:
    """Count the letters by stage and reason, and list the first ones."""
    wanted, groups, rows = Wanted(**selection), Counter[tuple[str, str]](), list[Letter]()
    for letter in filter(wanted, letters_at(where)):
        groups[letter.failure.stage, _pattern(letter.failure.reason)] += 1
        if len(rows) < limit:
            rows.append(letter)
    total = groups.total()
    counted = [{"stage": s, "reason": r, "count": n} for (s, r), n in groups.most_common()]
    lines = ["1 dead letter" if total == 1 else f"{total:,} dead letters"]
    lines += [f"{g['count']:>9,}  {g['stage']}: {g['reason']}" for g in counted[:_MOST_GROUPS]]
    if len(counted) > _MOST_GROUPS:
        lines.append(f"           and {len(counted) - _MOST_GROUPS:,} other reasons")
    options.emit({"event": "counts", "letters": total, "groups": counted}, "\n".join(lines))
    for letter in rows:
        options.emit(_row(letter), _row_text(letter))


@dlq.command()
@click.argument("where")
@click.argument("address", metavar="SPLIT@OFFSET")
@click.option("--raw", is_flag=True, help="Write the bytes of the value, and nothing else.")
@common_options
@click.pass_obj
def show(options: Options, where: str, address: str, raw: bool) -> None:
    """Show the letter of one record: why it failed, and what was in it."""
    found = [letter for letter in letters_at(where) if _address(letter) == address]
    if not found:
        raise ConfigError(
            f"there is no dead letter {address} in {where}; see: forebay dlq ls {where}"
        )
    if raw:
        _write_raw(found[0])
        return
    for letter in found:
        options.emit({"event": "letter", **to_json_row(to_record(letter))}, _described(letter))


@dlq.command()
@click.argument("where", required=False)
@click.option("--topology", "file", required=True, type=click.Path(), help="Whose stages to run.")
@click.option("--to", "target", metavar="[TYPE:]NAME", help="Send those that pass, as they came.")
@click.option(
    "--config", "config", multiple=True, metavar="KEY=VALUE", help="Client settings for --to."
)
@click.option("--remove-passed", is_flag=True, help="Take those that pass out of the folder.")
@selecting
@common_options
@click.pass_obj
def replay(
    options: Options,
    /,
    where: str | None,
    file: str,
    target: str | None,
    config: tuple[str, ...],
    remove_passed: bool,
    **selection: str | None,
) -> None:
    """Run dead letters through the stages of a topology as they are now.

    WHERE is the topology itself if it is left out. Says what passes and what still fails, and
    changes nothing unless --to or --remove-passed is given. --to TOPIC writes the original
    records to a topic, with the client settings of the topology's dead letters or source.
    """
    loaded = read_topology(options, file)
    where = where or file
    source = sink_at(where)
    letters = [letter for letter in source.letters() if Wanted(**selection)(letter)]
    outcome = replay_letters(letters, loaded.pipeline.stages)
    if target is not None:
        send(outcome.passed, load_target(file, target, _settings(config)))
    if remove_passed:
        remove(outcome.passed, source)
    for letter, reason in outcome.failed:
        options.emit(
            {**_row(letter), "event": "still_fails", "reason": reason},
            f"still fails: {_address(letter)} {reason}",  # which names the stage of today
        )
    passed, failed = len(outcome.passed), len(outcome.failed)
    done = [f"{passed:,} of {passed + failed:,} dead letters pass now"]
    done += [f"sent to {target}"] if target else []
    done += ["removed"] if remove_passed else []
    options.emit(
        {
            "event": "replayed",
            "passed": passed,
            "failed": failed,
            "sent_to": target,
            "removed": remove_passed,
        },
        ", ".join(done),
    )


def _settings(pairs: Sequence[str]) -> dict[str, str] | None:
    for pair in pairs:
        if "=" not in pair:
            raise click.BadParameter(f"{pair!r} is not KEY=VALUE", param_hint="--config")
    return dict(pair.split("=", 1) for pair in pairs) or None


def sink_at(where: str) -> ReadableSink:
    """The sink at a folder, at TYPE:ADDRESS, or in a topology file.

    Raises:
        ConfigError: there is none of them, or the folder is none of dead letters.
    """
    path = Path(where)
    if path.is_dir():
        return _in_folder(path)
    if not path.exists():
        kind, colon, address = where.partition(":")
        if colon and kind in SINKS.names():
            return readable(sink_named(kind, address))
        raise ConfigError(
            f"there is no folder of dead letters and no topology file at {where}; a table is "
            "named as delta:ADDRESS"
        )
    importable_from(where)
    sink = load_sink(where)
    if sink is None:
        raise ConfigError(f"the topology {where} has no section 'dead_letters'")
    return readable(sink)


def _in_folder(path: Path) -> ReadableSink:
    """The sink of a folder that is there: of dead letters, or a table.

    A folder of anything else is refused. To say that it holds no dead letters would be true, and
    would be taken for good news.
    """
    if (path / "_delta_log").is_dir():
        return readable(sink_named("delta", str(path)))
    sink = FolderSink(path)
    others = sorted(p.name for p in path.iterdir() if not p.name.startswith("."))
    if others and not sink.files():
        raise ConfigError(
            f"{path} is no folder of dead letters: it has no file letters-*, but {others[0]!r}. "
            "Name the folder of letters, the table (delta:ADDRESS), or the topology file."
        )
    return sink


def letters_at(where: str) -> Iterator[Letter]:
    """The letters in a folder, or where a topology file puts them."""
    return sink_at(where).letters()


def _address(letter: Letter) -> str:
    return f"{letter.split}@{letter.failure.offset}"


def _pattern(reason: str) -> str:
    """The reason with its numbers left out, so that like ones are counted together."""
    return re.sub(r"\d+", "#", reason.splitlines()[0] if reason else "")


def _row(letter: Letter) -> dict[str, Any]:
    value = letter.failure.original.get("value")
    return {
        "event": "letter",
        "split": letter.split,
        "offset": letter.failure.offset,
        "stage": letter.failure.stage,
        "reason": letter.failure.reason,
        "time": _time(letter.time),
        "value_bytes": len(value) if isinstance(value, bytes) else None,
    }


def _row_text(letter: Letter) -> str:
    failure = letter.failure
    return f"{_time(letter.time)}  {_address(letter)}  {failure.stage}: {failure.reason}"


def _described(letter: Letter) -> str:
    failure = letter.failure
    lines = [
        f"record   {_address(letter)}",
        f"stage    {failure.stage}",
        f"reason   {failure.reason}",
        f"failed   {_time(letter.time)}",
    ]
    for name, value in failure.original.items():
        lines += _shown(name, value)
    return "\n".join(lines)


def _shown(name: str, value: Any) -> Sequence[str]:
    if name == "headers" and isinstance(value, list):
        pairs = [h for h in value if isinstance(h, Mapping)]
        return [f"header   {h.get('key')} = {_preview(h.get('value'))}" for h in pairs]
    if isinstance(value, bytes):
        return [f"{name}    {len(value):,} bytes", _preview(value)]
    return [f"{name}    {value!r}" if not isinstance(value, (str, int)) else f"{name}    {value}"]


def _preview(value: Any) -> str:
    """Text as text, other bytes as a hex dump; the beginning of both."""
    if not isinstance(value, bytes):
        return "null" if value is None else str(value)
    head = value[:_PREVIEW_BYTES]
    more = f"\n… {len(value) - len(head):,} bytes more" if len(value) > len(head) else ""
    text = head.decode(errors="ignore")
    if text.isprintable() and len(text.encode()) > len(head) - 4:
        return text + more
    return _hex_dump(head) + more


def _hex_dump(data: bytes) -> str:
    rows = [data[i : i + 16] for i in range(0, len(data), 16)]
    return "\n".join(
        f"{16 * i:08x}  {row.hex(' '):<47}  {_printable(row)}" for i, row in enumerate(rows)
    )


def _printable(data: bytes) -> str:
    return "".join(chr(b) if 32 <= b < 127 else "." for b in data)


def _write_raw(letter: Letter) -> None:
    value = letter.failure.original.get("value")
    if not isinstance(value, bytes):
        kind = "null" if value is None else type(value).__name__
        raise ConfigError(f"the value of {_address(letter)} is no bytes but {kind}")
    sys.stdout.buffer.write(value)
    sys.stdout.buffer.flush()


def _time(seconds: float) -> str:
    return datetime.fromtimestamp(seconds, timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
