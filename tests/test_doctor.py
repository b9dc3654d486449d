"""The doctor: experiments on a topology, and the verdict on a job that runs."""

from __future__ import annotations

import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from tests.cli_support import Workshop, workshop_at
from tests.histories import history

from forebay import Pipeline
from forebay.columns import Columns, as_numpy
from forebay.diagnose.cached import CachedSource, sample
from forebay.diagnose.doctor import Diagnosis, examine
from forebay.diagnose.environment import environment
from forebay.diagnose.experiments import DATA, TooShort, measured
from forebay.diagnose.memory import MemoryWatch
from forebay.diagnose.patient import NothingMeasured
from forebay.diagnose.phases import KINDS, Kind, Phase, Schedule
from forebay.diagnose.silence import Silence
from forebay.diagnose.supplies import Live
from forebay.diagnose.trace import ProfileSummary
from forebay.diagnose.written import Findings
from forebay.errors import StateError
from forebay.observe.snapshot import Snapshot
from forebay.observe.statefile import StateFile
from forebay.observe.verdict import Verdict
from forebay.options import SplitStats
from forebay.report import Report, markdown
from forebay.report.blocks import Table
from forebay.stepclock import StepTimes
from forebay.testing import FakeDevice, MemorySource, Stall
from forebay.topology import Topology, Training
from forebay.training import Stopper

QUICK = Schedule(rounds=2, steps=6)
SLEEP = 0.005


@pytest.fixture
def shop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Workshop:
    return workshop_at(tmp_path, capsys, monkeypatch)


def training(train: Callable[..., None] | None, pipeline: Pipeline, **options: Any) -> Topology:
    return Topology(
        file="t.yaml",
        pipeline=pipeline,
        loader_options={"workers": 2, **options},
        train=None if train is None else Training(function=train),
    )


def numbers(rows: int = 400) -> Pipeline:
    return Pipeline(MemorySource({"a": range(rows), "b": range(rows)})).batch(8)


def examined(topology: Topology, schedule: Schedule = QUICK, **options: Any) -> Diagnosis:
    with Stopper() as stopper:
        return examine(topology, schedule, stopper, **options)


def slow(columns: Columns) -> Columns:
    time.sleep(SLEEP * len(columns["value"]))
    return columns


def quick_step(loader: Any) -> None:
    for _ in loader:
        time.sleep(SLEEP / 10)


# -- experiments ---------------------------------------------------------------------------------


def test_slow_stages_are_told_from_everything_else() -> None:
    found = examined(training(quick_step, numbers().map(slow, name="jpeg")))
    assert found.verdict.cause == "stages"
    assert "'jpeg'" in found.verdict.sentence
    assert found.measured is not None
    assert max(DATA, key=found.measured.shares.__getitem__) == "stages"
    assert sum(found.measured.shares.values()) == pytest.approx(1.0)


def test_a_slow_function_on_batches_is_the_hand_over() -> None:
    def mixup(columns: Columns, rng: Any) -> Columns:
        time.sleep(4 * SLEEP)
        return columns

    assert examined(training(quick_step, numbers().map_batch(mixup))).verdict.cause == "handover"


def test_a_device_that_works_behind_the_host_is_not_starved() -> None:
    device = FakeDevice()

    def train(loader: Any) -> None:
        for _ in loader:
            device.launch(8 * SLEEP)

    few = numbers().batch(1).map(slow)  # in half the time, on two workers
    found = examined(training(train, few), timeline=device.timeline)
    assert (found.verdict.cause, found.verdict.starved) == ("compute", False)
    assert "forebay doctor" not in found.verdict.advice, "it is what was just done"


def test_pauses_are_named() -> None:
    def train(loader: Any) -> None:
        for _ in loader:
            with loader.pause("evaluation"):
                time.sleep(2 * SLEEP)

    found = examined(training(train, numbers()))
    assert found.verdict.cause == "pause"
    assert "evaluation" in found.verdict.sentence


@pytest.mark.parametrize("pipeline", [numbers().map(slow), numbers()], ids=["stages", "none"])
def test_a_drain_has_no_trainer_that_could_starve(pipeline: Pipeline) -> None:
    found = examined(training(None, pipeline))
    assert (found.verdict.cause, found.verdict.starved) == ("draining", False)
    assert "Nobody trains" in found.verdict.sentence


def test_a_trainer_that_writes_into_its_batch_gets_it_whole_each_time() -> None:
    columns: set[tuple[str, ...]] = set()
    below: set[int] = set()

    def train(loader: Any) -> None:
        for i, batch in enumerate(loader):
            columns.add(tuple(batch))
            below.add(int((batch["value"] < 0).sum()))
            if i % 3 == 0:
                batch["value"].fill_(-1)
            else:
                batch["of the trainer"] = []

    examined(training(train, numbers()))
    assert (columns, below) == ({("value",)}, {0})


def test_records_that_fail_are_left_out() -> None:
    def picky(row: Mapping[str, Any]) -> Mapping[str, Any]:
        if row["value"] % 50 == 7:
            raise ValueError("not this one")
        return row

    pipeline = numbers().map(picky, per="row")
    assert examined(training(quick_step, pipeline)).measured is not None


def test_a_training_function_that_ends_early_is_told_with_the_way_out() -> None:
    def train(loader: Any) -> None:
        for i, _ in enumerate(loader):
            if i == 12:
                return

    with pytest.raises(NothingMeasured, match=r"took 13 batches and ended.*--steps 5"):
        examined(training(train, numbers()))


def test_stages_that_let_nothing_pass_are_told() -> None:
    nothing = numbers(40).filter(lambda row: False, per="row")
    with pytest.raises(NothingMeasured, match="none of the first records passes"):
        examined(training(quick_step, nothing), replace(QUICK, patience=0.5))


def test_a_source_without_records_is_the_verdict_not_an_error() -> None:
    empty = Pipeline(MemorySource({"a": [], "b": []}, bounded=False)).batch(8)
    found = examined(training(quick_step, empty), replace(QUICK, patience=0.5))
    assert (found.verdict.cause, found.measured) == ("source", None)
    assert "no record came of MemorySource" in found.verdict.sentence


def test_a_stream_that_is_read_to_its_end_is_the_producers_limit_not_a_wait_for_ever() -> None:
    few = Pipeline(MemorySource({"a": range(12)}, bounded=False)).batch(8)
    told: list[str] = []
    found = examined(training(quick_step, few), replace(QUICK, patience=0.5), tell=told.append)
    assert (found.verdict.cause, found.measured) == ("source", None)
    assert "all that it holds was read: the producer is the limit" in found.verdict.sentence
    assert "4 were read, and wait for more to make a whole batch" in found.verdict.evidence
    assert "the training function's first steps" in told


def test_a_drain_of_which_nothing_comes_has_no_trainer_either() -> None:
    silence = Silence.of(10.0, {"a": SplitStats(delivered=8, fetched=8, end=8)})
    verdict = silence.verdict("KafkaSource", trains=False)
    assert verdict.cause == "draining"
    assert verdict.sentence.startswith("Nobody trains: nothing came of KafkaSource within 10 s")


def test_a_stream_that_runs_dry_meanwhile_ends_the_rounds_and_that_is_said() -> None:
    dries_up = MemorySource({"a": [*range(300), Stall(threading.Event())]})
    rows = Pipeline(dries_up).batch(8)
    schedule = replace(QUICK, rounds=100, patience=0.5)
    found = examined(training(quick_step, rows), schedule)
    assert found.measured is not None
    assert "the rounds ended early: nothing came of MemorySource" in found.notes[0]


def test_stages_may_take_longer_than_nothing_may_come() -> None:
    def sleeps(columns: Columns) -> Columns:
        time.sleep(1.0)
        return columns

    one = Pipeline(MemorySource({"a": [1]}, bounded=False)).map(sleeps).batch(1)
    with one.loader(workers=1) as loader:
        live = Live(loader, grows=False, patience=0.25, tell=lambda _: None)
        live.begin()
        assert live.next().rows == 1
        live.end()
    assert live.silence() is None


@pytest.mark.parametrize(
    ("end", "said"),
    [(None, "it could not be reached"), (20, "though 10 records wait there"), (10, "the producer")],
)
def test_a_silence_is_told_by_what_is_left(end: int | None, said: str) -> None:
    split = SplitStats(delivered=8, fetched=10, end=end)
    assert said in Silence.of(10.0, {"a": split}).sentence("KafkaSource")


def test_a_range_of_workers_is_measured_at_its_most_and_that_is_said() -> None:
    found = examined(training(quick_step, numbers().map(slow), workers=(1, 3)))
    assert found.notes == ("the autoscaler is off: 3 workers, the most of 1 to 3",)


# -- moves nothing -------------------------------------------------------------------------------

PICKY = """
    def picky(row):
        assert row["value"] % 10
        return row
    def noted(batch):
        with open("seen.txt", "w") as f:
            print(min(batch["value"].tolist()), file=f)
"""
SAVING = (
    PICKY
    + """
    def train(loader, checkpoint):
        saved = checkpoint.load()
        assert bool(saved) == checkpoint.path.exists()
        for i, batch in enumerate(loader):
            if i == 0:
                noted(batch)
            if checkpoint.due:
                checkpoint.save({"steps": i})
"""
)
PLAIN = (
    PICKY
    + """
    def train(loader):
        for i, batch in enumerate(loader):
            if i == 0:
                noted(batch)
"""
)
NUMBERS = """
    name: clicks
    source: {{type: memory, data: {{a: [{values}]}}}}
    batch: 4
    dead_letters: {{type: folder, path: letters}}
    stages:
      - {{map: "mod:picky", per: row}}
    error_budget: {{share: 1.0}}
    checkpoint: {{path: run/model.pt, every: 3}}
    train: mod:train
"""


def files(folder: Path) -> dict[str, bytes]:
    return {
        str(p.relative_to(folder)): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()
    }


@pytest.mark.parametrize("trainer", [SAVING, PLAIN], ids=["saves itself", "is saved"])
def test_nothing_is_moved_and_reading_goes_on_where_the_run_was(
    shop: Workshop, trainer: str
) -> None:
    shop.write("mod.py", trainer)
    file = shop.write("t.yaml", NUMBERS.format(values=", ".join(map(str, range(200)))))
    assert shop.forebay("run", file, "--batches", 7).code == 0
    before = files(shop.folder)

    done = shop.forebay("doctor", file, "--steps", 5, "--rounds", 1)
    assert done.code == 0, done.err
    after = files(shop.folder)
    assert int(before.pop("seen.txt")) < 4
    assert int(after.pop("seen.txt")) >= 6 * 4, "reading went on behind the checkpoint"
    assert after == before


def test_a_function_that_saves_by_itself_is_kept_from_it() -> None:
    def train(loader: Any) -> None:
        for _ in loader:
            loader.state_dict()

    with pytest.raises(StateError, match=r"under the doctor nothing is saved.*'checkpoint'"):
        examined(training(train, numbers()))


# -- the command ---------------------------------------------------------------------------------

TRAINER = """
    import time
    def slow(columns):
        time.sleep(0.03 * len(columns["value"]))
        return columns
    def train(loader):
        for batch in loader:
            time.sleep(0.005)
"""
SLOW = f"""
    source: {{type: memory, data: {{a: {list(range(1000))}}}}}
    batch: 4
    stages: [{{map: "mod:slow", name: jpeg}}]
    train: mod:train
"""


def test_the_command_tells_a_sentence_shares_and_what_to_try(shop: Workshop) -> None:
    shop.write("mod.py", TRAINER)
    done = shop.forebay("doctor", shop.write("t.yaml", SLOW), "--steps", 6, "--rounds", 2)
    first, *lines = done.out.splitlines()
    assert first.startswith("The trainer waits for data ")
    assert "stage 'jpeg'" in first
    assert any(
        line.split()[-4:] == ["stages", "stages:", "decoding,", "augmenting"] for line in lines
    )
    assert any(line.startswith("  seen: a step takes ") for line in lines)
    assert any(line.startswith("  next: ") for line in lines)
    assert "round 2 of 2\n" in done.err
    assert done.code == 0


def test_the_command_in_json_with_a_report_and_a_code_for_scripts(shop: Workshop) -> None:
    shop.write("mod.py", TRAINER)
    file, out = shop.write("t.yaml", SLOW), shop.folder / "report"
    done = shop.forebay(
        "doctor", file, "--steps", 6, "--rounds", 2, "--json", "--strict", "--out", out
    )
    (event,) = done.events
    assert done.code == 8, "something else than the trainer is the limit"
    assert event["cause"] == "stages"
    assert sum(part["value"] for part in event["parts"].values()) == pytest.approx(1.0)
    assert set(event["percentiles_seconds"]) == {"step", "wait"}
    assert event["environment"]["versions"]["forebay"]
    page = (out / "report.html").read_text()
    assert event["sentence"].replace("'", "&#x27;") in page or event["sentence"] in page
    assert {p.name for p in (out / "figures").iterdir()} == {
        "shares.svg", "experiments.svg", "rounds.svg",
    }  # fmt: skip


def test_an_error_of_the_training_function_is_its_own(shop: Workshop) -> None:
    shop.write("mod.py", "def slow(c):\n    return c\ndef train(loader):\n    1 / 0\n")
    done = shop.forebay("doctor", shop.write("t.yaml", SLOW))
    assert done.code == 1
    assert "the training function raised ZeroDivisionError" in done.err


def test_ctrl_c_ends_it_without_a_trace_if_nothing_was_measured_yet(shop: Workshop) -> None:
    shop.write("mod.py", TRAINER.replace("for batch in loader:", "for batch in begun(loader):"))
    with (shop.folder / "mod.py").open("a") as f:
        f.write("def begun(loader):\n    open('begun', 'w').close()\n    yield from loader\n")
    file = shop.write("t.yaml", SLOW)
    with shop.start("doctor", file, "--steps", 1000) as process:
        while not (shop.folder / "begun").exists() and process.poll() is None:
            time.sleep(0.05)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, out) == (130, "")
    assert err.endswith("error: interrupted\n")
    assert "Traceback" not in err


def test_ctrl_c_while_nothing_comes_ends_it_with_what_is_known(shop: Workshop) -> None:
    shop.write("mod.py", "def train(loader):\n    for batch in loader:\n        pass\n")
    source = "source: {type: memory, data: {a: [1, 2, 3]}, bounded: false}\n"
    with shop.start(
        "doctor", shop.write("t.yaml", source + "batch: 2\ntrain: mod:train")
    ) as process:
        assert process.stderr is not None
        while "nothing comes" not in process.stderr.readline() and process.poll() is None:
            continue
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
    assert (process.returncode, err) == (0, "")
    assert "all that it holds was read: the producer is the limit" in out


def test_a_job_that_runs_is_judged_without_the_seconds_that_torch_takes(shop: Workshop) -> None:
    path = written(shop.folder / "rank-0.jsonl", history(30))
    code = (
        "import sys; from forebay.cli import invoke; code = invoke(['doctor', sys.argv[1]]); "
        "sys.exit('torch' in sys.modules or code)"
    )
    subprocess.run([sys.executable, "-c", code, path], check=True, capture_output=True)


def written(path: Path, snapshots: Sequence[Snapshot]) -> Path:
    state = StateFile(path)
    for snapshot in snapshots:
        state.write(snapshot)
    state.close()
    return path


def test_the_verdict_on_a_job_by_its_state_file(shop: Workshop) -> None:
    path = written(shop.folder / "rank-0.jsonl", history(30, starved=0.4))
    done = shop.forebay("doctor", path, "--json")
    (event,) = done.events
    assert (event["job"], event["rank"], event["cause"]) == ("clicks", 0, "stages")
    assert "waits for data 40 %" in event["sentence"]
    assert shop.forebay("doctor", path, "--strict").code == 8


def test_a_run_that_ended_is_said_to_have_and_judged_by_what_was_before(shop: Workshop) -> None:
    seen = history(30, starved=0.4)
    path = written(shop.folder / "r.jsonl", [*seen, replace(seen[-1], ended="stopped")])
    (event,) = shop.forebay("doctor", path, "--json").events
    assert (event["cause"], event["ended"], event["ended_at"]) == ("stages", "stopped", seen[-1].at)
    _, end, verdict, *_ = shop.forebay("doctor", path).out.splitlines()
    assert end.startswith("The run was stopped: 300 batches, 30,000 rows; the trainer waited")
    assert end.endswith("In its last half minute:")
    assert "waits for data 40 %" in verdict


def test_a_state_file_becomes_a_report_with_plots_over_time(shop: Workshop) -> None:
    path, out = written(shop.folder / "rank-0.jsonl", history(30)), shop.folder / "report"
    assert shop.forebay("doctor", path, "--out", out).code == 0
    assert {p.name for p in (out / "figures").iterdir()} == {
        "rank-0-0-shares.svg", "rank-0-0-rows.svg", "rank-0-0-lag.svg",
    }  # fmt: skip


def test_a_file_that_is_neither_is_told_once(shop: Workshop) -> None:
    empty = shop.forebay("doctor", shop.write("empty.jsonl", ""))
    assert (empty.code, "empty.jsonl is empty: no topology, and no state file" in empty.err) == (
        2, True,
    )  # fmt: skip
    broken = shop.forebay("doctor", shop.write("broken.jsonl", "{no\n"))
    assert (broken.code, broken.err.count("broken.jsonl")) == (3, 1)
    assert "is no state file of a job" in broken.err


def test_a_factory_that_fails_is_wrong_usage(shop: Workshop) -> None:
    shop.write("mod.py", "def make():\n    raise RuntimeError('no such folder')\n")
    done = shop.forebay("doctor", "--loader", "mod:make")
    assert (done.code, done.out) == (2, "")
    assert "error: the factory mod:make fails: RuntimeError: no such folder" in done.err


def test_what_cannot_be_reached_or_does_not_fit_together_is_told(shop: Workshop) -> None:
    gone = shop.forebay("doctor", "http://127.0.0.1:9")
    assert gone.code == 3
    assert "http://127.0.0.1:9: not reached" in gone.err
    assert "Give the address of a job that runs with --dashboard" in gone.err
    unset = shop.forebay("doctor", "http://127.0.0.1:9?token=${NO_TOKEN_HERE}")
    assert (unset.code, "NO_TOKEN_HERE is not set" in unset.err) == (2, True)
    nothing = shop.forebay("doctor", shop.folder / "no.yaml")
    assert nothing.code == 2
    assert "no.yaml cannot be read" in nothing.err
    both = shop.forebay("doctor", "http://127.0.0.1:9", "--steps", 3)
    assert (both.code, "are for a TOPOLOGY" in both.err) == (2, True)
    alone = shop.forebay("doctor", shop.folder / "t.yaml", "--loader", "mod:make")
    assert (alone.code, "--loader stands alone" in alone.err) == (2, True)
    shop.write("mod.py", TRAINER)
    unplaced = shop.forebay("doctor", shop.write("t.yaml", SLOW), "--profile")
    assert (unplaced.code, "--out FOLDER" in unplaced.err) == (2, True)


# -- its parts -----------------------------------------------------------------------------------


def phase(kind: Kind, number: int, milliseconds: float, **parts: Any) -> Phase:
    clock = StepTimes(steps=10, seconds=1.0, wait=0.0, **parts)
    return Phase(
        kind=kind,
        round=number,
        steps=10,
        rows=80,
        seconds=milliseconds / 100,
        parts=clock,
        step_seconds=(milliseconds / 1e3,) * 10,
        wait_seconds=(0.0,) * 10,
        began=0.0,
        ended=1.0,
    )


def test_shares_are_the_differences_of_what_is_left_out() -> None:
    times = dict(zip(KINDS, (100.0, 80.0, 50.0, 40.0), strict=True))
    phases = [phase(kind, i, ms) for i in range(3) for kind, ms in times.items()]
    assert measured(phases, {}).shares == pytest.approx(
        {
            "source": 0.2, "stages": 0.3, "handover": 0.1, "copy": 0.0, "communication": 0.0,
            "host": 0.0, "pause": 0.0, "compute": 0.4,
        }
    )  # fmt: skip


def test_copy_communication_host_and_pauses_are_parted_by_the_step_clock() -> None:
    phases = [
        phase("full", 0, 90.0),
        phase("no source", 0, 90.0),
        phase("no stages", 0, 90.0, copy=0.2),
        phase("frozen", 0, 60.0, communication=0.1, other=0.15),
    ]
    assert measured(phases, {"checkpoint": 0.010}).shares == pytest.approx(
        {
            "source": 0.0, "stages": 0.0, "handover": 0.1, "copy": 0.2, "communication": 0.1,
            "host": 0.15, "pause": 0.1, "compute": 0.35,
        }
    )  # fmt: skip


def test_noise_makes_no_share_negative_and_one_odd_round_none_large() -> None:
    phases = [phase(kind, i, 50.0 + (i == 1) * 90) for i in range(3) for kind in KINDS]
    phases += [phase(kind, 3, ms) for kind, ms in zip(KINDS, (50.0, 51.0, 52.0, 53.0), strict=True)]
    shares = measured(phases, {}).shares
    assert shares["compute"] == pytest.approx(1.0, abs=0.03)
    assert min(shares.values()) >= 0.0


def test_what_the_rounds_do_not_agree_on_is_not_shown() -> None:
    def waits(*milliseconds: float) -> float:
        each = [zip(KINDS, (ms, 50.0, 50.0, 50.0), strict=True) for ms in milliseconds]
        phases = [phase(kind, i, ms) for i, times in enumerate(each) for kind, ms in times]
        return measured(phases, {}).shown(DATA)

    assert waits(100, 100, 100, 100, 100) == pytest.approx(0.5)
    assert waits(100, 50, 100, 50, 100) == 0.0
    assert waits(100) == pytest.approx(0.5), "one round alone is believed"


def test_a_share_lies_within_its_interval_and_two_rounds_that_differ_are_no_exception() -> None:
    rounds = ((100.0, 20.0, 18.0, 17.0), (100.0, 95.0, 20.0, 17.0), (30.0, 28.0, 27.0, 17.0))
    phases = [
        phase(kind, i, ms)
        for i, times in enumerate(rounds)
        for kind, ms in zip(KINDS, times, strict=True)
    ]
    for some in (phases, phases[:8], phases[4:]):
        parts = measured(some, {}).intervals.values()
        assert all(e.low <= e.value <= e.high for e in parts)
        assert sum(e.value for e in parts) == pytest.approx(1.0)


def test_the_rows_of_a_drain_are_told_by_the_time_of_its_step() -> None:
    phases = [phase(kind, i, 20.0 + 10 * i) for i in range(3) for kind in KINDS]
    m = measured(phases, {})
    assert m.rows_a_second == pytest.approx(8 / m.per_step["full"].value)


def test_a_round_that_is_not_whole_does_not_count() -> None:
    with pytest.raises(TooShort):
        measured([phase("full", 0, 50.0), phase("frozen", 0, 40.0)], {})


def test_memory_that_was_not_shown_to_grow_is_given_no_growth() -> None:
    with MemoryWatch(every=0.01) as watch:
        while watch.growth() is None:
            time.sleep(0.01)
    verdict = Verdict(cause="compute", sentence="It trains.", shares={})
    found = Diagnosis(verdict=verdict, measured=None)
    report = Findings(diagnosis=found, environment=environment(), memory=watch).report("Doctor")
    text = markdown(report.title, report.blocks)
    assert "No lasting growth was seen." in text
    assert "a minute" not in text


def test_a_profile_without_an_operation_has_no_table_of_them() -> None:
    report = Report("Doctor")
    ProfileSummary(trace="trace.json", steps=3, seconds=1.0, devices=(), ops=()).report(report)
    assert "no operation of torch's was seen" in markdown(report.title, report.blocks)
    assert not any(isinstance(block, Table) for block in report.blocks)


def test_a_cached_source_gives_the_same_rows_for_ever_with_offsets_that_go_on() -> None:
    raw = sample(
        MemorySource({"a": range(10), "b": range(5)}, slice_rows=5),
        {},
        lambda split: True,
        rows=100,
        max_bytes=1 << 20,
        seconds=5.0,
        patience=5.0,
    )
    reader = CachedSource(raw).open({}, lambda split: True)
    given = [reader.poll(0.1) for _ in range(6)]
    of_a = [(s.start, s.next_offset) for s in given if s is not None and s.split == "a"]
    assert of_a == [(0, 5), (5, 10), (10, 15), (15, 20)]
    values = [as_numpy(s.columns["value"])[0] for s in given if s is not None]
    assert values == [0, 0, 5] * 2


def test_a_wait_for_slices_counts_while_it_goes_on() -> None:
    more = threading.Event()
    with Pipeline(MemorySource({"a": [1, Stall(more), 2]})).batch(1).loader() as loader:
        batches = iter(loader)
        next(batches)
        before = loader.stats().source_wait_seconds
        for _ in range(1000):
            if (waited := loader.stats().source_wait_seconds - before) > 0.05:
                break
            time.sleep(0.01)
        more.set()
        assert waited > 0.05
        assert next(batches)["value"].tolist() == [2]
