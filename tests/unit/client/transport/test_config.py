"""TLS, certificates, tokens and quotas of both clients, on real connections."""

import asyncio
import socket
import threading
import traceback
from collections.abc import Callable
from itertools import islice
from typing import Any

import grpc
import pytest
import trustme

import idalloc
from idalloc._transport.channel import OPTIONS
from idalloc._transport.config import is_local
from idalloc_server.listen.transport import MIN_PING_SECONDS
from tests.support.certificates import Certificates
from tests.support.fake_server import FakeServer, serving
from tests.unit.client.clients import KINDS, opened

TOKEN = "idalloc_planted-secret-0123456789"
BEARER = f"Bearer {TOKEN}"


def over_stream(client: Any) -> None:
    stream = client.allocate_stream()
    stream.allocate_range("orders")
    stream.close()


# The call of each RPC.
CALLS: dict[str, Callable[[Any], object]] = {
    # The client for asyncio makes such a call over a stream, unless it asks for texts.
    "AllocateRange": lambda client: client.allocate_range("orders", texts=True),
    "AllocateStream": over_stream,
    "BatchAllocateRanges": lambda client: client.allocate_ranges([("orders", 1)]),
    "StreamRanges": lambda client: list(client.stream_ranges("orders", 3)),
    "GenerateDocId": lambda client: client.doc_ids(),
    "StreamDocIds": lambda client: list(client.stream_doc_ids(3)),
    "GenerateUuid": lambda client: client.uuids(),
    "ParseId": lambda client: client.parse_id("orders", "T-1"),
    "CreateSequence": lambda client: client.sequences.create("new"),
    "GetSequence": lambda client: client.sequences.get("made"),
    "ListSequences": lambda client: list(client.sequences.list()),
    "UpdateSequence": lambda client: client.sequences.update("made", description="x"),
    "AdvanceSequence": lambda client: client.sequences.advance("made", 9),
    "DeleteSequence": lambda client: client.sequences.delete("made"),
    "GetNode": lambda client: client.node(),
    "UpdateNode": lambda client: client.update_node(prefix=8),
}
# Further methods that use the same RPCs.
WAYS: dict[str, Callable[[Any], object]] = {
    "ids": lambda client: list(islice(client.ids("orders"), 50)),
    "one id": lambda client: client.allocate_range("orders"),
    "idempotent": lambda client: client.allocate_range("orders", idempotent=True),
}


def test_the_table_has_every_rpc_of_the_contract() -> None:
    """CALLS has each RPC of the contract."""
    from idalloc.v1 import id_allocator_pb2, node_pb2, sequences_pb2

    services = [
        service
        for file in (id_allocator_pb2, node_pb2, sequences_pb2)
        for service in file.DESCRIPTOR.services_by_name.values()
    ]
    assert CALLS.keys() == {method.name for service in services for method in service.methods}


@pytest.mark.parametrize("call", [*CALLS, *WAYS])
def test_the_token_is_sent_with_each_call(server: FakeServer, kind: str, call: str) -> None:
    """Both clients send the token with each call."""
    server.tokens = {TOKEN}
    with opened(kind, server.target, token=TOKEN) as client:
        client.sequences.create("made")
        (CALLS | WAYS)[call](client)
    assert call in WAYS or server.authorizations[call]
    assert {value for calls in server.authorizations.values() for value in calls} == {BEARER}


async def test_the_token_is_sent_with_shared_calls(server: FakeServer) -> None:
    """The client for asyncio sends it also with a call that it makes for several callers."""
    server.tokens = {TOKEN}
    async with idalloc.aio.Client(server.target, token=TOKEN) as client:
        await asyncio.gather(*(client.allocate_range("orders") for _ in range(5)))
    assert {value for calls in server.authorizations.values() for value in calls} == {BEARER}


def test_a_resumed_stream_sends_the_token_again(server: FakeServer, kind: str) -> None:
    """A resumed stream sends the token again."""
    server.tokens = {TOKEN}
    with opened(kind, server.target, token=TOKEN) as client:
        server.break_after = 1
        assert sum(map(len, client.stream_ranges("orders", 30, 10))) == 30
    assert server.authorizations["StreamRanges"] == [BEARER] * 2


def test_without_a_token_no_authorization_is_sent(server: FakeServer, kind: str) -> None:
    """A client without a token sends no authorization metadata."""
    with opened(kind, server.target) as client:
        client.node()
    assert server.authorizations["GetNode"] == [None]


def test_a_token_is_sent_over_tls(certificates: Certificates, kind: str) -> None:
    """Calls and streams work over TLS with a token."""
    with serving(credentials=certificates.server()) as server:
        server.tokens = {TOKEN}
        with opened(kind, server.target, credentials=certificates.trust, token=TOKEN) as client:
            assert client.allocate_range("orders", 5).ids == range(1, 6)
            assert [each.ids for each in client.stream_ranges("orders", 5)] == [range(6, 11)]


def test_a_client_sends_its_certificate(certificates: Certificates, kind: str) -> None:
    """A client certificate of the right CA is accepted; another one, or none, is rejected."""
    ours, others = trustme.CA(), trustme.CA()
    good, bad = certificates.client("billing", ours), certificates.client("stranger", others)
    with serving(credentials=certificates.server(of_clients=ours)) as server:
        with opened(kind, server.target, credentials=good.credentials) as client:
            assert client.allocate_range("orders").ids == range(1, 2)
        for rejected in (bad.credentials, certificates.trust):
            with (
                opened(kind, server.target, credentials=rejected) as client,
                pytest.raises(idalloc.ServerUnreachable) as caught,
            ):
                client.node()
            assert caught.value.metadata == {"tls": "closed"}
        assert len(server.requests["AllocateRange"]) == 1


@pytest.mark.parametrize(
    ("cause", "names", "message"),
    [
        ("untrusted", ("127.0.0.1",), "is signed by an untrusted CA"),
        ("expired", ("127.0.0.1",), "has expired"),
        ("name", ("idalloc.example.org",), "is not valid for the expected name"),
        ("plaintext", (), "the server does not use TLS"),
        ("closed", ("127.0.0.1",), "requires TLS or a client certificate"),
    ],
)
def test_the_cause_of_a_tls_failure_is_reported(
    certificates: Certificates, kind: str, cause: str, names: tuple[str, ...], message: str
) -> None:
    """ServerUnreachable names the cause of a TLS failure in its message and metadata."""
    of_server = certificates.server(*names, expired=cause == "expired") if names else None
    others = grpc.ssl_channel_credentials(trustme.CA().cert_pem.bytes())
    trust = {"untrusted": others, "closed": None}.get(cause, certificates.trust)
    with serving(credentials=of_server) as server, opened(kind, server.target, credentials=trust) as client:
        with pytest.raises(idalloc.ServerUnreachable, match=message) as caught:
            client.node()
        assert caught.value.metadata == {"tls": cause}
        assert str(caught.value).startswith(f"no answer from {server.target}: the server")
        assert not server.requests


def test_invalid_credentials_are_reported(certificates: Certificates) -> None:
    """Credentials that gRPC cannot use are an error with gRPC's own message."""
    broken = grpc.ssl_channel_credentials(b"no certificate")
    with (
        serving(credentials=certificates.server()) as server,
        idalloc.Client(server.target, credentials=broken) as client,
        pytest.raises(idalloc.ServerUnreachable, match=r"no answer from .*handshaker"),
    ):
        client.node()


def test_server_name_overrides_the_targets_name(certificates: Certificates, kind: str) -> None:
    """server_name, the name in the certificate, works for lists of addresses and requires TLS."""
    name = "idalloc.example.org"
    with serving(credentials=certificates.server(name)) as server:
        for target in (server.target, f"ipv4:{server.target},127.0.0.1:1"):
            with opened(kind, target, credentials=certificates.trust, server_name=name) as client:
                assert client.node().prefix == 7
    with pytest.raises(ValueError, match="server_name: requires TLS: set tls, ca or cert"):
        KINDS[kind]("127.0.0.1:1", server_name=name)


def test_a_url_is_rejected_as_target(kind: str) -> None:
    """A target with a scheme raises ValueError."""
    with pytest.raises(ValueError, match="server: must be HOST:PORT, without a scheme"):
        KINDS[kind]("http://127.0.0.1:50051")


# Tokens without TLS.


def test_a_token_for_another_machine_requires_tls(kind: str) -> None:
    """A token for another machine requires TLS or insecure=True."""
    new = KINDS[kind]
    for target in ("192.0.2.7:50051", "dns:///idalloc.example:50051", "ipv4:127.0.0.1:50051,192.0.2.7:50051"):
        with pytest.raises(ValueError, match="would be sent unencrypted to") as caught:
            new(target, token=TOKEN)
        assert target in str(caught.value)
        assert TOKEN not in str(caught.value)
        new(target, token=TOKEN, insecure=True)
        new(target, token=TOKEN, credentials=grpc.ssl_channel_credentials())
        new(target)


@pytest.mark.parametrize(
    ("target", "local"),
    [
        ("127.0.0.1:50051", True),
        ("127.8.9.1", True),
        ("localhost:50051", True),
        ("LOCALHOST:50051", True),
        ("[::1]:50051", True),
        ("dns:localhost:50051", True),
        ("dns:///localhost:50051", True),
        ("dns:///[::1]:50051", True),
        ("ipv4:127.0.0.1:1,127.0.0.2:1", True),
        ("ipv6:[::1]:50051", True),
        ("unix:/run/idalloc.sock", True),
        ("unix:///run/idalloc.sock", True),
        ("unix-abstract:idalloc", True),
        ("10.0.0.1:50051", False),
        ("0.0.0.0:50051", False),
        ("localhost.example.org:50051", False),
        ("127.0.0.1.example.org:50051", False),
        ("[2001:db8::1]:50051", False),
        ("dns://192.0.2.1/localhost:50051", False),
        ("ipv4:127.0.0.1:1,192.0.2.1:1", False),
        ("xds:///localhost", False),
        ("http://127.0.0.1:50051", False),
        ("", False),
    ],
)
def test_is_local(target: str, local: bool) -> None:
    """Loopback addresses and Unix sockets are local; all other targets are not."""
    assert is_local(target) is local


@pytest.mark.parametrize("token", ["", " ", "two words", f"{TOKEN}\n", BEARER, "schlüssel"])
def test_a_malformed_token_is_rejected_and_not_printed(token: str) -> None:
    """A malformed token raises ValueError, and the message does not contain it."""
    with pytest.raises(ValueError, match="token: must be ASCII") as caught:
        idalloc.Client("127.0.0.1:1", token=token)
    assert not token.strip() or token.strip() not in str(caught.value)


def test_proxies_of_the_environment_are_not_used(server: FakeServer, monkeypatch: pytest.MonkeyPatch) -> None:
    """No call goes to an HTTP proxy of the environment, with a token or without one."""
    with socket.create_server(("127.0.0.1", 0)) as proxy:
        connected = threading.Event()

        def listen() -> None:
            proxy.settimeout(30)
            try:
                proxy.accept()[0].close()
                connected.set()
            except OSError:
                pass

        listener = threading.Thread(target=listen)
        listener.start()
        for variable in ("http_proxy", "https_proxy", "grpc_proxy"):
            monkeypatch.setenv(variable, f"http://127.0.0.1:{proxy.getsockname()[1]}")
        for variable in ("no_proxy", "no_grpc_proxy"):
            monkeypatch.delenv(variable, raising=False)
        for token in (TOKEN, None):
            with idalloc.Client(server.target, token=token) as client:
                assert client.node().prefix == 7
        assert not connected.is_set()
        proxy.shutdown(socket.SHUT_RDWR)
        listener.join()


def test_the_token_is_in_no_error_and_no_repr(server: FakeServer, kind: str) -> None:
    """No repr, error or traceback contains the token."""
    server.tokens = {"another"}
    of_kind = KINDS[kind](server.target, token=TOKEN)
    texts = [repr(each) for each in (of_kind, of_kind._config, of_kind.ids("orders"), vars(of_kind))]
    with opened(kind, server.target, token=TOKEN) as client:
        stream = client.stream_ranges("orders", 3)
        for ask in (client.node, lambda: client.allocate_range("orders"), lambda: list(stream)):
            with pytest.raises(idalloc.Unauthenticated) as caught:
                ask()
            texts += traceback.format_exception(caught.value)
            texts += [repr(caught.value), repr(caught.value.__cause__), str(vars(caught.value))]
    assert server.authorizations["GetNode"] == [BEARER]
    assert TOKEN not in "".join(texts)


# Quotas.


def quota(server: FakeServer, method: str, wait: float, times: int = 1) -> None:
    code = grpc.StatusCode.RESOURCE_EXHAUSTED
    server.fail_next(method, "QUOTA_EXCEEDED", code, times=times, retry_after=wait)


def test_streams_and_ids_wait_for_a_quota(server: FakeServer, kind: str) -> None:
    """Streams and ids() wait for a quota and continue."""
    for method in ("StreamRanges", "StreamDocIds", "AllocateRange"):
        quota(server, method, 0.05, times=2)
    with opened(kind, server.target) as client:
        assert [each.ids for each in client.stream_ranges("orders", 5)] == [range(1, 6)]
        assert [len(ids) for ids in client.stream_doc_ids(5)] == [5]
        assert next(client.ids("orders")) == 6
    assert len(server.requests["StreamRanges"]) == len(server.requests["StreamDocIds"]) == 3


def test_a_quota_wait_beyond_the_timeout_raises(server: FakeServer, kind: str) -> None:
    """ids() raises QuotaExceeded if the wait would pass the timeout."""
    quota(server, "AllocateRange", 0.9)
    with opened(kind, server.target) as client, pytest.raises(idalloc.QuotaExceeded) as caught:
        next(client.ids("orders", timeout=0.3))
    assert caught.value.retry_after == 0.9
    assert caught.value.__cause__ is not None


def test_a_call_raises_quota_exceeded_at_once(server: FakeServer, kind: str) -> None:
    """A unary call raises QuotaExceeded at once and without a retry."""
    quota(server, "AllocateRange", 0.5)
    with opened(kind, server.target) as client, pytest.raises(idalloc.QuotaExceeded) as caught:
        client.allocate_range("orders")
    assert caught.value.retry_after == 0.5
    assert len(server.requests["AllocateRange"]) == 1


def test_a_long_quota_wait_halves_the_range_size() -> None:
    """After a long wait for a quota, ids() requests smaller ranges."""
    from idalloc._core.pool import Pool

    pool = Pool("orders")
    pool._size = 1000
    assert not pool.adapt_size(idalloc.QuotaExceeded(retry_after=0.1))
    assert "id_count: 1000" in str(pool.next_request().call.request)
    assert not pool.adapt_size(idalloc.QuotaExceeded(retry_after=2.0))
    assert "id_count: 500" in str(pool.next_request().call.request)


def test_a_vanished_server_is_noticed_within_45_seconds() -> None:
    """Pings are rarer than the server allows, and find a vanished server within 45 s."""
    interval, limit = (int(dict(OPTIONS)[f"grpc.keepalive_{name}_ms"]) / 1000 for name in ("time", "timeout"))
    assert interval > 10 > MIN_PING_SECONDS  # the shortest interval of gRPC for Go is 10 s
    assert interval + limit <= 45
