"""When a worker of Ray counts as hanging: by what goes out and what comes back."""

from __future__ import annotations

from forebay.ray.hanging import HangWatch
from forebay.testing import TurnableClock


class Pool:
    """Workers that give back parcels as told, a second each."""

    def __init__(self, workers: int = 3) -> None:
        self.clock = TurnableClock()
        self.watch = HangWatch(30.0, most_of_one=2, clock=self.clock)
        self.workers, self.row_seconds = workers, 0.01
        self.number = 0

    def put(self, parcels: int = 1) -> int:
        """Parcels go out; the number of the last."""
        for _ in range(parcels):
            self.number += 1
            self.watch.put(self.number, rows=20)
        return self.number

    def work(self, seconds: int, *workers: str) -> None:
        """These workers give a new parcel back each second."""
        for _ in range(seconds):
            self.clock.turn(1.0)
            for worker in workers:
                self.watch.back(self.put(), worker)

    @property
    def hang(self) -> tuple[float, set[str]] | None:
        found = self.watch.look(self.workers, self.row_seconds)
        return None if found is None else (found.seconds, set(found.alive))


def test_a_parcel_that_is_out_for_long_while_peers_go_on_shows_a_worker_that_hangs() -> None:
    pool = Pool()
    pool.watch.back(pool.put(), "c")
    pool.put()
    pool.work(30, "a", "b")
    assert pool.hang is None
    pool.work(1, "a", "b")
    assert pool.hang == (30.0, {"a", "b"})


def test_a_stage_that_is_slow_on_every_worker_is_no_hanging() -> None:
    pool = Pool()
    pool.put(5)
    pool.clock.turn(1000.0)
    assert pool.hang is None


def test_peers_that_gave_back_only_what_was_put_before_prove_nothing() -> None:
    pool = Pool()
    first = pool.put(9)
    pool.put(3)
    pool.clock.turn(100.0)
    for number in range(1, first + 1):
        pool.watch.back(number, "a")
    assert pool.hang is None


def test_a_lone_worker_is_never_taken_for_hanging() -> None:
    pool = Pool(workers=1)
    pool.put()
    pool.work(100, "a")
    assert pool.hang is None


def test_the_last_parcels_of_all_are_waited_for_no_longer_than_others() -> None:
    pool = Pool()
    pool.put(2)
    pool.clock.turn(31.0)
    assert pool.hang == (30.0, set())


def test_rows_that_take_long_by_themselves_are_given_the_time() -> None:
    pool = Pool()
    pool.row_seconds = 1.0
    pool.put()
    pool.work(1000, "a", "b")
    assert pool.hang is None
    pool.work(1, "a", "b")
    assert pool.hang == (1000.0, {"a", "b"})


def test_what_is_run_once_more_is_given_ten_times_the_time() -> None:
    pool = Pool()
    pool.put()
    pool.work(31, "a", "b")
    pool.watch.replaced(pool.workers, pool.row_seconds)
    pool.work(300, "a", "b")
    assert pool.hang is None
    pool.work(1, "a", "b")
    assert pool.hang == (300.0, {"a", "b"})


def test_nothing_hangs_in_a_new_pool() -> None:
    pool = Pool()
    pool.put()
    pool.work(31, "a", "b")
    pool.watch.clear()
    assert pool.hang is None


def test_a_parcel_that_comes_after_all_is_no_trouble() -> None:
    pool = Pool()
    number = pool.put()
    pool.work(31, "a", "b")
    pool.watch.back(number, "c")
    assert pool.hang is None
    pool.watch.back(number, "c")
