"""Nothing runs before the first batch, nothing is left after the last, whatever ends the loop."""

from __future__ import annotations

import gc
import multiprocessing as mp
import os
import pickle
import signal
import threading
from typing import Any

import numpy as np
import pytest
from torch.utils.data import DataLoader

from forebay import ConfigError, Loader, Pipeline, ProcessError, SourceError, StageError
from forebay.columns import Columns
from forebay.testing import Fail, MemorySource


def loader(data: Any = range(100), *, bounded: bool = True, **options: Any) -> Loader:
    source = MemorySource({"a": list(data)}, bounded=bounded)
    return Pipeline(source).map(lambda c: c, name="same").batch(8).loader(**options)


def threads() -> list[str]:
    return [t.name for t in threading.enumerate() if t.name.startswith("forebay")]


def test_nothing_starts_before_the_first_batch() -> None:
    of = loader()
    iter(of)
    of.state_dict()
    assert threads() == []


def test_the_end_of_the_data_leaves_no_thread() -> None:
    assert len(list(loader())) == 13
    assert threads() == []


def test_leaving_the_loop_early_leaves_no_thread() -> None:
    of = loader(bounded=False)
    for _ in of:
        assert threads()
        break
    gc.collect()
    assert threads() == []


def test_an_iterator_that_is_dropped_leaves_a_later_loop_alone() -> None:
    with loader(state_of="committed") as of:
        dropped = iter(of)
        given = next(dropped)["value"].tolist()
        batches = iter(of)
        given += next(batches)["value"].tolist()
        del dropped
        iter(of)
        assert given + next(batches)["value"].tolist() == list(range(24))
        of.commit(3)


def test_a_loop_that_the_collector_finds_in_one_of_our_own_threads_leaves_no_thread() -> None:
    forgotten = threading.Event()

    def collecting(columns: Columns) -> Columns:
        if 8 in np.asarray(columns["value"]):
            forgotten.wait(60)
            gc.collect()
        return columns

    source = MemorySource({"a": list(range(16))}, slice_rows=8, bounded=False)
    loops: list[Any] = [iter(Pipeline(source).map(collecting).batch(8).loader())]
    next(loops[0])
    ours = [t for t in threading.enumerate() if t.name.startswith("forebay")]
    loops.append(loops)  # a cycle: only the collector finds it
    del loops
    forgotten.set()
    for thread in ours:
        thread.join(10)
    assert not any(thread.is_alive() for thread in ours)


def test_a_forgotten_loader_leaves_no_thread() -> None:
    of = loader(bounded=False, steps_per_epoch=2)
    list(of)
    assert threads()
    del of
    gc.collect()
    assert threads() == []


def test_close_ends_a_loader_that_waits_for_data_and_may_be_called_twice() -> None:
    of = loader(range(8), bounded=False)
    batches = iter(of)
    next(batches)
    of.close()
    of.close()
    assert threads() == []


def test_an_error_in_the_loop_leaves_no_thread() -> None:
    with pytest.raises(ZeroDivisionError), loader(bounded=False) as of:
        for _ in of:
            1 / 0  # noqa: B018
    assert threads() == []


def test_ctrl_c_while_waiting_for_data_reaches_the_trainer_and_the_state_stays_right() -> None:
    of = loader(range(8), bounded=False)
    batches = iter(of)
    next(batches)
    threading.Timer(0.2, lambda: os.kill(os.getpid(), signal.SIGINT)).start()
    with pytest.raises(KeyboardInterrupt):
        next(batches)
    assert of.state_dict()["splits"]["a"]["offset"] == 8
    of.close()
    assert threads() == []


def test_closing_a_loader_that_waits_for_data_does_not_end_the_pass() -> None:
    of = loader(range(8), bounded=False, passes=2)
    batches = iter(of)
    next(batches)
    threading.Timer(0.2, of.close).start()
    assert next(batches, None) is None
    state = of.state_dict()
    assert (state["pass"], state["splits"]["a"]["offset"]) == (0, 8)


def test_a_batch_that_cannot_be_moved_to_the_device_was_not_delivered() -> None:
    of = loader(device="privateuseone")  # torch's name for a backend that nobody registered
    with pytest.raises((RuntimeError, ImportError)):
        next(iter(of))
    assert of.state_dict()["splits"]["a"]["offset"] == 0
    assert threads() == []


def test_an_error_of_the_source_is_raised_after_all_batches_before_it() -> None:
    of = loader([*range(20), Fail("the disk is gone")])
    batches = iter(of)
    assert [next(batches).rows for _ in range(2)] == [8, 8]
    with pytest.raises(SourceError, match="a@20: the disk is gone"):
        next(batches)


def test_an_error_of_a_source_that_cannot_be_opened_leaves_no_thread() -> None:
    class Broken(MemorySource):
        def open(self, *_: Any) -> Any:
            raise SourceError("no such topic 'clicks'")

    with pytest.raises(SourceError, match="no such topic"):
        next(iter(Pipeline(Broken({"a": [1]})).batch(1).loader()))
    assert threads() == []


def test_a_stage_that_returns_the_wrong_number_of_rows_names_itself_and_the_place() -> None:
    def short(columns: Columns) -> Columns:
        return {"value": np.asarray(columns["value"])[1:]}

    of = Pipeline(MemorySource({"a": list(range(9))})).map(short).batch(4).loader()
    with pytest.raises(StageError, match=r"stage 'short' failed on a@0: .* 7 rows and returned 6"):
        next(iter(of))


def test_a_data_loader_without_workers_may_stand_around_it() -> None:
    wrapped = DataLoader(loader(), batch_size=None, num_workers=0)
    assert [v for b in wrapped for v in b["value"].tolist()] == list(range(100))


@pytest.mark.parametrize("workers", [1, 2])
def test_data_loader_workers_are_refused_with_the_reason(workers: int) -> None:
    wrapped = DataLoader(loader(), batch_size=None, num_workers=workers)
    with pytest.raises(ProcessError, match="each worker would read every record"):
        next(iter(wrapped))


def _use(of: Loader, out: Any) -> None:
    try:
        next(iter(of))
        out.put("a batch")
    except ProcessError as e:
        out.put(str(e))


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_a_started_loader_in_a_forked_child_is_refused_and_names_spawn() -> None:
    context = mp.get_context("fork")
    with loader(bounded=False) as of:
        next(iter_ := iter(of))
        out = context.Queue()
        child = context.Process(target=_use, args=(of, out))
        child.start()
        assert "'spawn'" in out.get(timeout=30)
        child.join()
        assert next(iter_).rows == 8


def test_a_loader_that_was_not_started_can_be_pickled_and_a_running_one_cannot() -> None:
    of = Pipeline(MemorySource({"a": [1, 2]})).batch(1).loader()
    assert len(list(pickle.loads(pickle.dumps(of)))) == 2
    with Pipeline(MemorySource({"a": [1, 2]}, bounded=False)).batch(1).loader() as running:
        batches = iter(running)
        next(batches)
        with pytest.raises(ProcessError, match="running loader cannot be pickled"):
            pickle.dumps(running)


@pytest.mark.parametrize("rank", range(4))
def test_more_ranks_than_splits_are_refused_on_every_rank(rank: int) -> None:
    with pytest.raises(ConfigError, match="none of the source's 1 splits") as e:
        next(iter(loader(rank=rank, world_size=4)))
    assert "for a Delta table, shards=4" in str(e.value)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"order": "random"}, "order must be one of split, arrival, deterministic, not 'random'"),
        ({"max_bytes": -1}, "max_bytes must be a positive integer, not -1"),
        ({"prefetch": 0}, "prefetch must be a positive integer"),
        ({"steps_per_epoch": 1.5}, "steps_per_epoch must be a positive integer, not 1.5"),
        ({"workers": 0}, "workers must be"),
        ({"prefetsch": 2}, "no option 'prefetsch'; did you mean 'prefetch'?"),
        ({"rank": 1}, "both rank and world_size"),
        ({"rank": -1, "world_size": 4}, "rank must be 0 to world_size - 1 (3), not -1"),
        ({"rank": 4, "world_size": 4}, "rank must be 0 to world_size - 1 (3), not 4"),
        ({"rank": 0, "world_size": 0}, "world_size must be a positive integer, not 0"),
    ],
)
def test_a_wrong_option_is_refused_before_anything_starts(
    options: dict[str, Any], words: str
) -> None:
    with pytest.raises(ConfigError) as e:
        next(iter(loader(**options)))
    assert words in str(e.value)


@pytest.mark.parametrize("size", [0, -3, 2.5])
def test_a_batch_size_that_is_no_positive_integer_is_refused(size: Any) -> None:
    with pytest.raises(ConfigError, match=f"positive integer, not {size}"):
        Pipeline(MemorySource({"a": [1]})).batch(size)
