"""The command line: ``forebay run``, ``validate``, ``schema``, ``dlq``, and other packages' verbs.

Exit codes: 0 done (also after SIGTERM or Ctrl-C of a run, whose position was saved), 1 the
training function failed, 2 usage or configuration, 3 the source cannot be read, 4 records are
lost, 5 the error budget is spent, 6 the state or checkpoint does not fit, 7 a stage broke its
contract, 8 doctor --strict found something, 9 compare found a variant WRONG, 70 a bug of ours,
130 interrupted.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Sequence
from importlib.metadata import version

import click

from forebay.cli.common import Options
from forebay.cli.early import EARLY
from forebay.cli.exits import OK, tell
from forebay.cli.group import LazyGroup


@click.group(
    cls=LazyGroup,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
)
@click.version_option(version("forebay"), prog_name="forebay")
def cli() -> None:
    """Keeps GPUs full from live data: Kafka and Delta Lake into PyTorch, exactly once."""


def main(args: Sequence[str] | None = None) -> None:
    """Run the command line and leave the process with its exit code."""
    args = sys.argv[1:] if args is None else args
    if args[:1] == ["run"]:
        EARLY.arm(as_json="--json" in args)
    code = invoke(args)
    # The interpreter's last collections walk through all of torch: a second and more on a busy
    # machine, in which a scheduler's patience ends. What is frozen is not walked through. But
    # nanobind, in triton, which torch.optim imports, takes it for leaked and says so at length.
    if "triton" not in sys.modules:
        gc.freeze()
    sys.exit(code)


def invoke(args: Sequence[str]) -> int:
    """Run the command line; returns the exit code. Every error is told, none is raised."""
    options = Options()
    try:
        result = cli.main(list(args), prog_name="forebay", standalone_mode=False, obj=options)
    except click.exceptions.Exit as e:
        return e.exit_code
    except Exception as e:
        as_json = options.json or "--json" in args
        debug = options.debug or "--debug" in args
        return tell(e, as_json=as_json, debug=debug, secrets=options.secrets)
    except KeyboardInterrupt as e:
        return tell(e, as_json=options.json, debug=False)
    return result if isinstance(result, int) else OK
