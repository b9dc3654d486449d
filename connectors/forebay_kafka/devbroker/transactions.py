"""The transaction coordinator: producer ids, epochs that fence, open transactions, time-outs."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from forebay_kafka.devbroker.codes import Code, Refusal
from forebay_kafka.devbroker.log import PartitionLog
from forebay_kafka.devbroker.topics import CommitKey, Committed, Topics

FIRST_PRODUCER_ID = 1000
MAX_EPOCH = 0x7FFF - 1

Cancel = Callable[[], None]
Later = Callable[[float, Callable[[], None]], Cancel]
"""(seconds, action) -> a function that calls the action off."""


@dataclass(slots=True)
class Transaction:
    """A transactional id: its producer, and what the transaction in progress has touched."""

    producer_id: int
    epoch: int
    timeout_ms: int
    partitions: list[PartitionLog] = field(default_factory=list)
    offsets: dict[CommitKey, Committed] = field(default_factory=dict)
    call_off: Cancel | None = None
    outcome: bool | None = None
    """How the last transaction ended: committed, aborted, or none was ever open."""

    @property
    def is_open(self) -> bool:
        return self.call_off is not None


class Transactions:
    """Hands out producer ids and carries transactions from their first partition to their end."""

    def __init__(self, topics: Topics, later: Later) -> None:
        self._topics = topics
        self._later = later
        self._by_id: dict[str, Transaction] = {}
        self._next_producer_id = FIRST_PRODUCER_ID

    def new_producer_id(self) -> int:
        self._next_producer_id += 1
        return self._next_producer_id

    def start_producer(self, transactional_id: str, timeout_ms: int) -> Transaction:
        """A producer epoch that fences all earlier ones; what they left open is aborted."""
        known = self._by_id.get(transactional_id)
        if known is None:
            known = Transaction(self.new_producer_id(), -1, timeout_ms)
            self._by_id[transactional_id] = known
        self._fence(known)
        known.timeout_ms = timeout_ms
        return known

    def checked(self, transactional_id: str | None, producer_id: int, epoch: int) -> Transaction:
        """The transaction of a producer that is still the current one."""
        known = self._by_id.get(transactional_id or "")
        if known is None or known.producer_id != producer_id:
            raise Refusal(Code.INVALID_PRODUCER_ID_MAPPING)
        if known.epoch != epoch:
            raise Refusal(Code.INVALID_PRODUCER_EPOCH)
        return known

    def add_partition(self, transaction: Transaction, partition: PartitionLog) -> None:
        self.open(transaction)
        if partition not in transaction.partitions:
            transaction.partitions.append(partition)

    def open(self, transaction: Transaction) -> None:
        """Start the time-out at the first thing a transaction touches."""
        if transaction.is_open:
            return
        seconds = transaction.timeout_ms / 1000
        transaction.call_off = self._later(seconds, lambda: self._fence(transaction))

    def end(self, transaction: Transaction, *, committed: bool) -> None:
        """Commit or abort; asking again for the same end is how a client retries a lost answer."""
        if not transaction.is_open and transaction.outcome is not committed:
            raise Refusal(Code.INVALID_TXN_STATE, "no transaction is open")
        self._finish(transaction, committed=committed)

    def _finish(self, transaction: Transaction, *, committed: bool) -> None:
        for partition in transaction.partitions:
            partition.end_transaction(
                transaction.producer_id, transaction.epoch, committed=committed
            )
        if committed:
            self._topics.committed.update(transaction.offsets)
        if transaction.call_off is not None:
            transaction.call_off()
            transaction.outcome = committed
        transaction.partitions, transaction.offsets = [], {}
        transaction.call_off = None

    def _fence(self, transaction: Transaction) -> None:
        """Raise the epoch, so that the markers and all that follows outrank the old producer."""
        if transaction.epoch >= MAX_EPOCH:
            self._finish(transaction, committed=False)
            transaction.producer_id, transaction.epoch = self.new_producer_id(), -1
        transaction.epoch += 1
        self._finish(transaction, committed=False)
