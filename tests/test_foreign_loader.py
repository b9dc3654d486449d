"""Any DataLoader, examined: what limits it is found by experiments, and nothing hangs with it."""

from __future__ import annotations

import json
import re
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests import foreign_loaders
from tests.cli_support import Workshop

from forebay.diagnose.foreign import ForeignFindings, examine
from forebay.diagnose.foreign.loading import load
from forebay.errors import ConfigError
from forebay.observe.memory import memory_of
from forebay.report import Report
from forebay.training import Stop, Stopper


def examined(name: str, **options: Any) -> ForeignFindings:
    options = {"steps": 5, "seconds": 0.2, "repeats": 3, "vary": (), **options}
    return examine(f"tests.foreign_loaders:{name}", **options)


def assert_ended(found: ForeignFindings) -> None:
    """The processes that the evidence names are gone; the test's timeout is the limit."""
    pids = re.findall(r"\(pid (\d+)\)", "\n".join(found.evidence))
    assert pids
    while any(memory_of(int(pid)) for pid in pids):
        time.sleep(0.05)


def test_too_few_workers_are_found_and_enough_are_named(tmp_path: Path) -> None:
    found = examined("slow", step_seconds=0.01, vary=("num_workers",))
    assert found.cause == "workers" and not found.healthy
    assert found.starved is not None and 0.3 < found.starved < 0.7
    assert found.arguments["num_workers"] >= 2
    assert found.call == f"DataLoader(..., num_workers={found.arguments['num_workers']})"
    assert "Too few workers".lower() in found.sentence
    assert json.loads(json.dumps(found.to_json()))["cause"] == "workers"
    report = Report("x")
    found.report(report)
    assert found.call in (report.save(tmp_path) / "report.md").read_text()


def test_a_loader_that_keeps_up_gets_no_advice() -> None:
    found = examined("healthy", vary=("num_workers", "prefetch_factor"))
    assert found.cause == "healthy" and found.healthy
    assert (found.advice, found.call, found.guesses) == ("", "", ())


def test_workers_that_start_anew_with_each_epoch_are_found() -> None:
    found = examined("restarting", vary=("persistent_workers",))
    assert found.cause == "restart"
    assert found.arguments == {"persistent_workers": True}
    assert any("Beginning an epoch took" in line for line in found.evidence)


def test_a_worker_that_hangs_is_named_with_its_place_and_whether_the_fork_is_the_reason() -> None:
    found = examined("locked", patience=3.0)
    assert found.cause == "hang"
    assert "worker 1" in found.sentence and "in with_lock" in found.sentence
    assert any("worker 0" in line and "nothing to do" in line for line in found.evidence)
    assert found.arguments == {"multiprocessing_context": "forkserver"}
    assert any("while other threads run" in line for line in found.guesses)
    assert_ended(found)


def test_a_dataset_that_hangs_by_itself_is_told_as_that_and_nothing_is_left_of_it() -> None:
    found = examined("hanging", patience=3.0)
    assert found.cause == "hang" and "the main process" in found.sentence
    assert "foreign_loaders.py" in found.sentence and "in __getitem__" in found.sentence
    assert found.arguments == {} and "without workers, too" in found.advice
    assert_ended(found)


def test_memory_that_a_dataset_keeps_is_seen_to_grow() -> None:
    found = examined("leaking", seconds=0.25)
    assert found.cause == "memory"
    assert "in an epoch" in found.sentence and "and their size with it" in found.evidence[-1]


def test_pages_that_forked_workers_copy_are_told_from_a_leak() -> None:
    found = examined("copying", seconds=0.25)
    assert found.cause == "memory"
    assert "copy what they share" in found.sentence and "NumPy or Arrow" in found.advice


def test_workers_that_each_give_all_of_the_data_are_found() -> None:
    found = examined("same_in_each")
    assert found.cause == "duplicates"
    assert "every record 2 times" in found.sentence


def test_what_a_dataset_raises_is_told_and_where() -> None:
    found = examined("dying")
    assert found.cause == "error"
    assert found.sentence == "The loader fails: KeyError: 'no item 0 in the index'"
    assert any("in __getitem__" in line for line in found.evidence)


def test_a_process_that_ends_is_told_as_that() -> None:
    found = examined("vanishing")
    assert found.cause == "died" and "exit code 3" in found.sentence


def test_a_dataset_that_cannot_be_pickled_is_said_to_be_so_and_is_examined() -> None:
    found = examined("unpicklable", vary=("multiprocessing_context",))
    assert found.cause == "no_better" and found.starved is None
    assert "feeds every training step" in found.sentence
    assert any("forkserver" in line and "pickle" in line for line in found.evidence)


def test_a_loader_that_cannot_be_made_anew_is_examined_as_it_is() -> None:
    found = examined("own_class", vary=("num_workers",))
    assert found.cause == "no_better" and found.arguments == {}
    assert any("OwnLoader cannot be made anew" in line for line in found.evidence)


def test_a_factory_that_returns_no_loader_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"foreign_loaders:no_loader returned list"):
        examine("tests.foreign_loaders:no_loader")


def test_a_factory_that_raises_is_refused_with_its_place() -> None:
    with pytest.raises(ConfigError, match=r"failing fails: TypeError.* 'batches'") as e:
        examine("tests.foreign_loaders:failing")
    assert "foreign_loaders.py" in str(e.value) and "in failing" in str(e.value)
    assert "child.py" not in str(e.value) and str(e.value).count("TypeError") == 1


class Ends(Stopper):
    """As if a signal came as soon as it is told that this is tried."""

    def __init__(self, at: str) -> None:
        super().__init__()
        self._at, self.told = at, list[str]()

    def tell(self, what: str) -> None:
        self.told.append(what)
        if what.startswith(self._at):
            raise Stop


def test_of_an_interrupted_examination_what_was_measured_is_told() -> None:
    ends = Ends("num_workers=2")
    options = {"step_seconds": 0.01, "vary": ("num_workers",)}
    found = examined("slow", **options, stopper=ends, tell=ends.tell)
    assert found.interrupted and found.cause == "unfinished" and not found.healthy
    assert found.starved is not None and found.arguments == {} and "not everything" in found.text()


def test_before_anything_was_measured_there_is_nothing_to_tell() -> None:
    ends = Ends("DataLoader of Sleepy as it is")
    with pytest.raises(Stop):
        examined("slow", stopper=ends, tell=ends.tell)


def test_a_signal_ends_the_command_with_what_was_measured(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    shop = Workshop(tmp_path, capsys)
    shop.write("loaders.py", Path(foreign_loaders.__file__).read_text())
    command = shop.start("doctor", "--loader", "loaders:slow", "--json")
    with command:
        assert command.stderr is not None
        while not command.stderr.readline().startswith("num_workers="):
            assert command.poll() is None
        command.send_signal(signal.SIGTERM)
        out, _ = command.communicate()
    assert command.returncode == 0
    (last,) = map(json.loads, out.splitlines())
    assert last["event"] == "verdict" and last["interrupted"] and last["evidence"]


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        ("tests.foreign_loaders:", "must be module:factory"),
        ("tests.nowhere:f", "no module 'tests.nowhere'"),
        ("tests.foreign_loaders:nothing", "has no 'nothing'"),
        ("tests.foreign_loaders:ITEM_SECONDS", "is no function but float"),
    ],
)
def test_a_factory_that_is_none_is_refused(spec: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        load(spec)
