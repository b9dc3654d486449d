"""A small Kafka broker for development and tests: one node, in memory, pure Python.

`DevBroker` runs it in a thread, `DevBrokerProcess` in a child process; `.faults` of either makes
it misbehave on demand. `forebay dev-broker` runs it in a terminal.
"""

from forebay_kafka.devbroker.broker import DevBrokerError
from forebay_kafka.devbroker.codes import Code
from forebay_kafka.devbroker.faults import Faults
from forebay_kafka.devbroker.process import DevBrokerProcess
from forebay_kafka.devbroker.thread import DevBroker

__all__ = ["Code", "DevBroker", "DevBrokerError", "DevBrokerProcess", "Faults"]
