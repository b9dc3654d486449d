"""``forebay demo``: the demos of the connectors; without a name, the one on Kafka."""

from __future__ import annotations

from collections.abc import Mapping

import click

from forebay.cli.group import LazyGroup
from forebay.plugins import Plugins

DEFAULT = "kafka"
DEMOS = Plugins("forebay.demos", "demo")
_HELP: Mapping[str, str] = {
    "delta": "Train on a Delta table that is appended to, updated and compacted meanwhile.",
    "kafka": "Train on live images from a topic (the default).",
}


class _Demos(LazyGroup):
    """Takes options without a name as those of the default demo."""

    own: Mapping[str, tuple[str, str, str]] = {}
    plugins = DEMOS
    help_of = _HELP

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        asks_for_help = bool(args) and args[0] in ctx.help_option_names
        if not asks_for_help and (not args or args[0].startswith("-")):
            args = [DEFAULT, *args]
        return super().parse_args(ctx, args)


@click.group(cls=_Demos)
def demo() -> None:
    """Train on live data, be killed, resume, and count every record.

    Without a name the Kafka demo plays: forebay demo --images 3000. What each can be told:
    forebay demo NAME --help.
    """
