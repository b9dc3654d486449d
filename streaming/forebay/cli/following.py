"""What ``dashboard``, ``top`` and ``doctor`` share: the targets that they follow."""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from inspect import cleandoc

import click

from forebay.cli.common import Options
from forebay.errors import ConfigError, SourceError
from forebay.observe.board import TargetSeen
from forebay.observe.following import Followed, follow
from forebay.observe.serving import DEFAULT_PORT

HERE = f"http://127.0.0.1:{DEFAULT_PORT}"
_VARIABLE = re.compile(r"\$\{(\w+)\}")


def followed(options: Options, targets: Sequence[str], interval: float = 1.0) -> Followed:
    """A board of the targets; without any, of the job whose dashboard is at the usual port."""
    return follow([from_environment(options, t) for t in targets] or [HERE], interval)


def from_environment(options: Options, text: str) -> str:
    """The text with each ``${NAME}`` replaced; what came in its place is kept out of messages.

    Raises:
        ConfigError: a variable is not set.
    """

    def value(found: re.Match[str]) -> str:
        name = found[1]
        if not os.environ.get(name):
            raise ConfigError(f"{text}: the environment variable {name} is not set")
        options.secrets.add(os.environ[name])
        return os.environ[name]

    return _VARIABLE.sub(value, text)


def says_default(command: click.Command) -> None:
    """Add to the command's help what it follows where no target is given."""
    command.help = f"{cleandoc(command.help or '')}\n\nWithout a TARGET it is {HERE}."


def check_reached(board: Followed) -> None:
    """Refuse to go on where no target told anything.

    Raises:
        SourceError: says of each why.
    """
    if not board.histories():
        raise unreached(board.targets())


def unreached(targets: Sequence[TargetSeen]) -> SourceError:
    """The error that nothing is heard of these targets: of each why, and what to give instead."""
    why = "; ".join(f"{t.name}: {t.trouble}" for t in targets)
    return SourceError(
        f"{why}. Give the address of a job that runs with --dashboard, or its state file"
    )
