"""Errors that travel between processes as values: Ray must never see one raised."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ray import cloudpickle

from forebay.errors import ConfigError, ForebayError


@dataclass(frozen=True, slots=True)
class Carried:
    """An error as its class, arguments and fields: several of ours cannot be made from the
    message alone, which is all that pickling an exception keeps."""

    content: bytes
    text: str

    @classmethod
    def of(cls, error: BaseException) -> Carried:
        """Pack an error; one that cannot be pickled keeps its text."""
        text = f"{type(error).__name__}: {error}"
        try:
            content = cloudpickle.dumps((type(error), error.args, vars(error)))
        except Exception:  # pickling runs the error's own code, which can raise anything
            content = b""
        return cls(content, text)

    def error(self) -> BaseException:
        """The error, to be raised here."""
        if not self.content:
            return ForebayError(self.text)
        kind, arguments, fields = cloudpickle.loads(self.content)
        error: BaseException = kind.__new__(kind)
        error.args = arguments
        _set_fields(error, fields)
        return error


def unloadable(who: str, what: str, error: Exception) -> ConfigError:
    """Say that a process of the cluster lacks what it is to run."""
    return ConfigError(
        f"{who} cannot load {what}: {type(error).__name__}: {error}. Install what it imports "
        "on every node, or give RayEngine a runtime_env that brings it."
    )


def _set_fields(error: BaseException, fields: dict[str, Any]) -> None:
    for name, value in fields.items():
        setattr(error, name, value)
