"""What a destination is: where it listens, how to talk to it, what it gets, and how far it may fall behind.

Units: times in seconds, sizes in bytes. Errors: `UserError` names the destination, the value and what is allowed.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from pathlib import Path
from urllib.parse import SplitResult, urlsplit

from tailspan.errors import UserError
from tailspan_collector.signals import SIGNALS, TRACES, Signal

GRPC, HTTP, KAFKA = "grpc", "http/protobuf", "kafka"
PROTOCOLS = (GRPC, HTTP, KAFKA)
SCHEMES = {
    "grpc": (GRPC, False),
    "grpcs": (GRPC, True),
    "http": (HTTP, False),
    "https": (HTTP, True),
    "kafka": (KAFKA, False),
    "kafkas": (KAFKA, True),
}
"""The protocol of each URL scheme, and whether it is encrypted; `http` and `https` also do for gRPC."""
_PORTS = {GRPC: 4317, HTTP: 4318, KAFKA: 9092}
MECHANISMS = ("PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512")


@dataclass(frozen=True, slots=True)
class Tls:
    """Files in PEM format; without `ca` the authorities of the system are trusted."""

    ca: Path | None = None
    certificate: Path | None = None
    key: Path | None = None


@dataclass(frozen=True, slots=True)
class Login:
    """SASL login of a Kafka broker."""

    mechanism: str
    username: str
    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Sample:
    """Which traces a destination gets: those that any of the rules names."""

    errors: bool = False
    slower_than_s: float | None = None
    share: float = 0.0
    settle_s: float = 10.0
    """How long after spans were stored they are looked at, so that the rest of their trace is there too."""


@dataclass(frozen=True, slots=True)
class Destination:
    """One OTLP endpoint or Kafka cluster."""

    name: str
    endpoint: str
    protocol: str
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    tls: Tls = Tls()
    compression: str = "gzip"
    timeout_s: float = 10.0
    signals: tuple[Signal, ...] = (TRACES,)
    most_behind_bytes: int = 1 << 30
    most_behind_seconds: float = 86_400.0
    requests_in_flight: int = 4
    login: Login | None = None
    sample: Sample | None = None

    def __post_init__(self) -> None:
        """Validate.

        Raises:
            UserError: a value is outside what is allowed.
        """
        if not re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]{0,79}", self.name):
            raise UserError(
                f"a forward destination has the name {self.name!r}", "Use letters, digits, '.', '_' and '-', at most 80"
            )
        self._check_endpoint()
        self._check_values()
        self._check_tls()
        if self.protocol == KAFKA:
            self._check_kafka()
        elif self.login is not None:
            raise self._error("'sasl' is set", "It is for Kafka only; put a login into 'headers'")
        if self.sample is not None:
            self._check_sample(self.sample)

    @property
    def is_encrypted(self) -> bool:
        """Whether the connection uses TLS."""
        return SCHEMES[self._url.scheme][1]

    @property
    def address(self) -> str:
        """`host:port`; for Kafka all brokers, with commas."""
        if self.protocol == KAFKA:
            return self._url.netloc
        host = self._url.hostname or ""
        default = 443 if self.is_encrypted and self.protocol == HTTP else _PORTS[self.protocol]
        return f"[{host}]:{self._url.port or default}" if ":" in host else f"{host}:{self._url.port or default}"

    @property
    def path(self) -> str:
        """Path of the URL, without a slash at the end; for Kafka with the topic, if one is given."""
        return self._url.path.rstrip("/")

    @property
    def _url(self) -> SplitResult:
        return urlsplit(self.endpoint)

    def _error(self, what: str, remedy: str) -> UserError:
        return UserError(f"forward destination {self.name!r}: {what}", remedy)

    def _check_endpoint(self) -> None:
        remedy = "Use grpc[s]://host:4317, http[s]://host:4318 or kafka[s]://broker:9092/topic"
        try:
            url = self._url
            is_whole = url.scheme in SCHEMES and (self.protocol == KAFKA or (url.hostname and url.port != 0))
        except ValueError:
            raise self._error("'endpoint' is no URL", remedy) from None
        if "@" in url.netloc:
            raise self._error("'endpoint' holds a login", "Put it into 'headers', or 'sasl' for Kafka")
        if not is_whole or not url.netloc or url.query or url.fragment:
            raise self._error(f"'endpoint' is {self.endpoint!r}", remedy)
        of_scheme = SCHEMES[url.scheme][0]
        if self.protocol not in PROTOCOLS:
            raise self._error(f"'protocol' is {self.protocol!r}", f"Use one of {', '.join(PROTOCOLS)}")
        if self.protocol != of_scheme and not (self.protocol == GRPC and of_scheme == HTTP):
            raise self._error(f"'protocol' is {self.protocol!r} with an endpoint {url.scheme}://", remedy)
        if self.protocol == GRPC and self.path:
            raise self._error(f"'endpoint' has the path {self.path!r}", "gRPC has no paths; leave it out")

    def _check_values(self) -> None:
        allowed = ("none", "gzip")
        if self.compression not in allowed:
            raise self._error(f"'compression' is {self.compression!r}", f"Use one of {', '.join(allowed)}")
        for key, value, least, most in (
            ("timeout", self.timeout_s, 0.1, 600),
            ("most_behind_bytes", self.most_behind_bytes, 1 << 20, 1 << 50),
            ("most_behind_seconds", self.most_behind_seconds, 1, 10**9),
            ("requests_in_flight", self.requests_in_flight, 1, 64),
        ):
            if not least <= value <= most:
                raise self._error(f"{key!r} is {value:g}", f"Use {least:g} to {most:g}")
        if not self.signals:
            raise self._error("'signals' is empty", f"Use some of {', '.join(signal.name for signal in SIGNALS)}")
        for name, text in self.headers:
            if not re.fullmatch(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+", name) or not re.fullmatch(r"[\t\x20-\x7e]*", text):
                raise self._error(f"header {name!r} is malformed", "Use printable ASCII without line ends")

    def _check_tls(self) -> None:
        files = {"ca": self.tls.ca, "certificate": self.tls.certificate, "key": self.tls.key}
        if any(files.values()) and not self.is_encrypted:
            secure = next(name for name, (kind, safe) in SCHEMES.items() if safe and kind == self.protocol)
            raise self._error("'tls' is set for an endpoint without TLS", f"Use {secure}:// or leave 'tls' out")
        if (self.tls.certificate is None) != (self.tls.key is None):
            raise self._error("'tls' has only one of 'certificate' and 'key'", "Give both or neither")
        for key, path in files.items():
            if path is not None and not path.is_file():
                raise self._error(f"'tls.{key}' is {str(path)!r}, which is no file", "Give a file in PEM format")

    def _check_kafka(self) -> None:
        if "/" in self.path.lstrip("/"):
            raise self._error(f"'endpoint' is {self.endpoint!r}", "Use kafka://broker:9092/topic; a topic has no '/'")
        if self.path and len(self.signals) > 1:
            raise self._error("one topic for several signals", "Leave the topic out (otlp_spans, …) or give one signal")
        if self.login is not None and self.login.mechanism not in MECHANISMS:
            raise self._error(f"'sasl.mechanism' is {self.login.mechanism!r}", f"Use one of {', '.join(MECHANISMS)}")

    def _check_sample(self, sample: Sample) -> None:
        if not 0 <= sample.share < 1:
            raise self._error(f"'sample.share' is {sample.share:g}", "Use 0 to less than 1; leave 'sample' out for all")
        if not (sample.errors or sample.slower_than_s is not None or sample.share):
            raise self._error("'sample' names no trace", "Set errors = true, slower_than or share")
        if sample.slower_than_s is not None and not 0 < sample.slower_than_s <= 10**6:
            raise self._error(f"'sample.slower_than' is {sample.slower_than_s:g} s", 'Use a duration such as "2s"')
        if not 0 <= sample.settle_s <= 3600:
            raise self._error(f"'sample.settle' is {sample.settle_s:g} s", "Use 0 to 1 hour")
        if TRACES not in self.signals:
            raise self._error("'sample' without the signal traces", "Add traces to 'signals' or leave 'sample' out")
