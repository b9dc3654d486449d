"""Apache Kafka for integration tests: one KRaft node from its own jars, on a free loopback port.

The jars named in `kafka/pom.xml` are fetched once by Maven into a cache folder, `$FOREBAY_CACHE`
or `.cache` in this repository. Needs a JDK of at least 17, and Maven for the first run.
"""

from __future__ import annotations

import base64
import contextlib
import os
import re
import shutil
import socket
import subprocess
import tempfile
import time
import uuid
from pathlib import Path
from types import TracebackType

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

HERE = Path(__file__).resolve().parent
POM = HERE / "kafka" / "pom.xml"
OLDEST_JAVA = 17
FETCH_SECONDS = 600.0
START_SECONDS = 60.0
STOP_SECONDS = 20.0
LOG_TAIL_LINES = 30
HEAP = ("-Xms64m", "-Xmx512m", "-XX:+UseSerialGC", "-XX:TieredStopAtLevel=1")

# Housekeeping that takes minutes by default, so that tests can wait for it; records with old
# timestamps stay unless a topic's own retention.ms says otherwise.
IMPATIENT = {
    "log.initial.task.delay.ms": "500",
    "log.retention.ms": "-1",
    "log.retention.check.interval.ms": "500",
    "log.cleaner.backoff.ms": "200",
    "log.segment.delete.delay.ms": "0",
    "broker.session.timeout.ms": "5000",
    "broker.heartbeat.interval.ms": "500",
    "transaction.abort.timed.out.transaction.cleanup.interval.ms": "500",
}

# Settings that do not depend on a port or a folder; docker-compose.yml has the same.
SETTINGS = {
    "node.id": "1",
    "process.roles": "broker,controller",
    "controller.listener.names": "CONTROLLER",
    "inter.broker.listener.name": "PLAINTEXT",
    "offsets.topic.replication.factor": "1",
    "transaction.state.log.replication.factor": "1",
    "transaction.state.log.min.isr": "1",
    "share.coordinator.state.topic.replication.factor": "1",
    "share.coordinator.state.topic.min.isr": "1",
    "group.initial.rebalance.delay.ms": "0",
    "auto.create.topics.enable": "false",
}


class KafkaUnavailable(Exception):
    """Apache Kafka cannot be run here; the text says what is missing."""


def jars() -> Path:
    """The folder with Kafka's jars, fetched if need be; KafkaUnavailable says why there is none."""
    folder = _cache() / "kafka" / _version()
    if not (folder / "complete").exists():
        _fetch(folder)
    return folder


def java() -> str:
    """The `java` to run Kafka with: `$JAVA_HOME`'s, or the one on the path."""
    home = os.environ.get("JAVA_HOME")
    found = str(Path(home) / "bin" / "java") if home else shutil.which("java")
    if found is None or not Path(found).exists():
        raise KafkaUnavailable("no `java` found: Apache Kafka needs a JDK of version 17 or later")
    told = subprocess.run([found, "-version"], capture_output=True, text=True, check=False).stderr
    major = re.search(r'version "(\d+)', told)
    if major is None or int(major[1]) < OLDEST_JAVA:
        first = told.splitlines()[0] if told else "no version"
        raise KafkaUnavailable(f"Apache Kafka needs a JDK of version 17 or later; {found}: {first}")
    return found


def _cache() -> Path:
    return Path(os.environ.get("FOREBAY_CACHE") or HERE.parent / ".cache")


def _version() -> str:
    found = re.search(r"<kafka.version>([^<]+)<", POM.read_text())
    assert found is not None, f"{POM} names no kafka.version"
    return found[1]


def _fetch(folder: Path) -> None:
    """Let Maven copy the jars; the mark is written last, so that half a folder is not used."""
    maven = shutil.which("mvn")
    if maven is None:
        raise KafkaUnavailable("no `mvn` found: Maven fetches Kafka's jars for the first run")
    command = [maven, "-q", "-B", "-f", str(POM), "dependency:copy-dependencies"]
    command += [f"-DoutputDirectory={folder}", "-DincludeScope=runtime"]
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=FETCH_SECONDS, check=False
        )
    except subprocess.TimeoutExpired as cause:
        raise KafkaUnavailable(f"Maven did not fetch Kafka in {FETCH_SECONDS:.0f} s") from cause
    if done.returncode != 0:
        tail = "\n".join((done.stdout + done.stderr).splitlines()[-5:])
        raise KafkaUnavailable(f"Maven could not fetch Apache Kafka's jars:\n{tail}")
    (folder / "complete").touch()


class ApacheKafka:
    """One broker with its data in a temporary folder, which is removed when it is stopped.

    After kill() the data is still there and restart() brings the broker back on the same port.
    """

    def __init__(self) -> None:
        self._java = java()
        self._class_path = f"{jars()}/*"
        self._folder = Path(tempfile.mkdtemp(prefix="forebay-kafka-"))
        self._port, self._controller_port = _free_ports(2)
        self._process: subprocess.Popen[bytes] | None = None
        self._log = self._folder / "kafka.log"

    @property
    def bootstrap(self) -> str:
        """`host:port` for `bootstrap.servers`."""
        return f"127.0.0.1:{self._port}"

    def start(self) -> ApacheKafka:
        """Format the storage, start the broker and return once it answers."""
        properties = self._folder / "server.properties"
        properties.write_text("".join(f"{k}={v}\n" for k, v in self._settings().items()))
        tool = ["kafka.tools.StorageTool", "format", "--standalone", "-t", _cluster_id()]
        try:
            self._run(*tool, "-c", str(properties))
            self.restart()
        except BaseException:
            self.stop()
            raise
        return self

    def restart(self) -> None:
        """Start the broker (again) on the data it left, and return once it answers."""
        self._end(kill=False)
        properties = str(self._folder / "server.properties")
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [self._java, *HEAP, "-cp", self._class_path, "kafka.Kafka", properties],
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
            )
        self._await_answer(self._process)

    def kill(self) -> None:
        """SIGKILL the broker; its data stays for restart()."""
        self._end(kill=True)

    def stop(self) -> None:
        """Stop the broker and remove its data. Harmless when repeated."""
        self._end(kill=False)
        shutil.rmtree(self._folder, ignore_errors=True)

    def _settings(self) -> dict[str, str]:
        controller = f"127.0.0.1:{self._controller_port}"
        return (
            SETTINGS
            | IMPATIENT
            | {
                "listeners": f"PLAINTEXT://{self.bootstrap},CONTROLLER://{controller}",
                "advertised.listeners": f"PLAINTEXT://{self.bootstrap}",
                "listener.security.protocol.map": "PLAINTEXT:PLAINTEXT,CONTROLLER:PLAINTEXT",
                "controller.quorum.bootstrap.servers": controller,
                "log.dirs": str(self._folder / "data"),
            }
        )

    def _run(self, *arguments: str) -> None:
        command = [self._java, *HEAP, "-cp", self._class_path, *arguments]
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=START_SECONDS, check=False
        )
        if done.returncode != 0:
            raise RuntimeError(f"{arguments[0]} failed:\n{done.stdout}{done.stderr}")

    def _await_answer(self, process: subprocess.Popen[bytes]) -> None:
        admin = AdminClient({"bootstrap.servers": self.bootstrap, "log_level": 0})
        deadline = time.monotonic() + START_SECONDS
        while time.monotonic() < deadline and process.poll() is None:
            with contextlib.suppress(KafkaException):
                admin.list_topics(timeout=1)
                return
        tail = "\n".join(self._log.read_text(errors="replace").splitlines()[-LOG_TAIL_LINES:])
        raise RuntimeError(f"Apache Kafka did not start (exit {process.poll()}):\n{tail}")

    def _end(self, *, kill: bool) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        if not kill:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_SECONDS)
        process.kill()
        process.wait()

    def __enter__(self) -> ApacheKafka:
        return self.start()

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.stop()


def _cluster_id() -> str:
    """A random id as Kafka writes them: 22 letters, of which the first may not look an option."""
    raw = uuid.uuid4().bytes
    return base64.urlsafe_b64encode(bytes([raw[0] & 0x7F]) + raw[1:]).decode().rstrip("=")


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on now; held together while they are chosen, so they differ."""
    with contextlib.ExitStack() as held:
        sockets = [held.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [int(each.getsockname()[1]) for each in sockets]
