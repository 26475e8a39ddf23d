"""What the specification asks of a receiver over gRPC only."""

from __future__ import annotations

import random

import grpc
import pytest
from google.protobuf import unknown_fields
from google.rpc import error_details_pb2

from tests.conformance.running import OtlpCollector, unique
from tests.conformance.sending import Grpc, details
from tests.conformance.signals import LOGS, METRICS, TRACES, Signal
from tests.conformance.wire import field, varint
from tests.support.collector import run_tailspan
from tests.support.otlp_messages import string


def unknown(number: int, rng: random.Random) -> bytes:
    """Return an unknown field of a random wire type."""
    kind = rng.choice((0, 1, 2, 5))
    payload = {0: varint(rng.getrandbits(63)), 1: rng.randbytes(8), 2: b"\x05later", 5: rng.randbytes(4)}[kind]
    return varint(number << 3 | kind) + payload


def test_each_service_answers_with_its_own_message(grpc_transport: Grpc, signal: Signal) -> None:
    """`Export` of the three services exists under its full name and answers with its signal's response."""
    reply = grpc_transport.send(signal, signal.message(unique("service")).SerializeToString())
    assert reply.code == grpc.StatusCode.OK
    message = signal.response.FromString(reply.body)
    assert not unknown_fields.UnknownFieldSet(message)


def test_an_unknown_method_is_unimplemented(grpc_transport: Grpc) -> None:
    """A signal that the collector does not take is refused with UNIMPLEMENTED, which senders do not retry."""
    method = "/opentelemetry.proto.collector.profiles.v1development.ProfilesService/Export"
    call = grpc_transport.channel.unary_unary(method)
    with pytest.raises(grpc.RpcError) as caught:
        call(b"", timeout=10)
    assert caught.value.code() == grpc.StatusCode.UNIMPLEMENTED


def test_bad_data_is_explained(grpc_transport: Grpc, signal: Signal) -> None:
    """INVALID_ARGUMENT comes with a `BadRequest` that says what was wrong."""
    reply = grpc_transport.send(signal, b"\xff\xff\xff")
    assert reply.code == grpc.StatusCode.INVALID_ARGUMENT
    (bad,) = details(reply.status, error_details_pb2.BadRequest)
    assert bad.field_violations[0].description


def test_a_refusal_for_size_has_no_retry_info(small_collector: OtlpCollector, signal: Signal) -> None:
    """RESOURCE_EXHAUSTED means not to retry, so it must not carry RetryInfo."""
    transport = Grpc(small_collector.otlp_port)
    reply = transport.send(signal, signal.message("big", 1, "x" * 200_000).SerializeToString())
    assert reply.code == grpc.StatusCode.RESOURCE_EXHAUSTED
    assert reply.retry_info is None
    transport.close()


@pytest.mark.parametrize("place", ["request", "resource", "scope", "item"])
def test_unknown_fields_are_ignored(grpc_transport: Grpc, collector: OtlpCollector, signal: Signal, place: str) -> None:
    """Fields of a later version, of any wire type and at any level, change nothing in what is stored."""
    service = unique(f"later-{place}")
    rng = random.Random(place)
    extra = b"".join(unknown(number, rng) for number in (200, 77, 1000, 536870911))
    message = signal.message(service, 2)
    resource = getattr(message, signal.resources)[0]
    scope = getattr(resource, resource.DESCRIPTOR.fields[1].name)[0]
    item = getattr(scope, scope.DESCRIPTOR.fields[1].name)[0]
    target = {"request": message, "resource": resource, "scope": scope, "item": item}[place]
    target.MergeFromString(extra)
    body = message.SerializeToString()
    assert b"later" in body or len(extra) < 40
    assert grpc_transport.send(signal, body).ok
    assert collector.stored(signal, service, 2) == 2


def test_requests_of_the_first_version_are_stored(grpc_transport: Grpc, collector: OtlpCollector) -> None:
    """A sender of OTLP 1.0 has no flags, no entity references and no event names; what it sends is stored the same."""
    later = {"flags", "entity_refs", "event_name"}
    for signal in (TRACES, METRICS, LOGS):
        service = unique("first")
        message = signal.message(service)
        assert not later & {name for name in later if f"{name}:" in str(message)}
        assert grpc_transport.send(signal, message.SerializeToString()).ok
        assert collector.stored(signal, service, 1) == 1


def test_fields_in_another_order_are_the_same_request(grpc_transport: Grpc, collector: OtlpCollector) -> None:
    """Protobuf does not promise an order: scopes before their resource are stored with that resource."""
    service = unique("order")
    message = TRACES.message(service)
    inner = message.resource_spans[0]
    scopes, resource = inner.scope_spans[0].SerializeToString(), inner.resource.SerializeToString()
    assert grpc_transport.send(TRACES, field(1, field(2, scopes) + field(1, resource))).ok
    assert collector.stored(TRACES, service, 1) == 1


def test_flags_with_unknown_bits_are_kept(grpc_transport: Grpc, collector: OtlpCollector) -> None:
    """Readers must not assume that the upper bits of span flags are zero: they are stored as they came."""
    service = unique("flags")
    message = TRACES.message(service)
    message.resource_spans[0].scope_spans[0].spans[0].flags = 0xFFFF_FF01
    assert grpc_transport.send(TRACES, message.SerializeToString()).ok
    collector.stored(TRACES, service, 1)
    found = collector.query("select flags from tailspan.spans where service = {s:String}", s=service)
    assert found == [(0xFFFF_FF01,)]


def test_a_resource_in_two_parts_is_one(grpc_transport: Grpc, collector: OtlpCollector) -> None:
    """Protobuf lets a message field come in parts, which a reader merges; nothing of either part may be lost."""
    service = unique("parts")
    message = TRACES.message(service)
    extra = TRACES.request()
    extra.resource_spans.add().resource.attributes.append(string("second.part", "here"))
    one = message.resource_spans[0].SerializeToString() + extra.resource_spans[0].SerializeToString()
    reply = grpc_transport.send(TRACES, field(1, one))
    assert reply.ok
    kept = "select count() from tailspan.spans where service = {service:String}"
    rejected = "select count() from tailspan.rejects where position(payload, {service:String}) > 0"
    collector.wait_rows(1, f"({kept} union all {rejected})".replace("{service:String}", f"'{service}'"))
    assert collector.stored(TRACES, service, 1, 5) + int(collector.query(rejected, service=service)[0][0]) == 1


def test_4317_is_the_default_port() -> None:
    """`tailspan up` and `tailspan collector` listen on 4317 for gRPC and on 4318 for HTTP unless told otherwise."""
    for command in ("up", "collector"):
        text = " ".join(run_tailspan(command, "--help").stdout.split())
        assert "OTLP/gRPC port [default: 4317]" in text
        assert "OTLP/HTTP port [default: 4318]" in text
