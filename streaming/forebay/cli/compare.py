"""``forebay compare``: one-factor A/B runs of a topology, as a report."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from forebay.cli.common import Options, common_options, importable_from
from forebay.cli.exits import OK, WRONG, Interrupted
from forebay.compare.judging import Judged, judge
from forebay.compare.matrix import Matrix, read_matrix
from forebay.compare.reporting import save, summary, told, variant_json
from forebay.compare.rounds import Fresh, Results, number_of_runs, run_all
from forebay.diagnose.environment import environment
from forebay.progress import UNKNOWN
from forebay.training import Stop, Stopper


@click.command()
@click.argument("matrix", type=click.Path())
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder for the report.  [default: the name of MATRIX with -report]",
)
@common_options
@click.pass_context
def compare(context: click.Context, matrix: str, out: Path | None) -> None:
    """Compare the topology of the file MATRIX with variants that differ in one key each.

    Every run reads the same records in a process of its own; variants take turns. A variant whose
    rows differ from the baseline's is WRONG, whatever its speed; the exit code is 9 then. Nothing
    but the report is written. Ctrl-C or SIGTERM ends it with the report of the complete rounds.
    """
    options = context.find_object(Options) or Options()
    importable_from(matrix)
    read = read_matrix(matrix, importable_from=importable_from)
    options.secrets |= read.secrets
    _say_what_begins(options, read)
    with Stopper() as stopper:
        results = _run(options, read, stopper)
        judged = judge(results)
        _tell(options, results, judged, out or Path(f"{Path(matrix).stem}-report"))
    context.exit(WRONG if any(j.judgement == "WRONG" for j in judged) else OK)


def _run(options: Options, matrix: Matrix, stopper: Stopper) -> Results:
    runner = Fresh(matrix.settings.timeout)
    with TemporaryDirectory(prefix="forebay-compare-") as rows:
        try:
            return run_all(matrix, Path(rows), runner, lambda what: _say(options, what), stopper)
        except Stop:
            raise Interrupted("no round is complete, so there is nothing to report") from None


def _tell(options: Options, results: Results, judged: list[Judged], folder: Path) -> None:
    """Write the report, and say what was found and where it is."""
    page = save(results, judged, environment(results.matrix.baseline), folder)
    for variant in judged if options.json else ():
        options.emit({"event": "variant", **variant_json(variant)}, "")
    if not options.json:
        _show(judged)
    found = summary(results, judged)
    event = {"event": "compared", "summary": found, "partial": results.partial}
    options.emit({**event, "report": str(page)}, f"{found}\n{page}")


def _say_what_begins(options: Options, matrix: Matrix) -> None:
    runs, n = number_of_runs(matrix), len(matrix.variants) - 1
    variants = "1 variant" if n == 1 else f"{n} variants"
    text = f"{variants} of {matrix.settings.topology} and the baseline: {runs} runs"
    options.emit({"event": "started", "variants": n, "runs": runs}, text)
    for name in matrix.same:
        options.emit({"event": "same", "variant": name}, f"{name} is what the file says: left out")


def _say(options: Options, what: str) -> None:
    options.emit({"event": "running", "what": what}, what)


def _show(judged: list[Judged]) -> None:
    table = Table("variant", "rows/s", "times the baseline", "verdict")
    for variant in judged:
        figures = variant.decisive
        alone = figures is None or variant.judgement == "baseline"
        table.add_row(
            escape(variant.name),
            UNKNOWN if figures is None else told(figures.rows_per_second),
            UNKNOWN if figures is None or alone else told(figures.ratio),
            variant.judgement,
        )
    Console().print(table)
    for variant in judged:
        if variant.judgement in ("WRONG", "failed"):
            click.echo(f"{variant.name}: {variant.why}")
