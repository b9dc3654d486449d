"""What a class or function can be given: names, types, defaults and words, from its signature.

Thus the options of a third party's source are checked like our own, without a schema of theirs.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass, is_dataclass
from functools import lru_cache
from itertools import pairwise
from types import SimpleNamespace
from typing import Any

from typing_extensions import Unpack

_MISSING = inspect.Parameter.empty


@dataclass(frozen=True, slots=True)
class Parameter:
    """One thing that can be given by name."""

    name: str
    hint: Any
    required: bool
    default: Any = None
    doc: str = ""


@dataclass(frozen=True, slots=True)
class Parameters:
    """All that a callable can be given by name."""

    known: Mapping[str, Parameter]
    open: bool
    """Whether any other name is taken, too (``**options``)."""


def parameters(target: Callable[..., Any], *, skip: int = 0) -> Parameters:
    """What ``target`` can be given by name, less its first ``skip`` parameters."""
    found: dict[str, Parameter] = {}
    is_open = False
    hints, docs = _hints(target), _docs(target)
    for p in list(inspect.signature(target).parameters.values())[skip:]:
        hint = hints.get(p.name, Any)
        if p.kind is p.VAR_KEYWORD:
            options = _unpacked(hint)
            is_open = options is None
            for name, option in (options or {}).items():
                found[name] = Parameter(name, option, False, doc=docs.get(name, ""))
        elif p.kind in (p.POSITIONAL_OR_KEYWORD, p.KEYWORD_ONLY):
            required = p.default is _MISSING
            default = None if required else p.default
            found[p.name] = Parameter(p.name, hint, required, default, docs.get(p.name, ""))
    return Parameters(found, is_open)


def _hints(target: Callable[..., Any]) -> Mapping[str, Any]:
    """The evaluated annotations; one that cannot be evaluated is ``Any``, not an error."""
    of: Any = target
    if inspect.isclass(target) and not is_dataclass(target):
        of = target.__init__
    elif not inspect.isclass(target) and not inspect.isroutine(target):
        of = type(target).__call__
    try:
        return typing.get_type_hints(of, include_extras=True)
    except (NameError, TypeError, AttributeError):
        names = getattr(of, "__globals__", None) or vars(sys.modules[of.__module__])
        annotations = getattr(of, "__annotations__", {})
        return {name: _hint(a, names) for name, a in annotations.items()}


def _hint(annotation: Any, names: dict[str, Any]) -> Any:
    holder = SimpleNamespace(__annotations__={"it": annotation})
    # Often imported for type checkers only; without it the options would go unchecked.
    names = {"Unpack": Unpack, **names}
    try:
        return typing.get_type_hints(holder, globalns=names, include_extras=True)["it"]
    except (NameError, TypeError, AttributeError):
        return Any


def _unpacked(hint: Any) -> Mapping[str, Any] | None:
    """The options of ``**options: Unpack[Options]``; None if any are taken."""
    for options in typing.get_args(hint):
        if typing.is_typeddict(options):
            return typing.get_type_hints(options)
    return None


def _docs(target: Callable[..., Any]) -> Mapping[str, str]:
    """What is said about each parameter: below a field, or in the ``Args:`` of the docstring."""
    docs = _of_args(inspect.getdoc(target) or "")
    if isinstance(target, type):
        docs = {**_of_fields(target), **docs}
    else:
        made = _hints(target).get("return")
        if isinstance(made, type) and is_dataclass(made):
            docs = {**_of_fields(made), **docs}
    return docs


def _of_args(doc: str) -> dict[str, str]:
    section = re.search(r"^Args:\n((?:[ ]+.*\n?|\n)+)", doc, re.MULTILINE)
    if section is None:
        return {}
    entries = re.split(r"^(\w+): ", textwrap.dedent(section[1]), flags=re.MULTILINE)[1:]
    pairs = zip(entries[::2], entries[1::2], strict=True)
    return {name: " ".join(text.split()) for name, text in pairs}


@lru_cache(maxsize=256)
def _of_fields(cls: Any) -> dict[str, str]:
    """The strings below the fields of a class."""
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(cls)))
    except (OSError, TypeError, SyntaxError):  # its source is not at hand
        return {}
    docs: dict[str, str] = {}
    body = tree.body[0].body if isinstance(tree.body[0], ast.ClassDef) else []
    for field, below in pairwise(body):
        if not isinstance(field, ast.AnnAssign) or not isinstance(below, ast.Expr):
            continue
        if isinstance(field.target, ast.Name) and isinstance(below.value, ast.Constant):
            docs[field.target.id] = " ".join(str(below.value.value).split())
    return docs
