"""The command line's top: our commands and those of other packages, imported when asked for."""

from __future__ import annotations

from collections.abc import Mapping
from importlib import import_module
from typing import Any

import click

from forebay.errors import ConfigError
from forebay.plugins import Plugins

# name: (module, attribute, what --help says of it without importing it)
OWN: Mapping[str, tuple[str, str, str]] = {
    "run": ("forebay.cli.run", "run", "Run a topology: train, or drain the stream."),
    "validate": ("forebay.cli.validate", "validate", "Check a topology file, start nothing."),
    "schema": ("forebay.cli.validate", "schema", "Print the JSON Schema of topology files."),
    "compare": ("forebay.cli.compare", "compare", "Compare a topology with variants of it."),
    "tune": ("forebay.cli.tune", "tune_command", "Find workers and prefetch for a topology."),
    "dlq": ("forebay.cli.dlq", "dlq", "Look at dead letters, and run them again."),
    "dashboard": (
        "forebay.cli.dashboard",
        "dashboard",
        "Serve a page that shows running jobs.",
    ),
    "top": ("forebay.cli.top", "top", "Show running jobs in this terminal."),
    "autoscale": (
        "forebay.cli.autoscale",
        "autoscale",
        "Simulate what the autoscaler would do.",
    ),
    "doctor": ("forebay.cli.doctor", "doctor", "Why is my GPU idle? One sentence, and why."),
    "demo": ("forebay.cli.demo", "demo", "Train on live data, be killed, resume, and count it."),
}
COMMANDS = Plugins("forebay.commands", "command")
# Help for the commands that come with our own connectors, which are not imported for it either.
_HELP: Mapping[str, str] = {
    "dev-broker": "Start a small Kafka broker for development and tests.",
}


class LazyGroup(click.Group):
    """Lists commands without importing them; a broken one hurts only who asks for it."""

    own: Mapping[str, tuple[str, str, str]] = OWN
    plugins = COMMANDS
    help_of: Mapping[str, str] = _HELP

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted({*self.own, *self.plugins.names()})

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name in self.own:
            module, attribute, _ = self.own[cmd_name]
            found: Any = getattr(import_module(module), attribute)
        elif cmd_name in self.plugins.names():
            found = self.plugins.load(cmd_name)
        else:
            return None
        if not isinstance(found, click.Command):
            package = self.plugins.origin(cmd_name)
            raise ConfigError(
                f"the {self.plugins.what} {cmd_name!r} of package {package} is no click command "
                f"but {type(found).__name__}; update or uninstall the package"
            )
        return found

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        # Without this click answers a mistyped command without naming the near ones.
        name = args[0]
        if not name.startswith("-") and name not in self.list_commands(ctx):
            near = Plugins("", self.plugins.what, dict.fromkeys(self.list_commands(ctx)))
            raise click.UsageError(near.unknown(name), ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        rows = [(name, self._short_help(name)) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl(rows)

    def _short_help(self, name: str) -> str:
        if name in self.own:
            return self.own[name][2]
        package = self.plugins.origin(name)
        return self.help_of.get(name, "") if package == "forebay" else f"(from package {package})"
