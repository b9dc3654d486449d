"""``forebay autoscale simulate``: how policies would have sized a run, in virtual time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.table import Table

from forebay.autoscale import read_trace
from forebay.autoscale.baselines import CONTENDERS
from forebay.autoscale.plot import picture
from forebay.autoscale.scenario import Scenario, recorded, scenarios
from forebay.autoscale.simulate import Outcome, simulate
from forebay.cli.common import Options, common_options
from forebay.errors import ConfigError


@click.group()
def autoscale() -> None:
    """See what the autoscaler would do."""


@autoscale.command("simulate")
@click.argument("trace", type=click.Path(), required=False)
@click.option(
    "--policy",
    "policies",
    type=click.Choice(sorted(CONTENDERS)),
    multiple=True,
    help="Only these; cpu-use, lag-only and ray-data are what others do.  [default: all]",
)
@click.option(
    "--scenario",
    "names",
    type=click.Choice(sorted(scenarios())),
    multiple=True,
    help="Without a TRACE: only these of the scenarios that are built in.  [default: all]",
)
@click.option("--price", type=click.FloatRange(0), help="Of a worker-second, in starved seconds.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the service times.")
@click.option("--decisions", is_flag=True, help="List every change with its reason.")
@click.option("--plot", type=click.Path(), help="Draw the runs of one scenario into this SVG.")
@common_options
@click.pass_obj
def simulate_command(
    options: Options,
    trace: str | None,
    policies: Sequence[str],
    names: Sequence[str],
    price: float | None,
    seed: int,
    decisions: bool,
    plot: str | None,
) -> None:
    """Run policies on TRACE, which `forebay run --record-trace` made, or on built-in scenarios.

    The score is the seconds in which the trainer starved, plus worker-seconds at their price, plus
    changes of direction. Less is better.
    """
    chosen = _scenarios(trace, names)
    if plot is not None and len(chosen) != 1:
        raise ConfigError("--plot draws one scenario: name it with --scenario, or give a TRACE")
    for scenario in chosen:
        priced = scenario if price is None else scenario.priced(price)
        outcomes = {
            name: simulate(priced, make(priced), seed=seed)
            for name, make in CONTENDERS.items()
            if not policies or name in policies
        }
        _show(options, priced, outcomes, decisions=decisions)
        if plot is not None:
            _write(plot, picture(scenario.name, outcomes))


def _scenarios(trace: str | None, names: Sequence[str]) -> list[Scenario]:
    if trace is not None and names:
        raise ConfigError("give a TRACE or --scenario, not both")
    if trace is not None:
        return [recorded(Path(trace).name, read_trace(trace))]
    known = scenarios()
    return [known[name] for name in names or known]


def _show(
    options: Options, scenario: Scenario, outcomes: Mapping[str, Outcome], *, decisions: bool
) -> None:
    if options.json:
        for name, outcome in outcomes.items():
            options.emit(_event(name, outcome, decisions=decisions), "")
        return
    console = Console()
    console.print(_table(scenario, outcomes))
    for name, outcome in outcomes.items() if decisions else ():
        for at, d in outcome.changes:
            console.out(f"{name} at {at:,.0f} s: {d.pool} to {d.workers}: {d.reason}")


def _table(scenario: Scenario, outcomes: Mapping[str, Outcome]) -> Table:
    grid = Table(title=f"{scenario.name}, {scenario.seconds:,.0f} s", title_justify="left")
    grid.add_column("policy")
    for label in ("score", "starved s", "worker-seconds", "flips", "rows"):
        grid.add_column(label, justify="right")
    for name, o in sorted(outcomes.items(), key=lambda pair: pair[1].score):
        grid.add_row(
            name,
            f"{o.score:,.1f}",
            f"{o.starved_seconds:,.1f}",
            f"{o.worker_seconds:,.0f}",
            f"{o.flips}",
            f"{o.rows:,}",
        )
    return grid


def _event(name: str, o: Outcome, *, decisions: bool) -> dict[str, Any]:
    event = {
        "event": "simulated",
        "scenario": o.scenario,
        "policy": name,
        "score": o.score,
        "starved_seconds": o.starved_seconds,
        "worker_seconds": o.worker_seconds,
        "flips": o.flips,
        "rows": o.rows,
    }
    if decisions:
        event["decisions"] = [
            {"at": at, "pool": d.pool, "workers": d.workers, "reason": d.reason}
            for at, d in o.changes
        ]
    return event


def _write(path: str, text: str) -> None:
    try:
        Path(path).write_text(text)
    except OSError as e:
        raise ConfigError(f"{path} cannot be written: {e.strerror}") from e
