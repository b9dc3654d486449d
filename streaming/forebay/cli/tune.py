"""``forebay tune``: workers and prefetch for a topology, found by short runs."""

from __future__ import annotations

import math
from dataclasses import asdict

import click
from rich.console import Console
from rich.table import Table

from forebay.cli.common import Options, common_options, read_topology
from forebay.cli.exits import Interrupted
from forebay.compare.tuning import GAIN, Setting, Trial, Tuned, setting_of, tune
from forebay.compare.worker import Worker
from forebay.cpus import cpu_share
from forebay.progress import UNKNOWN
from forebay.statistics import shown
from forebay.training import Stop, Stopper


@click.command("tune")
@click.argument("topology", type=click.Path())
@click.option(
    "--seconds",
    type=click.FloatRange(10),
    default=50.0,
    show_default=True,
    help="How long to search, about.",
)
@click.option("--drain", is_flag=True, help="Leave the training function out.")
@click.option(
    "--most-workers",
    type=click.IntRange(1),
    help="Try no more.  [default: 16 for each CPU]",
)
@common_options
@click.pass_obj
def tune_command(
    options: Options, topology: str, seconds: float, drain: bool, most_workers: int | None
) -> None:
    """Find how many workers and how much prefetch make TOPOLOGY fast, and print the lines for it.

    Short runs, in a process of their own, read from where the source begins; they write nothing,
    and with a training function it is trained with. A gain is claimed only where it is beyond the
    noise. Ctrl-C or SIGTERM ends it with what was measured until then, of which nothing is claimed.
    """
    loaded = read_topology(options, topology)
    cpus = max(2, math.ceil(cpu_share()))
    before = setting_of(loaded, cpus)
    most = max(most_workers or 16 * cpus, before.workers)
    with Stopper() as stopper:
        with Worker() as worker:
            try:
                tuned = tune(
                    loaded,
                    worker,
                    seconds=seconds,
                    before=before,
                    most_workers=most,
                    stopper=stopper,
                    drain=drain,
                    tell=lambda trial: _say(options, trial),
                )
            except Stop:
                raise Interrupted("nothing was measured yet") from None
        if not options.json:
            _show(tuned)
        options.emit({"event": "tuned", **_as_json(tuned)}, _in_words(tuned))


def _say(options: Options, trial: Trial) -> None:
    workers, prefetch = trial.setting
    speed = trial.run.rows_per_second
    text = f"workers {workers}, prefetch {prefetch}: {shown(speed)} rows/s"
    event = {"workers": workers, "prefetch": prefetch, "run": asdict(trial.run)}
    options.emit({"event": "trial", **event}, text)


def _show(tuned: Tuned) -> None:
    table = Table("workers", "prefetch", "rows/s", "starved", "runs")
    settings = sorted({trial.setting for trial in tuned.trials})
    for setting in settings:
        runs = [t.run for t in tuned.trials if t.setting == setting]
        speed = sum(run.rows_per_second for run in runs) / len(runs)
        starved = [run.starved for run in runs if run.starved is not None]
        share = f"{100 * sum(starved) / len(starved):.0f} %" if starved else UNKNOWN
        table.add_row(
            str(setting.workers), str(setting.prefetch), shown(speed), share, str(len(runs))
        )
    Console().print(table)


def _in_words(tuned: Tuned) -> str:
    what = "trains" if tuned.mode == "train" else "reads"
    now = _named(tuned.before)
    if tuned.interrupted:
        runs = "1 run" if len(tuned.trials) == 1 else f"{len(tuned.trials)} runs"
        return f"It was interrupted: by {runs} no setting is shown to be better than {now}."
    if tuned.better:
        assert tuned.gain is not None
        gain = tuned.gain
        return (
            f"{_named(tuned.chosen)} {what} {gain.value:.2f} times ({gain.low:.2f} to "
            f"{gain.high:.2f}) the rows/s of {now}, which the topology has. Put into it:\n\n"
            f"{tuned.chosen.yaml}"
        )
    if tuned.gain is None:
        return f"Of what was tried nothing {what} faster than {now}: leave it as it is."
    return (
        f"Nothing was shown to be worth a change: {_named(tuned.found)} {what} "
        f"{tuned.gain.value:.2f} times ({tuned.gain.low:.2f} to {tuned.gain.high:.2f}) the rows/s "
        f"of {now}; {1 + GAIN:.2f} or more, beyond the noise, would be."
    )


def _named(setting: Setting) -> str:
    return f"workers {setting.workers}, prefetch {setting.prefetch}"


def _as_json(tuned: Tuned) -> dict[str, object]:
    return {
        "mode": tuned.mode,
        "before": tuned.before._asdict(),
        "workers": tuned.chosen.workers,
        "prefetch": tuned.chosen.prefetch,
        "better": tuned.better,
        "gain": None if tuned.gain is None else tuned.gain.to_json(),
        "trials": len(tuned.trials),
        "seconds": tuned.seconds,
        "interrupted": tuned.interrupted,
    }
