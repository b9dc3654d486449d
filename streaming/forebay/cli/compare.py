"""``forebay compare``: one-factor A/B runs of a topology, as a report."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from forebay.cli.common import Options, common_options, importable_from
from forebay.compare.judging import Judged, judge
from forebay.compare.matrix import Matrix, read_matrix
from forebay.compare.reporting import save, summary, variant_json
from forebay.compare.rounds import Fresh, run_all
from forebay.diagnose.environment import environment
from forebay.progress import UNKNOWN


@click.command()
@click.argument("matrix", type=click.Path())
@click.option(
    "--out",
    type=click.Path(file_okay=False, path_type=Path),
    help="The folder for the report.  [default: the name of MATRIX with -report]",
)
@common_options
@click.pass_obj
def compare(options: Options, matrix: str, out: Path | None) -> None:
    """Compare the topology of the file MATRIX with variants that differ in one key each.

    Every run reads the same records in a process of its own; variants take turns. A variant whose
    rows differ from the baseline's is WRONG, whatever its speed. Nothing but the report is written.
    """
    importable_from(matrix)
    read = read_matrix(matrix, importable_from=importable_from)
    options.secrets |= read.secrets
    _say_what_begins(options, read)
    with TemporaryDirectory(prefix="forebay-compare-") as rows:
        results = run_all(
            read, Path(rows), Fresh(read.settings.timeout), lambda what: _say(options, what)
        )
    judged = judge(results)
    folder = out or Path(f"{Path(matrix).stem}-report")
    page = save(results, judged, environment(read.baseline), folder)
    for variant in judged if options.json else ():
        options.emit({"event": "variant", **variant_json(variant)}, "")
    if not options.json:
        _show(judged)
    found = summary(results, judged)
    options.emit({"event": "compared", "summary": found, "report": str(page)}, f"{found}\n{page}")


def _say_what_begins(options: Options, matrix: Matrix) -> None:
    modes = 2 if matrix.trains else 1
    runs = len(matrix.variants) * matrix.settings.repeats * modes
    n = len(matrix.variants) - 1
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
            UNKNOWN if figures is None else str(figures.rows_per_second),
            UNKNOWN if figures is None or alone else str(figures.ratio),
            variant.judgement,
        )
    Console().print(table)
    for variant in judged:
        if variant.judgement in ("WRONG", "failed"):
            click.echo(f"{variant.name}: {variant.why}")
