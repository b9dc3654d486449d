"""How commands end: one message for a known error, and an exit code that scripts can use."""

from __future__ import annotations

import json
import traceback
from collections.abc import Iterable
from typing import Any

import click

from forebay.errors import (
    ConfigError,
    DataLossError,
    ErrorBudgetExceeded,
    ForebayError,
    SourceError,
    StageError,
    StateError,
)
from forebay.topology.problems import TopologyError
from forebay.topology.secret import redacted

OK = 0
FAILED = 1
USAGE = 2
SOURCE = 3
DATA_LOSS = 4
BUDGET = 5
STATE = 6
STAGE = 7
WRONG = 9
INTERNAL = 70
INTERRUPTED = 130

# The first that fits: the most specific error stands before its base.
_CODES: tuple[tuple[type[ForebayError], int], ...] = (
    (ConfigError, USAGE),
    (DataLossError, DATA_LOSS),
    (SourceError, SOURCE),
    (ErrorBudgetExceeded, BUDGET),
    (StateError, STATE),
    (StageError, STAGE),
    (ForebayError, FAILED),
)


class UserCodeError(Exception):
    """The user's training function raised; its cause is what it raised."""


class Interrupted(Exception):
    """A signal came before there was anything to tell; says what is missing."""


def code_of(error: BaseException) -> int:
    """The exit code that an error ends a command with."""
    if isinstance(error, click.ClickException):
        return USAGE
    if isinstance(error, (KeyboardInterrupt, click.Abort, Interrupted)):
        return INTERRUPTED
    if isinstance(error, UserCodeError):
        return FAILED
    return next((code for kind, code in _CODES if isinstance(error, kind)), INTERNAL)


def tell(error: BaseException, *, as_json: bool, debug: bool, secrets: Iterable[str] = ()) -> int:
    """Say what went wrong, on standard error and with ``as_json`` on standard output, too.

    Returns:
        The exit code.
    """
    code, secrets = code_of(error), tuple(secrets)
    cause = error.__cause__ if isinstance(error, UserCodeError) else error
    message = redacted(_message(error), secrets)
    if debug or code == INTERNAL or isinstance(error, UserCodeError):
        lines = traceback.format_exception(cause)
        click.echo(redacted("".join(lines), secrets), err=True, nl=False)
    if code == INTERNAL:
        message += "\nThis is a bug of Forebay's: please report it with the lines above."
    if isinstance(error, TopologyError):
        # Each problem begins with file:line:column, where editors look for it.
        n = len(error.problems)
        problems = "1 problem" if n == 1 else f"{n} problems"
        click.echo(f"{message}\nerror: {problems} in the topology", err=True)
    else:
        click.echo(f"error: {message}", err=True)
    if as_json:
        click.echo(json.dumps(_event(error, cause, message, code), ensure_ascii=False))
    return code


def _message(error: BaseException) -> str:
    if isinstance(error, click.ClickException):
        return error.format_message()
    if isinstance(error, (KeyboardInterrupt, click.Abort)):
        return "interrupted"
    if isinstance(error, Interrupted):
        return f"interrupted: {error}"
    if isinstance(error, UserCodeError):
        return str(error)
    if isinstance(error, ForebayError):
        return str(error)
    return f"{type(error).__name__}: {error}"


def _event(
    error: BaseException, cause: BaseException | None, message: str, code: int
) -> dict[str, Any]:
    event = {
        "event": "error",
        "error": type(cause or error).__name__,
        "message": message,
        "exit_code": code,
    }
    if isinstance(error, TopologyError):
        event["problems"] = [
            {
                "file": p.place.file,
                "line": p.place.line,
                "column": p.place.column,
                "key": p.path,
                "text": p.text,
            }
            for p in error.problems
        ]
    return event
