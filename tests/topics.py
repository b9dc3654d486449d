"""Topics for tests: made on whichever broker a test was given, each under a name of its own."""

from __future__ import annotations

import time
import uuid

from confluent_kafka import KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient
from confluent_kafka.cimpl import NewTopic

from forebay_kafka.cluster import earliest

ADMIN_SECONDS = 20.0


class Topics:
    """Makes topics with unique names on one broker, so that tests can share it."""

    def __init__(self, bootstrap: str) -> None:
        self.bootstrap = bootstrap
        self.admin = AdminClient({"bootstrap.servers": bootstrap, "log_level": 2})

    def __call__(self, partitions: int = 1, config: dict[str, str] | None = None) -> str:
        """Create a topic, wait until it exists, and return its name."""
        name = f"t-{uuid.uuid4().hex[:12]}"
        self.create(name, partitions, config)
        return name

    def create(
        self,
        name: str,
        partitions: int = 1,
        config: dict[str, str] | None = None,
        *,
        replicas: int = 1,
    ) -> None:
        topic = NewTopic(name, partitions, replicas, config=config or {})
        self.admin.create_topics([topic], operation_timeout=ADMIN_SECONDS)[name].result()
        self._wait_until_served(name, partitions)

    def _wait_until_served(self, name: str, partitions: int) -> None:
        """A broker answers for a topic a moment after its controller has made it."""
        deadline = time.monotonic() + ADMIN_SECONDS
        while not self._served(name, partitions):
            assert time.monotonic() < deadline, f"the broker does not know topic {name!r}"
            time.sleep(0.02)

    def _served(self, name: str, partitions: int) -> bool:
        wanted = {TopicPartition(name, p): earliest() for p in range(partitions)}
        try:
            answers = [f.result(ADMIN_SECONDS) for f in self.admin.list_offsets(wanted).values()]
        except KafkaException:
            return False
        return len(answers) == partitions

    def recreate(self, name: str, partitions: int = 1) -> None:
        """Delete a topic and make it anew; brokers free a name some time after the deletion."""
        self.delete(name)
        deadline = time.monotonic() + ADMIN_SECONDS
        while not self._created(name, partitions):
            assert time.monotonic() < deadline, f"topic {name!r} is still being deleted"
            time.sleep(0.05)

    def _created(self, name: str, partitions: int) -> bool:
        try:
            self.create(name, partitions)
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return False
            raise
        return True

    def delete(self, name: str) -> None:
        self.admin.delete_topics([name], operation_timeout=ADMIN_SECONDS)[name].result()
