"""A ClickHouse server or cluster as the target, through clickhouse-connect: one of several endpoints is in use.

    Server(config)     reads the addresses, opens nothing
    .connect()         for commands: opens an endpoint now, or raises `Unusable` with all reasons
    .start()           for a collector: connects and migrates in the background, for as long as it takes
    .client            the client of an endpoint that answers; `Unusable` if none does, and before `start` is through

Every use of `.client` asks the endpoint in use for a sign of life (about 1 ms) and moves on to the next one if there is
none; so an insert that failed with an endpoint is repeated, with the same token, on another.

Errors: `Unusable` is both a `UserError` and an error of clickhouse-connect.
"""

from __future__ import annotations

import logging
import random
import threading
import time
from collections.abc import Sequence

from clickhouse_connect.driver.client import Client
from clickhouse_connect.driver.exceptions import ClickHouseError

from tailspan.errors import UserError
from tailspan_collector.server_endpoint import Endpoint, ServerConfig, Unusable, open_client, parse_endpoints
from tailspan_schemas import migrations

_LOG = logging.getLogger(__name__)
_FIRST_WAIT_S, _LONGEST_WAIT_S = 0.5, 10.0
_SAY_AGAIN_S = 300.0
_CLOSE_S = 5.0
_SHARED_ENGINES = ("Shared", "Replicated", "Distributed")


class Server:
    """One ClickHouse server or cluster; also what migrations need."""

    def __init__(self, config: ServerConfig | str) -> None:
        """Read the addresses.

        Raises:
            UserError: one is malformed, or a file does not exist.
        """
        self.config = ServerConfig(config) if isinstance(config, str) else config
        self._endpoints = parse_endpoints(self.config)
        self._clients: dict[Endpoint, Client] = {}
        self._server_id: str | None = None
        # The members of a cluster are equals: many collectors begin with different ones.
        self._current = random.randrange(len(self._endpoints)) if self.config.cluster else 0  # noqa: S311
        self._lock = threading.Lock()
        self._ready = threading.Event()
        self._stop = threading.Event()
        self._thread: threading.Thread | None = None
        self.problem = "not connected yet"

    @property
    def client(self) -> Client:
        """The client of an endpoint that answers.

        Raises:
            Unusable: none does, or the schema is not there yet.
        """
        if self._thread is not None and not self._ready.is_set():
            raise Unusable(self.problem, "The collector keeps what it receives and tries again")
        return self.connect()

    @property
    def endpoint_text(self) -> str:
        """The addresses without credentials, with commas between."""
        return ",".join(str(endpoint) for endpoint in self._endpoints)

    @property
    def is_ready(self) -> bool:
        """Whether `start` has connected and applied the schema."""
        return self._ready.is_set()

    def start(self) -> None:
        """Connect and apply pending migrations in the background, until it worked or `close` is called."""
        self._thread = threading.Thread(target=self._prepare, name="clickhouse", daemon=True)
        self._thread.start()

    def connect(self) -> Client:
        """Return the client of the endpoint in use if it answers, else of the next one that does.

        Raises:
            Unusable: none does; the reason of each.
        """
        with self._lock:
            problems = []
            for step in range(len(self._endpoints)):
                index = (self._current + step) % len(self._endpoints)
                try:
                    client = self._answering(self._endpoints[index])
                except Unusable as problem:
                    problems.append(problem)
                    continue
                if index != self._current:
                    _LOG.warning("%s; using %s", problems[0].what, self._endpoints[index])
                self._current = index
                return client
        raise Unusable("; ".join(problem.what for problem in problems), problems[0].remedy)

    def command(self, sql: str) -> None:
        """Run a statement that returns nothing."""
        self.connect().command(sql)

    def rows(self, sql: str) -> Sequence[Sequence[str]]:
        """Run a query; every value as text."""
        return [[str(value) for value in row] for row in self.connect().query(sql).result_rows]

    def close(self) -> None:
        """Stop trying, close the connections."""
        self._stop.set()
        if self._thread is not None:
            self._thread.join(_CLOSE_S)
        for client in self._clients.values():
            client.close()

    def _answering(self, endpoint: Endpoint) -> Client:
        client = self._clients.get(endpoint)
        if client is not None:
            if client.ping():
                return client
            raise Unusable(f"ClickHouse at {endpoint} does not answer", "Check that the server runs")
        client = open_client(endpoint, self.config)
        try:
            self._check_same_data(endpoint, client)
        except ClickHouseError:
            client.close()
            raise
        self._clients[endpoint] = client
        return client

    def _check_same_data(self, endpoint: Endpoint, client: Client) -> None:
        """Refuse a second server that is no replica of the first: a repeated insert would be stored on both."""
        if len(self._endpoints) == 1 or self.config.cluster:
            return
        try:
            server_id = _value(client, "select serverUUID()")
            sql = "select any(engine) from system.tables where database = 'tailspan' and name = 'spans'"
            engine = _value(client, sql)
        except ClickHouseError as error:
            raise Unusable(f"ClickHouse at {endpoint} does not say which server it is", "Give one endpoint") from error
        if self._server_id is None:
            self._server_id = server_id
        if server_id != self._server_id and not engine.startswith(_SHARED_ENGINES):
            raise Unusable(
                f"ClickHouse at {endpoint} is another server than the first endpoint, with tables of its own",
                "Give endpoints of one server, or the name of the cluster with --cluster",
            )

    def _prepare(self) -> None:
        wait, said, said_at = _FIRST_WAIT_S, "", 0.0
        while not self._stop.is_set():
            try:
                migrations.apply(self, cluster=self.config.cluster)
            except (UserError, ClickHouseError) as error:
                self.problem = _first_line(error)
            except Exception as error:
                self.problem = f"{type(error).__name__}: {_first_line(error)}"
            else:
                self.problem = ""
                self._ready.set()
                _LOG.log(logging.WARNING if said else logging.INFO, "ClickHouse at %s takes data", self._in_use())
                return
            if self.problem != said or time.monotonic() - said_at >= _SAY_AGAIN_S:
                _LOG.error("%s Until then what is received stays in the spool.", _sentence(self.problem))
                said, said_at = self.problem, time.monotonic()
            self._stop.wait(wait)
            wait = min(wait * 2, _LONGEST_WAIT_S)

    def _in_use(self) -> Endpoint:
        return self._endpoints[self._current]


def _value(client: Client, sql: str) -> str:
    return str(client.query(sql).result_rows[0][0])


def _first_line(error: BaseException) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0][:400]


def _sentence(text: str) -> str:
    return text if text.endswith(".") else f"{text}."
