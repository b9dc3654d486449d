"""``forebay compare``: the same records for all, wrong rows told, and only what was shown."""

from __future__ import annotations

import json
import re
import signal
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.cli_support import Workshop, workshop_at

from forebay import Pipeline
from forebay.compare.digest import IdSum, Rows, difference
from forebay.compare.extract import extract
from forebay.compare.judging import judge, rollout
from forebay.compare.matrix import Matrix, Settings, Variant, read_matrix
from forebay.compare.measuring import measure, scout
from forebay.compare.orders import Inputs, Mode, Order, Run
from forebay.compare.reporting import save
from forebay.compare.rounds import Outcome, Results, run_all
from forebay.compare.worker import RunFailed, Worker
from forebay.diagnose.environment import environment
from forebay.errors import ConfigError, ForebayError
from forebay.mixing import mix
from forebay.observe.memory import family
from forebay.testing import MemorySource
from forebay.topology import TopologyError, load
from forebay.training import Stop, Stopper

TOPOLOGY = """\
source: {type: memory, data: {a: [%s], b: [%s]}}
stages:
  - map: work:steady
    form: numpy
dead_letters: {type: folder, path: letters}
batch: 10
loader: {workers: 2}
checkpoint: state.json
""" % (", ".join(map(str, range(300))), ", ".join(map(str, range(500, 800))))  # noqa: UP031
WORK = """\
import os, time

def steady(columns):
    time.sleep(0.0005 * len(columns["value"]))
    return columns

def slow(columns):
    time.sleep(0.003 * len(columns["value"]))
    return columns

def rounded(columns):
    return {"value": columns["value"] // 2 * 2}

def hasty(columns):
    return columns["value"] % 100 != 42

def picky(row):
    if row["value"] == 7:
        raise ValueError("an unlucky one")
    return row

def bad(columns):
    raise MemoryError("no room")

def gone(columns):
    os._exit(9)

def stuck(columns):
    time.sleep(3600)

def train(loader, checkpoint, step: float = 0.001):
    assert checkpoint.load() is None
    for batch in loader:
        time.sleep(step)
        checkpoint.save({"rows": batch.rows})
"""


class Here:
    """Runs orders in this process, which spares a test the start of many.

    Args:
        until: so many; then it is as if a signal came in the middle of a run.
    """

    def __init__(self, until: int | None = None) -> None:
        self.orders: list[Order] = []
        self._until = until

    def scout(self, order: Order, batches: int) -> Inputs:
        return scout(order, batches)

    def measure(self, order: Order) -> Run:
        if len(self.orders) == self._until:
            raise Stop
        self.orders.append(order)
        try:
            return measure(order)
        except ForebayError as e:
            raise RunFailed(str(e)) from e


@pytest.fixture
def shop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Workshop:
    made = workshop_at(tmp_path, capsys, monkeypatch)
    monkeypatch.syspath_prepend(str(tmp_path))
    made.write("work.py", WORK)
    made.write("clicks.yaml", TOPOLOGY)
    return made


def matrix_of(shop: Workshop, text: str) -> Matrix:
    return read_matrix(shop.write("matrix.yaml", f"topology: clicks.yaml\n{text}"))


def compared(
    shop: Workshop,
    text: str,
    runner: Here | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> Results:
    folder = shop.folder / "rows"
    folder.mkdir()
    return run_all(matrix_of(shop, text), folder, runner or Here(), tell, Stopper())


def names_in(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


def verdicts(results: Results) -> dict[str, str]:
    return {j.name: j.judgement for j in judge(results)}


DOCS = Path(__file__).parents[1] / "docs" / "compare.md"


# -- the matrix ---------------------------------------------------------------------------------


def problems_of(shop: Workshop, text: str) -> list[str]:
    with pytest.raises(TopologyError) as e:
        matrix_of(shop, text)
    return [f"{p.place.line}: {p.path}: {p.text}" for p in e.value.problems]


def test_a_matrix_varies_one_key_at_a_time_and_leaves_out_what_the_file_says(
    shop: Workshop,
) -> None:
    matrix = matrix_of(shop, "vary:\n  loader.workers: [1, 2, 4]\n  batch: [20]\n")
    assert [v.name for v in matrix.variants] == [
        "baseline",
        "loader.workers = 1",
        "loader.workers = 4",
        "batch = 20",
    ]
    assert matrix.same == ("loader.workers = 2",)


def test_the_matrix_of_the_docs_is_one(shop: Workshop) -> None:
    kafka = '{type: kafka, topics: clicks, config: {"bootstrap.servers": "localhost:9092"}}'
    text = f"source: {kafka}\nstages: [{{map: work:steady}}]\nbatch: 256\nloader: {{prefetch: 2}}\n"
    shop.write("clicks.yaml", text)
    shop.write("my_training.py", "def faster(columns): return columns\n")
    for block in re.findall(r"```yaml\n(.*?)```", DOCS.read_text(), re.S):
        shop.write("matrix.yaml", block.replace("loader.engine: [ray]", "loader.engine: [threads]"))
        assert len(read_matrix("matrix.yaml").variants) > 1


def test_what_is_wrong_is_told_with_its_line_in_the_matrix(shop: Workshop) -> None:
    assert problems_of(shop, "repeat: 3\nvary: {batch: [20]}\n") == [
        "2: repeat: unknown key; did you mean 'repeats'?"
    ]
    (wrong,) = problems_of(shop, "vary:\n  loader.workers: [4]\n  loader.prefetch: [2, many]\n")
    assert wrong.startswith("4: loader.prefetch: ") and "'many'" in wrong
    (no_mapping,) = problems_of(shop, "vary:\n  batch.size: [20]\n")
    assert no_mapping.startswith("3: batch.size: 'batch' is 10 in the topology and has no keys")
    (beyond,) = problems_of(shop, 'vary:\n  "stages[3].map": [work:slow]\n')
    assert "the topology has 1 entries in 'stages'" in beyond
    (once,) = problems_of(shop, "vary:\n  loader.worker: [2, 4]\n")
    assert once.startswith("3: loader.worker: ") and "'workers'" in once
    (none,) = problems_of(shop, "repeats: 2\n")
    assert none.startswith("1: vary: say what to vary")


def test_a_value_may_come_from_the_environment_and_is_never_shown(shop: Workshop) -> None:
    shop.write("matrix.yaml", "topology: clicks.yaml\nvary:\n  name: ['${RUN_NAME}']\n")
    matrix = read_matrix("matrix.yaml", env={"RUN_NAME": "night"})
    assert matrix.variants[1].name == 'name = "${RUN_NAME}"'
    assert matrix.variants[1].changes == {"name": '"${RUN_NAME}"'}


def test_keys_of_a_client_have_dots_in_them(shop: Workshop) -> None:
    source = 'source: {type: kafka, topics: t, config: {"bootstrap.servers": "b:1"}}\nbatch: 2\n'
    shop.write("clicks.yaml", source)
    matrix = matrix_of(
        shop,
        'vary:\n  source.config.fetch.min.bytes: [9]\n  source.config.bootstrap.servers: ["c:2"]',
    )
    changes = [v.change for v in matrix.variants if v.change is not None]
    configs = [dict(load("clicks.yaml", changes=[c]).pipeline.source.config) for c in changes]  # type: ignore[attr-defined]
    assert configs[0] == {"bootstrap.servers": "b:1", "fetch.min.bytes": 9}
    assert configs[1] == {"bootstrap.servers": "c:2"}


# -- the same records ---------------------------------------------------------------------------


def test_a_part_of_a_source_ends_where_it_is_told_whatever_comes_behind() -> None:
    source = MemorySource({"a": range(100), "b": range(100), "new": range(5)}, bounded=False)
    part = extract(source, {"a": 12, "b": 0})
    batches = list(Pipeline(part).batch(5).loader(workers=1))
    assert sorted(v for b in batches for v in b["value"].tolist()) == list(range(12))


def test_a_part_of_a_mix_is_that_of_every_member() -> None:
    members = {"x": MemorySource({"a": range(90)}), "y": MemorySource({"b": range(100, 190)})}
    part = extract(mix(members, {"x": 3, "y": 1}), {"a": 30, "b": 10})
    values = [v for b in Pipeline(part).batch(8).loader(workers=1) for v in b["value"].tolist()]
    assert sorted(values) == [*range(30), *range(100, 110)]
    with pytest.raises(ConfigError, match="repeats its members"):
        extract(mix(members, {"x": 3, "y": 1}, when_dry="repeat"), {"a": 1, "b": 1})


def test_every_run_reads_the_records_that_the_first_one_read(shop: Workshop) -> None:
    runner = Here()
    what = "batches: 20\nrepeats: 2\nvary: {batch: [7], source.start: [50]}"
    results = compared(shop, what, runner)
    assert len(runner.orders) == 6
    assert all(o.inputs is results.inputs for o in runner.orders)
    assert results.inputs.rows == sum((results.inputs.stops or {}).values()) == 200
    assert {run.rows for o in results.outcomes for run in o.runs["drain"]} == {200}
    assert len({run.ids for o in results.outcomes for run in o.runs["drain"]}) == 1
    assert all(o.difference is not None and o.difference.same for o in results.outcomes)


# -- interrupted --------------------------------------------------------------------------------

VARIES = "batches: 5\nrepeats: 3\nvary: {loader.prefetch: [1, 3]}"


def test_of_an_interrupted_comparison_the_complete_rounds_count(shop: Workshop) -> None:
    results = compared(shop, VARIES, Here(until=8))
    assert results.partial and results.rounds == 2
    assert [len(o.runs["drain"]) for o in results.outcomes] == [2, 2, 2]
    page = save(results, judge(results), environment(), shop.folder / "out")
    assert "Partial: interrupted after 2 of 3 rounds." in page.read_text()
    assert json.loads((page.parent / "results.json").read_text())["partial"]


def test_before_the_first_round_is_complete_there_is_nothing_to_tell(shop: Workshop) -> None:
    with pytest.raises(Stop):
        compared(shop, VARIES, Here(until=2))


def test_each_run_is_told_with_its_number_and_how_long_it_will_take(shop: Workshop) -> None:
    told: list[str] = []
    failing = 'batches: 5\nrepeats: 2\nvary: {"stages[0].map": [work:bad], loader.prefetch: [1]}'
    compared(shop, failing, tell=told.append)
    runs = [re.sub(r"about .* left", "about T left", t.split(": ")[0]) for t in told[1:]]
    assert runs[0] == "run 1 of 6"
    # What failed in the first round does not run again.
    assert runs[-1] == "run 5 of 5, about T left" and len(runs) == 5


def test_a_signal_ends_the_command_with_what_there_is(shop: Workshop) -> None:
    shop.write("matrix.yaml", f"topology: clicks.yaml\n{VARIES.replace('3', '1000', 1)}\n")
    command = shop.start("compare", "matrix.yaml", "--json")
    with command:
        assert command.stdout is not None
        while "round 2" not in (line := command.stdout.readline()):
            assert line
        command.send_signal(signal.SIGTERM)
        out, err = command.communicate()
    last = json.loads(out.splitlines()[-1])
    assert (command.returncode, err) == (0, "")
    assert last["partial"] and (shop.folder / last["report"]).exists()


def test_a_signal_before_there_is_anything_is_told_in_a_line(shop: Workshop) -> None:
    shop.write("clicks.yaml", TOPOLOGY.replace("work:steady", "work:stuck"))
    shop.write("matrix.yaml", f"topology: clicks.yaml\n{VARIES}\n")
    command = shop.start("compare", "matrix.yaml")
    with command:
        assert command.stdout is not None
        while "reading" not in (line := command.stdout.readline()):
            assert line
        command.send_signal(signal.SIGINT)
        _, err = command.communicate()
    said = "error: interrupted: no round is complete, so there is nothing to report\n"
    assert (command.returncode, err) == (130, said)


# -- right and wrong ----------------------------------------------------------------------------


def test_a_variant_with_other_rows_is_wrong_and_a_slow_one_is_worse(shop: Workshop) -> None:
    results = compared(
        shop,
        """\
batches: 20
repeats: 3
vary:
  "stages[0].map": [work:slow, work:rounded]
  "stages[0]":
    - {name: fewer, value: {filter: work:hasty, form: numpy}}
    - {name: broken, value: {map: "work:bad", form: numpy}}
""",
    )
    told = {j.name: (j.judgement, j.why) for j in judge(results)}
    assert told["stages[0].map = work:slow"][0] == "worse"
    assert told["stages[0].map = work:rounded"][0] == "WRONG"
    assert "100 rows with other contents" in told["stages[0].map = work:rounded"][1]
    assert told["fewer"][0] == "WRONG"
    assert "2 rows missing (a@42 is missing; b@42 is missing)" in told["fewer"][1]
    assert told["broken"][0] == "failed"


def test_contents_may_differ_where_only_ids_are_asked_for(shop: Workshop) -> None:
    what = 'batches: 10\nrepeats: 1\ncheck: ids\nvary: {"stages[0].map": [work:rounded]}'
    assert "WRONG" not in verdicts(compared(shop, what)).values()


def test_rows_from_elsewhere_are_compared_by_a_column(shop: Workshop) -> None:
    other = "{type: memory, data: {c: [%s]}}" % ", ".join(map(str, range(600)))  # noqa: UP031
    what = f"batches: 60\nrepeats: 1\nvary:\n  source: [{{name: moved, value: {other}}}]\n"
    told = {j.name: j for j in judge(compared(shop, what))}
    assert told["moved"].judgement == "failed"
    assert "no split a, as the baseline has" in told["moved"].why
    matrix = matrix_of(shop, f"ids: value\n{what}")
    (_, moved) = judge(run_all(matrix, shop.folder / "rows", Here(), lambda _: None, Stopper()))
    assert "200 rows missing, 200 rows too many" in moved.why


def test_nothing_is_written_but_the_report(shop: Workshop) -> None:
    picky = TOPOLOGY.replace("map: work:steady\n    form: numpy", "map: work:picky\n    per: row")
    shop.write("clicks.yaml", picky + "train: work:train\n")
    before = names_in(shop.folder)
    results = compared(shop, "batches: 20\nrepeats: 1\nvary: {loader.workers: [1]}")
    assert names_in(shop.folder) == {*before, "matrix.yaml", "rows"}
    assert [o.runs["drain"][0].dead_letters for o in results.outcomes] == [1, 1]
    assert all(0 <= (o.runs["train"][0].starved or 0) <= 1 for o in results.outcomes)


def test_what_a_variant_needs_is_prepared_once_and_timed(shop: Workshop) -> None:
    results = compared(
        shop,
        """\
batches: 5
repeats: 2
vary:
  loader.prefetch:
    - {value: 3, prepare: echo once >> prepared}
    - {value: 4, prepare: "echo no such table >&2; exit 3"}
""",
    )
    assert (shop.folder / "prepared").read_text() == "once\n"
    good, bad = results.outcomes[1:]
    assert good.prepare_seconds is not None and good.failure is None
    assert bad.failure == "prepare ended with code 3: no such table"


def test_rows_are_the_same_in_any_order_and_in_any_batches(tmp_path: Path) -> None:
    def kept(data: Mapping[str, Sequence[int]], size: int, order: str) -> tuple[str, Path]:
        rows, ids = Rows(), IdSum()
        for batch in Pipeline(MemorySource(data)).batch(size).loader(order=order):
            rows.add(batch)
            ids.add(batch.origins)
        path = tmp_path / f"{size}.arrow"
        rows.save(path)
        return ids.hex, path

    one = kept({"a": range(50), "b": range(9)}, 4, "deterministic")
    other = kept({"b": range(9), "a": range(50)}, 7, "arrival")
    short = kept({"a": range(49), "b": range(9)}, 5, "split")
    assert one[0] == other[0] != short[0]
    assert difference(one[1], other[1], contents=True).same
    assert str(difference(one[1], short[1], contents=True)) == "1 rows missing (a@49 is missing)"


# -- what is said -------------------------------------------------------------------------------


def results_of(shop: Workshop, trains: bool = False, **speeds: Sequence[float]) -> Results:
    """Results as if variants had run so fast; ``baseline`` among them."""
    shop.write("matrix.yaml", "topology: clicks.yaml\n")
    mode: Mode = "train" if trains else "drain"
    settings = Settings(topology=shop.folder / "clicks.yaml")
    outcomes = [
        Outcome(Variant(name=name), {mode: [_run(mode, v) for v in values]})
        for name, values in speeds.items()
    ]
    matrix = Matrix(
        file=shop.folder / "matrix.yaml",
        settings=settings,
        variants=tuple(o.variant for o in outcomes),
        baseline=load(shop.folder / "clicks.yaml"),
    )
    inputs = Inputs(rows=2000, start={}, stops={"a": 2000})
    rounds = len(speeds["baseline"])
    return Results(
        matrix=matrix, inputs=inputs, outcomes=tuple(outcomes), rounds=rounds, seconds=1.0
    )


def _run(mode: Mode, speed: float) -> Run:
    starved = 0.25 if mode == "train" else None
    return Run(
        mode=mode,
        rows=2000,
        seconds=2000 / speed,
        rows_per_second=speed,
        cpu_seconds_per_row=1e-4,
        starved=starved,
    )


def test_equal_variants_are_seldom_told_to_differ(shop: Workshop) -> None:
    rng = np.random.default_rng(5)
    said = [
        verdicts(
            results_of(
                shop,
                baseline=rng.normal(1000, 100, 5).tolist(),
                same=rng.normal(1000, 100, 5).tolist(),
            )
        )["same"]
        for _ in range(60)
    ]
    assert said.count("no difference shown") >= 54


def test_a_difference_that_nobody_needs_is_none(shop: Workshop) -> None:
    base = [1000.0, 1010.0, 990.0, 1005.0, 1000.0]
    results = results_of(
        shop,
        baseline=base,
        hardly=[1.01 * v for v in base],
        better=[1.2 * v for v in base],
        worse=[0.8 * v for v in base],
    )
    assert verdicts(results) == {
        "baseline": "baseline",
        "hardly": "no difference shown",
        "better": "better",
        "worse": "worse",
    }


def test_one_run_shows_nothing(shop: Workshop) -> None:
    results = results_of(shop, baseline=[1000.0], fast=[9000.0])
    assert judge(results)[1].judgement == "no difference shown"
    assert "too few rounds to know the noise" in judge(results)[1].why


def test_of_a_few_runs_no_interval_is_told(shop: Workshop) -> None:
    def page_of(rounds: int) -> str:
        values = [1000.0, 1100.0, 1200.0, 1050.0][:rounds]
        results = results_of(shop, baseline=values, fast=[2 * v for v in values])
        return save(results, judge(results), environment(), shop.folder / "out").read_text()

    assert "(1,000\u00a0to\u00a01,200)" in page_of(4) and "95 % interval" in page_of(4)
    assert ">1,100 (-)<" in page_of(3) and "95 % interval" not in page_of(3)
    assert ">2,100 (-)<" in page_of(2) and ">2 (-)<" in page_of(2)


def test_a_better_variant_comes_with_when_to_keep_it_and_when_to_go_back(shop: Workshop) -> None:
    base = [1000.0, 1010.0, 990.0, 1005.0, 1000.0]
    judged = judge(results_of(shop, True, baseline=base, fast=[2 * v for v in base]))
    keep, back, _ = rollout(judged[1], judged[0])
    assert (
        "for 30 min it trains at least 1,980 rows/s" in keep
        and "starvation is at most 25 %" in keep
    )
    assert "less than 1,000 rows/s" in back and "freshness p95" in back
    assert rollout(judged[0], judged[0]) == []


def test_the_folder_holds_the_report_every_run_and_no_secret(
    shop: Workshop,
) -> None:
    results = results_of(shop, baseline=[1000.0, 1010.0], odd=[1000.0, 1100.0])
    results.outcomes[1].failure = "login with hunter22 was refused"
    object.__setattr__(results.matrix, "secrets", frozenset({"hunter22"}))
    page = save(results, judge(results), environment(), shop.folder / "out")
    assert {"report.md", "report.html", "results.json", "runs", "matrix.yaml", "topology.yaml"} <= {
        p.name for p in page.parent.iterdir()
    }
    found: dict[str, Any] = json.loads((page.parent / "results.json").read_text())
    assert [v["verdict"] for v in found["variants"]] == ["baseline", "failed"]
    runs = json.loads((page.parent / "runs" / "01.json").read_text())["runs"]
    assert [run["rows_per_second"] for run in runs] == [1000.0, 1100.0]
    texts = [p.read_text() for p in page.parent.rglob("*") if p.is_file()]
    assert not any("hunter22" in text for text in texts)


# -- processes ----------------------------------------------------------------------------------


def test_a_run_that_takes_its_process_down_or_never_ends_is_a_failure(shop: Workshop) -> None:
    def order(stage: str) -> Order:
        return Order(topology="clicks.yaml", changes={"stages[0].map": f"work:{stage}"})

    with Worker() as worker, pytest.raises(RunFailed, match="ended with code 9"):
        worker.measure(order("gone"))
    with Worker() as worker:
        assert worker.measure(Order(topology="clicks.yaml", warmup_rows=50)).rows == 600
        worker.timeout = 1
        with pytest.raises(RunFailed, match="stopped after 1 seconds"):
            worker.measure(order("stuck"))


def test_a_command_that_is_killed_leaves_no_run_behind(shop: Workshop) -> None:
    shop.write("clicks.yaml", TOPOLOGY.replace("work:steady", "work:stuck"))
    shop.write("matrix.yaml", "topology: clicks.yaml\nvary: {batch: [20]}\n")
    command = shop.start("compare", "matrix.yaml")
    with command:
        assert command.stdout is not None
        while "reading" not in command.stdout.readline():
            assert command.poll() is None
        while len(runs := family(command.pid)[1:]) < 1:
            time.sleep(0.01)
        command.kill()
    while any(Path(f"/proc/{pid}/cmdline").exists() and _runs(pid) for pid in runs):
        time.sleep(0.05)


def _runs(pid: int) -> bool:
    """Whether it is more than an entry that nobody has asked for yet."""
    return bool(Path(f"/proc/{pid}/cmdline").read_bytes())


def test_the_command_compares_in_fresh_processes_and_says_where_the_report_is(
    shop: Workshop,
) -> None:
    shop.write(
        "matrix.yaml",
        'topology: clicks.yaml\nbatches: 10\nrepeats: 1\nvary: {"stages[0].map": [work:rounded]}\n',
    )
    done = shop.forebay("compare", "matrix.yaml", "--out", "out", "--json")
    assert done.code == 9, done.err
    last = done.events[-1]
    assert last["event"] == "compared" and "WRONG: stages[0].map = work:rounded" in last["summary"]
    assert (shop.folder / last["report"]).exists()
    variants = [e["verdict"] for e in done.events if e["event"] == "variant"]
    assert variants == ["baseline", "WRONG"]
