"""The command line: exit codes that scripts can use, one clear message, an orderly end."""

from __future__ import annotations

import json
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.cli_support import Workshop, install_plugins, workshop_at

from forebay import checkpoint
from forebay.deadletter import Letter
from forebay.letterbox import FolderSink, read_letters
from forebay.slice import Failure

NUMBERS = """
    source: {type: memory, data: {a: [0, 1, 2, 3, 4, 5], b: [6, 7, 8, 9]}, slice_rows: 1}
    batch: 2
"""
ENDLESS = """
    source: {type: memory, data: {a: [0, 1, 2, 3]}, bounded: false}
    batch: 2
    checkpoint: {path: state.json, every: 1}
"""
TRAINER = """
    from pathlib import Path

    def train(loader, *, log="seen.txt"):
        for batch in loader:
            with Path(log).open("a") as f:
                f.write("".join(f"{int(i)}\\n" for i in batch["value"]))
"""


@pytest.fixture
def shop(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> Workshop:
    return workshop_at(tmp_path, capsys, monkeypatch)


@pytest.fixture
def seen(shop: Workshop) -> Iterator[Path]:
    shop.write("my_training.py", TRAINER)
    yield shop.folder / "seen.txt"


def ids(file: Path) -> list[int]:
    return [int(line) for line in file.read_text().split()]


# -- run -----------------------------------------------------------------------------------------


def test_run_without_a_trainer_drains_the_stream_and_sums_up(shop: Workshop) -> None:
    done = shop.forebay("run", shop.write("t.yaml", NUMBERS))
    assert done.code == 0
    assert done.out.startswith(f"reading {shop.folder / 't.yaml'}: MemorySource -> batches of 2\n")
    assert "done, records 10, " in done.out
    assert "starved –" in done.out  # noqa: RUF001


def test_run_calls_the_training_function_with_the_loader_and_its_options(
    shop: Workshop, seen: Path
) -> None:
    text = NUMBERS + "\n    train: {function: my_training:train, log: other.txt}\n"
    assert shop.forebay("run", shop.write("t.yaml", text)).code == 0
    assert sorted(ids(shop.folder / "other.txt")) == list(range(10))


def test_run_goes_on_from_its_checkpoint(shop: Workshop, seen: Path) -> None:
    text = NUMBERS + "\n    train: my_training:train\n    checkpoint: run/state.json\n"
    file = shop.write("t.yaml", text)
    for _ in range(3):
        assert shop.forebay("run", file, "--batches", 2).code == 0
    assert sorted(ids(seen)) == list(range(10))
    assert {p.name for p in (shop.folder / "run").iterdir()} == {
        "state.json",
        "state.json.previous",
    }


def test_a_training_function_may_keep_its_model_and_the_position_in_one_file(
    shop: Workshop,
) -> None:
    shop.write(
        "my_model.py",
        """
        from pathlib import Path

        def train(loader, checkpoint):
            seen = (checkpoint.load() or {"seen": []})["seen"]
            for batch in loader:
                seen += batch["value"].tolist()
                if checkpoint.due:
                    checkpoint.save({"seen": seen})
            checkpoint.save({"seen": seen})
            Path("model.txt").write_text("\\n".join(map(str, seen)))
        """,
    )
    text = NUMBERS + "\n    train: my_model:train\n    checkpoint: model.pt\n"
    file = shop.write("t.yaml", text)
    for _ in range(3):
        assert shop.forebay("run", file, "--batches", 2).code == 0
    assert sorted(ids(shop.folder / "model.txt")) == list(range(10))


def test_json_progress_ends_with_a_summary(shop: Workshop) -> None:
    done = shop.forebay("run", shop.write("t.yaml", NUMBERS), "--json")
    assert [e["event"] for e in done.events] == ["started", "summary"]
    assert done.events[-1]["outcome"] == "done"
    assert (done.events[-1]["rows"], done.events[-1]["batches"]) == (10, 5)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_on_an_idle_stream_saves_the_position_and_exits_with_0(
    shop: Workshop, number: signal.Signals
) -> None:
    file = shop.write("t.yaml", ENDLESS)
    with shop.start("run", file, "--json", "--interval", "0.1") as run:
        assert run.stdout is not None
        next(line for line in run.stdout if json.loads(line).get("batches") == 2)
        run.send_signal(number)
        out, err = run.communicate(timeout=10)
    assert run.returncode == 0, err
    assert json.loads(out.splitlines()[-1]) == {"event": "stopped", "signal": number.name}
    state = checkpoint.load(shop.folder / "state.json")
    assert state is not None and state["splits"]["a"]["offset"] == 4
    assert not (shop.folder / "state.json.lock").exists()


def test_a_signal_while_the_topology_is_loaded_ends_the_run_with_0(shop: Workshop) -> None:
    shop.write("slow.py", "import time\nprint('loading', flush=True)\ntime.sleep(60)\n")
    file = shop.write("t.yaml", ENDLESS + "\n    train: slow:train\n")
    with shop.start("run", file) as run:
        assert run.stdout is not None
        assert run.stdout.readline() == "loading\n"
        run.terminate()
        out, err = run.communicate(timeout=10)
    assert (run.returncode, err) == (0, "")
    assert out == "stopped by SIGTERM before anything was read\n"
    assert not (shop.folder / "state.json").exists()


def test_a_second_signal_ends_the_run_at_once(shop: Workshop) -> None:
    shop.write(
        "stubborn.py",
        """
        def train(loader):
            for batch in loader:
                print("stepping", flush=True)
                while True:
                    try:
                        while True:
                            pass
                    except BaseException:
                        print("held on", flush=True)
        """,
    )
    file = shop.write("t.yaml", ENDLESS + "\n    train: stubborn:train\n")
    with shop.start("run", file, "--grace", "0") as run:
        assert run.stdout is not None
        assert run.stdout.readline().startswith("reading ")
        assert run.stdout.readline() == "stepping\n"
        run.send_signal(signal.SIGTERM)
        assert next(run.stdout) == "held on\n"
        while run.poll() is None:  # at first it is taken for the echo of the one before
            run.send_signal(signal.SIGTERM)
            time.sleep(0.05)
    assert run.returncode == -signal.SIGTERM
    assert checkpoint.load(shop.folder / "state.json") is None


def test_two_signals_at_once_are_one_order_to_stop(shop: Workshop) -> None:
    shop.write(
        "signalled.py",
        """
        import os, signal

        def train(loader):
            for batch in loader:
                for number in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
                    os.kill(os.getpid(), number)
        """,
    )
    file = shop.write("t.yaml", ENDLESS + "\n    train: signalled:train\n")
    with shop.start("run", file) as run:
        out, err = run.communicate(timeout=60)
    assert run.returncode == 0, err
    assert "\nstopped by SIG" in out
    assert checkpoint.load(shop.folder / "state.json") is not None


def test_a_second_run_on_one_checkpoint_is_refused(shop: Workshop) -> None:
    file = shop.write("t.yaml", ENDLESS)
    with shop.start("run", file, "--json", "--interval", "0.1") as run:
        assert run.stdout is not None
        next(line for line in run.stdout if json.loads(line).get("batches") == 2)
        second = shop.forebay("run", file, "--json")
        run.terminate()
        run.communicate(timeout=10)
    assert second.code == 6
    assert f"in use by process {run.pid} on " in second.events[-1]["message"]
    assert run.returncode == 0


def test_an_error_of_the_training_function_is_shown_with_its_traceback(shop: Workshop) -> None:
    shop.write("broken.py", "def train(loader):\n    for batch in loader:\n        1 / 0\n")
    done = shop.forebay("run", shop.write("t.yaml", NUMBERS + "\n    train: broken:train\n"))
    assert done.code == 1
    assert "1 / 0" in done.err
    assert done.err.endswith("broken:train raised ZeroDivisionError: division by zero\n")


def test_the_checkpoint_of_another_run_is_refused(shop: Workshop) -> None:
    for name, code in (("a", 0), ("b", 6)):
        text = NUMBERS + f"\n    name: {name}\n    checkpoint: state.json\n"
        done = shop.forebay("run", shop.write(f"{name}.yaml", text))
        assert done.code == code, done.err
    assert "belongs to the run 'a', this one is 'b'" in done.err


def test_a_damaged_checkpoint_gives_way_to_the_one_before_with_a_loud_word(
    shop: Workshop, seen: Path
) -> None:
    text = NUMBERS + "\n    train: my_training:train\n    checkpoint: {path: s.json, every: 2}\n"
    file = shop.write("t.yaml", text)
    assert shop.forebay("run", file, "--batches", 3).code == 0
    (shop.folder / "s.json").write_bytes(b"half a che")
    seen.unlink()
    done = shop.forebay("run", file)
    assert "ERROR forebay.checkpoint: the newest checkpoint is damaged" in done.err
    assert len(ids(seen)) == 6  # from the second batch on, not the third


# -- exit codes and messages ---------------------------------------------------------------------

FAILING = {
    "forebay.sources": {
        "memory": "forebay.testing:MemorySource",
        "gone": "failing:gone",
        "breaking": "failing:breaking",
        "lossy": "failing:lossy",
        "leaky": "failing:leaky",
        "buggy": "failing:buggy",
    }
}
SOURCES = """
    from forebay.errors import ConfigError, DataLossError, SourceError
    from forebay.testing import MemorySource

    class Failing(MemorySource):
        def splits(self):
            raise self.start

    class Breaking(MemorySource):
        def open(self, positions, owns):
            reader = super().open(positions, owns)
            poll = reader.poll

            def breaking_poll(timeout):
                s = poll(timeout)
                if s is not None and s.start >= 5:
                    raise SourceError("row 5 was changed")
                return s

            reader.poll = breaking_poll
            return reader

    def breaking():
        return Breaking({"a": range(10)}, slice_rows=1)

    def gone():
        return Failing({}, start=SourceError("no broker answers at localhost:1"))

    def lossy():
        error = DataLossError("kafka:clicks/0", 10, 50, "retention passed the position", "Skip.")
        return Failing({}, start=error)

    def buggy():
        return Failing({}, start=KeyError("inner"))

    def leaky(password: str):
        return Failing({}, start=SourceError(f"login failed with {password}"))
"""


@pytest.fixture
def failing(shop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    install_plugins(tmp_path / "failing-site", FAILING)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "failing-site"), *sys.path])
    shop.write("failing.py", SOURCES)
    return shop


@pytest.mark.parametrize(
    ("source", "code", "message"),
    [
        ("gone", 3, "error: no broker answers at localhost:1\n"),
        ("lossy", 4, "error: kafka:clicks/0: retention passed the position: up to 40 records "
         "from offset 10 to 49 are lost. Skip.\n"),
        ("buggy", 70, "error: KeyError: 'inner'\nThis is a bug of Forebay's: please report it"),
    ],
)  # fmt: skip
def test_each_kind_of_failure_has_its_exit_code_and_one_message(
    failing: Workshop, source: str, code: int, message: str
) -> None:
    file = failing.write("t.yaml", f"source: {{type: {source}}}\nbatch: 2\n")
    done = failing.forebay("run", file)
    assert done.code == code
    assert message in done.err
    assert ("Traceback" in done.err) == (code == 70)


BREAKING = """
    source: {type: breaking}
    batch: 2
    checkpoint: {path: state.json, every: 100}
"""


@pytest.mark.parametrize("train", ["", "    train: my_training:train\n"])
def test_an_error_of_the_source_leaves_the_position_behind_what_was_delivered(
    failing: Workshop, train: str
) -> None:
    failing.write("my_training.py", TRAINER)
    file = failing.write("t.yaml", BREAKING + train)
    done = failing.forebay("run", file)
    assert (done.code, done.err.splitlines()[-1]) == (3, "error: row 5 was changed")
    assert "\nfailed, records 4, " in done.out
    assert done.out.endswith("what was delivered is saved; the position is in state.json\n")
    state = checkpoint.load(failing.folder / "state.json")
    assert state is not None and state["splits"]["a"]["offset"] == 4
    again = failing.forebay("run", file)
    assert "goes on from state.json\nfailed, records 0, " in again.out
    assert not (failing.folder / "state.json.previous").exists()


def test_an_error_of_the_training_function_saves_no_position(failing: Workshop) -> None:
    text = "def train(loader):\n    for n, batch in enumerate(loader):\n        1 / (1 - n)\n"
    failing.write("broken.py", text)
    file = failing.write("t.yaml", BREAKING + "    train: broken:train\n")
    assert failing.forebay("run", file).code == 1
    assert checkpoint.load(failing.folder / "state.json") is None


def test_a_position_that_a_training_function_keeps_with_its_model_is_left_to_it(
    failing: Workshop,
) -> None:
    failing.write("model.py", "def train(loader, checkpoint):\n    for batch in loader: pass\n")
    file = failing.write("t.yaml", BREAKING + "    train: model:train\n")
    assert failing.forebay("run", file).code == 3
    assert not (failing.folder / "state.json").exists()


def test_debug_shows_where_an_error_comes_from(failing: Workshop) -> None:
    file = failing.write("t.yaml", "source: {type: gone}\nbatch: 2\n")
    assert "Traceback" in failing.forebay("run", file, "--debug").err


def test_json_tells_the_error_with_its_exit_code(failing: Workshop) -> None:
    file = failing.write("t.yaml", "source: {type: gone}\nbatch: 2\n")
    assert failing.forebay("run", file, "--json").events[-1] == {
        "event": "error",
        "error": "SourceError",
        "message": "no broker answers at localhost:1",
        "exit_code": 3,
    }


def test_a_secret_from_the_environment_is_never_shown(
    failing: Workshop, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PW", "S3CR3T-1")
    file = failing.write("t.yaml", "source: {type: leaky, password: '${PW}'}\nbatch: 2\n")
    for args in (["run", file], ["run", file, "--debug", "--json"], ["validate", file, "--json"]):
        done = failing.forebay(*args)
        assert "S3CR3T" not in done.out + done.err
    assert "login failed with ***" in failing.forebay("run", file).err


def test_a_spent_error_budget_has_its_exit_code(shop: Workshop) -> None:
    shop.write("stages.py", "def fail(row):\n    raise ValueError('no good')\n")
    text = """
        source: {type: memory, data: {a: [1, 2, 3, 4]}}
        stages: [{map: stages:fail, per: row}]
        error_budget: {share: 0.5, all_of: 2}
        dead_letters: {type: folder, path: letters}
        batch: 2
    """
    done = shop.forebay("run", shop.write("t.yaml", text))
    assert done.code == 5
    assert "stage 'fail' on a@" in done.err
    assert len(list(read_letters(shop.folder / "letters"))) == 4


def test_a_stage_that_breaks_its_contract_has_its_exit_code(shop: Workshop) -> None:
    shop.write("stages.py", "def shorter(columns):\n    return {'v': columns['value'][1:]}\n")
    text = NUMBERS + "\n    stages: [{map: stages:shorter}]\n"
    assert shop.forebay("run", shop.write("t.yaml", text)).code == 7


# -- validate and schema -------------------------------------------------------------------------


def test_validate_says_what_would_run(shop: Workshop) -> None:
    done = shop.forebay("validate", shop.write("t.yaml", NUMBERS))
    assert (done.code, done.err) == (0, "")
    assert done.out.endswith("t.yaml is valid: MemorySource -> batches of 2\n")


def test_validate_tells_every_problem_with_file_line_and_key(shop: Workshop) -> None:
    file = shop.write("t.yaml", "source: {type: memory}\nbatch: x\nlodaer: {}\n")
    done = shop.forebay("validate", file)
    assert done.code == 2
    assert done.err.splitlines() == [
        f"{file}:1:9: source.data: is missing: a mapping",
        f"{file}:2:8: batch: must be a whole number, not the text 'x'",
        f"{file}:3:1: lodaer: unknown section; did you mean 'loader'?",
        "error: 3 problems in the topology",
    ]
    problems = shop.forebay("validate", file, "--json").events[0]["problems"]
    assert problems[1]["line"] == 2 and problems[1]["key"] == "batch"


def test_validate_counts_one_problem_as_one(shop: Workshop) -> None:
    done = shop.forebay("validate", shop.write("t.yaml", NUMBERS + "\n    lodaer: {}\n"))
    assert done.err.splitlines()[-1] == "error: 1 problem in the topology"


def test_schema_prints_a_json_schema_with_the_installed_sources(shop: Workshop) -> None:
    schema = json.loads(shop.forebay("schema").out)
    sources = schema["properties"]["source"]["oneOf"]
    assert "memory" in [s["properties"]["type"]["const"] for s in sources]


def test_a_topology_that_is_not_there_is_a_usage_error(shop: Workshop) -> None:
    done = shop.forebay("run", "nowhere.yaml")
    assert done.code == 2
    assert (
        done.err == "error: the topology nowhere.yaml cannot be read: No such file or directory\n"
    )


# -- commands of other packages ------------------------------------------------------------------

COMMANDS = {
    "forebay.commands": {
        "hello": "their_command:hello",
        "broken": "no_such_package:command",
        "odd": "their_command:odd",
    }
}
THEIRS = """
    import click

    print("imported")
    odd = 5

    @click.command()
    def hello():
        click.echo("hello from elsewhere")
"""


@pytest.fixture
def extended(shop: Workshop, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Workshop:
    install_plugins(tmp_path / "command-site", COMMANDS)
    monkeypatch.setattr(sys, "path", [str(tmp_path / "command-site"), str(tmp_path), *sys.path])
    shop.write("their_command.py", THEIRS)
    return shop


def test_a_command_of_another_package_runs_as_ours(extended: Workshop) -> None:
    done = extended.forebay("hello")
    assert (done.code, done.out) == (0, "imported\nhello from elsewhere\n")


def test_help_lists_commands_without_importing_them(extended: Workshop) -> None:
    done = extended.forebay("--help")
    assert done.code == 0
    assert "imported" not in done.out
    for name in ("broken", "dlq", "hello", "run", "schema", "validate"):
        assert f"  {name} " in done.out


def test_a_broken_command_is_one_clear_error_and_hurts_no_other(extended: Workshop) -> None:
    done = extended.forebay("broken")
    assert done.code == 2
    assert done.err.startswith(
        "error: the command 'broken' of package forebay-test-plugins cannot be loaded: "
        "ModuleNotFoundError: No module named 'no_such_package'."
    )
    assert "is no click command but int" in extended.forebay("odd").err
    assert extended.forebay("hello").code == 0


def test_a_mistyped_command_names_the_near_one(shop: Workshop) -> None:
    done = shop.forebay("vlaidate", "x")
    assert (done.code, done.err) == (2, "error: there is no command 'vlaidate'; did you mean "
                                        "'validate'?\n")  # fmt: skip


@pytest.mark.parametrize("args", [["run"], ["run", "a", "b"], ["run", "--btaches", "1"], []])
def test_wrong_usage_ends_with_2(shop: Workshop, args: list[str]) -> None:
    assert shop.forebay(*args).code == 2


def test_version_is_told(shop: Workshop) -> None:
    done = shop.forebay("--version")
    assert done.code == 0
    assert done.out.startswith("forebay, version ")


# -- dlq -----------------------------------------------------------------------------------------

JSON_STAGE = """
    source: {type: memory, data: {a: []}}
    stages: [{decode: {json: {column: value, schema: {id: int64}}}}]
    batch: 2
    dead_letters: {type: folder, path: letters}
"""


def letter(offset: int, value: bytes | None, stage: str = "decode.json(value)") -> Letter:
    original = {
        "topic": "clicks",
        "partition": 3,
        "offset": offset,
        "key": b"k",
        "value": value,
        "headers": [{"key": "trace", "value": b"\xff\x00"}],
    }
    failure = Failure(offset=offset, stage=stage, reason=f"bad at {offset}", original=original)
    return Letter(split="kafka:clicks/3", failure=failure, time=1_764_489_600.0)


@pytest.fixture
def letters(shop: Workshop) -> Path:
    folder = shop.folder / "letters"
    sink = FolderSink(folder)
    sink.write([letter(1, b'{"id": 1}'), letter(2, b"\x00\xff"), letter(3, None), letter(4, b"{")])
    sink.write([letter(5, b'{"id": 5}', stage="other")])
    sink.close()
    return folder


def test_dlq_ls_counts_by_stage_and_reason_and_lists_the_first(
    shop: Workshop, letters: Path
) -> None:
    done = shop.forebay("dlq", "ls", letters, "--limit", 1)
    assert done.out.splitlines() == [
        "5 dead letters",
        "        4  decode.json(value): bad at #",
        "        1  other: bad at #",
        "2025-11-30T08:00:00Z  kafka:clicks/3@1  decode.json(value): bad at 1",
    ]


def test_dlq_ls_selects_and_speaks_json(shop: Workshop, letters: Path) -> None:
    for option, value in (("--stage", "other"), ("--reason", "at 5")):
        counts, row = shop.forebay("dlq", "ls", letters, option, value, "--json").events
        assert counts["letters"] == 1
        assert (row["split"], row["offset"], row["value_bytes"]) == ("kafka:clicks/3", 5, 9)
    assert shop.forebay("dlq", "ls", letters, "--split", "x", "--json").events[0]["letters"] == 0


def test_dlq_finds_the_letters_of_a_topology(shop: Workshop, letters: Path) -> None:
    file = shop.write("t.yaml", JSON_STAGE)
    assert "5 dead letters" in shop.forebay("dlq", "ls", file).out


def test_dlq_takes_no_folder_of_other_things_for_one_without_letters(shop: Workshop) -> None:
    (shop.folder / "other").mkdir()
    assert shop.forebay("dlq", "ls", shop.folder / "other").code == 0
    (shop.folder / "other" / "part-0.parquet").touch()
    done = shop.forebay("dlq", "ls", shop.folder / "other")
    assert (done.code, done.out) == (2, "")
    assert "it has no file letters-*, but 'part-0.parquet'" in done.err


def test_dlq_asks_for_a_topology_where_an_address_does_not_say_enough(shop: Workshop) -> None:
    done = shop.forebay("dlq", "ls", "kafka:clicks.dead")
    assert done.code == 2
    assert "kafka:clicks.dead does not say all that this type wants (config)" in done.err


def test_dlq_show_says_why_it_failed_and_what_was_in_it(shop: Workshop, letters: Path) -> None:
    done = shop.forebay("dlq", "show", letters, "kafka:clicks/3@2")
    assert "reason   bad at 2" in done.out
    assert "header   trace = 00000000  ff 00" in done.out
    assert "value    2 bytes\n00000000  00 ff" in done.out
    assert '{"id": 1}' in shop.forebay("dlq", "show", letters, "kafka:clicks/3@1").out


def test_dlq_show_raw_writes_the_bytes_and_nothing_else(shop: Workshop, letters: Path) -> None:
    with shop.start("dlq", "show", letters, "kafka:clicks/3@1", "--raw") as shown:
        out, _ = shown.communicate(timeout=60)
    assert out == '{"id": 1}'
    done = shop.forebay("dlq", "show", letters, "kafka:clicks/3@3", "--raw")
    assert (done.code, "no bytes but null" in done.err) == (2, True)


def test_dlq_show_of_a_letter_that_is_not_there_is_an_error(shop: Workshop, letters: Path) -> None:
    done = shop.forebay("dlq", "show", letters, "kafka:clicks/3@99")
    assert done.code == 2
    assert "there is no dead letter kafka:clicks/3@99" in done.err


def test_dlq_replay_says_what_passes_now_and_changes_nothing(shop: Workshop, letters: Path) -> None:
    done = shop.forebay("dlq", "replay", "--topology", shop.write("t.yaml", JSON_STAGE))
    assert done.code == 0
    assert "still fails: kafka:clicks/3@3 decode.json(value): the value is null" in done.out
    assert done.out.splitlines()[-1] == "2 of 5 dead letters pass now"
    assert len(list(read_letters(letters))) == 5


def test_dlq_replay_sends_what_passes_elsewhere_and_removes_it_here(
    shop: Workshop, letters: Path
) -> None:
    file = shop.write("t.yaml", JSON_STAGE)
    args = ["--topology", file, "--to", "folder:again", "--remove-passed", "--json"]
    done = shop.forebay("dlq", "replay", letters, *args)
    assert done.events[-1] == {
        "event": "replayed", "passed": 2, "failed": 3, "sent_to": "folder:again", "removed": True,
    }  # fmt: skip
    assert [x.failure.offset for x in read_letters(shop.folder / "again")] == [1, 5]
    assert [x.failure.offset for x in read_letters(letters)] == [2, 3, 4]


def test_dlq_on_nothing_is_one_clear_error(shop: Workshop) -> None:
    assert "no folder of dead letters and no topology" in shop.forebay("dlq", "ls", "x").err
    done = shop.forebay("dlq", "ls", shop.write("t.yaml", NUMBERS))
    assert (done.code, "has no section 'dead_letters'" in done.err) == (2, True)


def test_a_training_function_that_uses_torch_optim_leaves_no_noise(shop: Workshop) -> None:
    shop.write(
        "optimized.py",
        """
        import torch

        def train(loader):
            model = torch.nn.Linear(1, 1)
            torch.optim.SGD(model.parameters(), lr=0.1).step()
            list(loader)
        """,
    )
    file = shop.write("t.yaml", NUMBERS + "    train: optimized:train\n")
    with shop.start("run", file) as run:
        _, err = run.communicate(timeout=60)
    assert (run.returncode, err) == (0, "")
