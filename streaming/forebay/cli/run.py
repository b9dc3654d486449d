"""``forebay run``: a topology from its checkpoint to the end of the data, or to a signal."""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from forebay import checkpoint
from forebay.cli.common import (
    Options,
    common_options,
    described,
    engine_options,
    in_words,
    read_topology,
    set_up_logging,
)
from forebay.cli.early import EARLY
from forebay.cli.exits import UserCodeError
from forebay.errors import ForebayError
from forebay.observe.monitor import job_of_program
from forebay.observe.snapshot import JobSeen
from forebay.observe.watching import Watching
from forebay.progress import Outcome, Progress, Style
from forebay.topology import Topology
from forebay.training import Checkpoint, Stop, Stopper, TrainingLoader

_log = logging.getLogger("forebay")


@click.command()
@click.argument("topology", type=click.Path())
@engine_options
@click.option("--batches", type=click.IntRange(1), help="Stop after this many batches.")
@click.option(
    "--interval",
    type=click.FloatRange(0.1),
    default=5.0,
    show_default=True,
    help="Seconds between two lines of progress.",
)
@click.option(
    "--grace",
    type=click.FloatRange(0),
    default=1.0,
    show_default=True,
    help="Seconds that a training step may take to end after SIGTERM or Ctrl-C.",
)
@click.option(
    "--dashboard",
    metavar="[HOST]:PORT",
    help="Serve the dashboard, and /metrics for Prometheus, while it runs; on 127.0.0.1 unless a "
    "host is given.",
)
@click.option(
    "--record-trace",
    type=click.Path(),
    help="Write what an autoscaler sees, a line a second, to this file, for `forebay autoscale "
    "simulate`. A file that is there is kept, with .1 behind its name.",
)
@common_options
@click.pass_obj
def run(
    options: Options,
    topology: str,
    engine: str | None,
    address: str | None,
    batches: int | None,
    interval: float,
    grace: float,
    dashboard: str | None,
    record_trace: str | None,
) -> None:
    """Run the file TOPOLOGY: train, or without a training function drain the stream.

    With a checkpoint it goes on where the last run ended. SIGTERM or Ctrl-C end it in order:
    nothing more is read, the position is saved, the exit code is 0. A second one ends it at once.
    The position is saved, too, when the source or a stage ends the run with an error.
    """
    loaded = read_topology(options, topology, engine, address)
    set_up_logging(options)
    stopper = Stopper(grace)
    saved = ""
    metrics = loaded.metrics
    if dashboard is not None:
        metrics = replace(metrics, listen=dashboard)
    try:
        with ExitStack() as stack:
            stack.enter_context(stopper)
            EARLY.hand_over()
            if loaded.checkpoint is not None:
                stack.enter_context(checkpoint.exclusive(loaded.checkpoint.path))
            job = Job(loaded, stopper, batches, record_trace)
            stack.callback(job.loader.close)
            job.resume()
            saved = job.saved()
            watching = (
                Watching(job.loader, metrics, _job_seen(loaded, job)) if metrics.wanted else None
            )
            _say_what_begins(loaded, job, options, watching)
            with _watched(watching, stopper), _progress(job, stopper, options, interval):
                job.run()
    except Stop:
        pass  # before the first batch was asked for: there is nothing to save
    if stopper.signal is not None:
        event = {"event": "stopped", "signal": stopper.signal.name}
        options.emit(event, f"stopped by {stopper.signal.name}{saved}")


def _job_seen(loaded: Topology, job: Job) -> JobSeen:
    """Whose run it is, for those who watch it."""
    of_program = job_of_program(job.loader.options, loaded.name or Path(loaded.file).stem)
    return replace(
        of_program, topology=loaded.file, engine=loaded.engine, has_trainer=loaded.train is not None
    )


@contextmanager
def _watched(watching: Watching | None, stopper: Stopper) -> Iterator[None]:
    """Watch the run, and say in the end how it ended."""
    if watching is None:
        yield
        return
    watching.start()
    outcome: Outcome = "failed"
    try:
        yield
        outcome = "done"
    finally:
        watching.stop(outcome if stopper.signal is None else "stopped")


def _say_what_begins(
    loaded: Topology, job: Job, options: Options, watching: Watching | None
) -> None:
    """The first lines, before anything is read: a source may take long to give its first batch."""
    what = described(loaded)
    url = None if watching is None else watching.url
    event = {"event": "started", **what, "resumed": job.resumed, "dashboard": url}
    if url is not None and not options.json:
        click.echo(f"dashboard: {url}")
    begin = f", goes on from {what['checkpoint']}" if job.resumed else ""
    options.emit(event, f"reading {loaded.file}: {in_words(what)}{begin}")
    sys.stdout.flush()


@contextmanager
def _progress(job: Job, stopper: Stopper, options: Options, interval: float) -> Iterator[None]:
    """Show progress while it runs, and a summary in the end that says how it ended."""
    progress = Progress(
        job.loader,
        Console(),
        style=_style(options),
        interval=interval,
        has_trainer=job.has_trainer,
    )
    progress.start()
    outcome: Outcome = "done"
    try:
        yield
    except Exception:
        outcome = "failed"
        raise
    finally:
        progress.stop(outcome if stopper.signal is None else "stopped")
        if job.saved_after_error:
            options.emit({"event": "saved"}, f"what was delivered is saved{job.saved()}")


class Job:
    """One run of a topology in this process."""

    def __init__(
        self,
        topology: Topology,
        stopper: Stopper,
        batches: int | None,
        record_trace: str | None = None,
    ) -> None:
        self._topology, self._stopper = topology, stopper
        self.resumed = False
        """Whether it goes on from a checkpoint of ours."""
        self.saved_after_error = False
        """Whether an error ended it, and the position was saved nevertheless."""
        commits = topology.loader_options.get("state_of") == "committed"
        recorded = {} if record_trace is None else {"record_trace": record_trace}
        self.loader = TrainingLoader(
            topology.loader(state_of="committed", **recorded),
            stopper,
            commits=commits,
            after_step=self._after_step,
            limit=batches,
        )

    @property
    def has_trainer(self) -> bool:
        """Whether a training function runs, or the stream is only drained."""
        return self._topology.train is not None

    @property
    def _saves_position(self) -> bool:
        """Whether the position is ours to save: no function that keeps it with its model."""
        train = self._topology.train
        return self._topology.checkpoint is not None and not (train and train.wants_checkpoint)

    def resume(self) -> None:
        """Go on from the checkpoint, if there is one."""
        if self._saves_position and self._topology.checkpoint is not None:
            path = self._topology.checkpoint.path
            state = checkpoint.load(path, run=self._topology.name)
            if state is not None:
                self.loader.load_state_dict(state)
                self.resumed = True

    def run(self) -> None:
        """Train or drain until the data ends or the run is to stop, then save the position.

        An error of the source or of a stage leaves a position, too: that behind the last step.
        Not so one of the training function, whose last step is in doubt.
        """
        try:
            self._train() if self._topology.train else self._drain()
            self._stopper.finish()
        except Stop:
            self._stopper.finish()
            self.loader.abandon_step()
        except Exception:
            self._stopper.finish()
            self._save_what_was_delivered()
            raise
        if self._saves_position:
            self._save()

    def saved(self) -> str:
        """Where the position is, in words."""
        kept = self._topology.checkpoint
        return f"; the position is in {kept.path}" if kept and self._saves_position else ""

    def _drain(self) -> None:
        for _ in self.loader:
            continue

    def _train(self) -> None:
        train, kept = self._topology.train, self._topology.checkpoint
        assert train is not None
        options: dict[str, Any] = dict(train.options)
        if train.wants_checkpoint:
            options["checkpoint"] = kept and Checkpoint(
                kept.path, self.loader, every=kept.every, run=self._topology.name
            )
        _called(lambda: train.function(self.loader, **options), train.function)

    def _after_step(self, batches: int) -> None:
        kept = self._topology.checkpoint
        if kept is not None and self._saves_position and batches % kept.every == 0:
            self._save()

    def _save_what_was_delivered(self) -> None:
        """Save the position after an error, where it is not the training function's.

        A run that was given nothing has nothing to save: started again and again by a scheduler
        it must not replace the checkpoint before by a copy of the newest.
        """
        failed_in_loader = self.loader.error is not None
        if not (self._saves_position and failed_in_loader and self.loader.batches):
            return
        try:
            self._save()
        except ForebayError as e:  # the error that ended the run is told, this one comes of it
            _log.error("the position could not be saved: %s", e)
        else:
            self.saved_after_error = True

    def _save(self) -> None:
        kept = self._topology.checkpoint
        assert kept is not None
        state = self.loader.state_dict()
        with self.loader.pause("checkpoint"):
            checkpoint.save(kept.path, state, run=self._topology.name)


def _called(call: Callable[[], object], function: Any) -> None:
    try:
        call()
    except ForebayError:
        raise
    except Exception as e:
        name = f"{function.__module__}:{getattr(function, '__qualname__', function)}"
        raise UserCodeError(f"{name} raised {type(e).__name__}: {e}") from e


def _style(options: Options) -> Style:
    if options.json:
        return "json"
    return "table" if sys.stdout.isatty() else "lines"
