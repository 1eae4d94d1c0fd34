"""A native server behind a real Envoy: calls, TLS, addresses of callers, restarts."""

import socket
import ssl
import stat
import subprocess
import threading
import warnings
from collections.abc import Iterator
from concurrent import futures
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
import trustme
from google.rpc import error_details_pb2, status_pb2
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha import reflection_pb2, reflection_pb2_grpc

from idalloc.v1 import id_allocator_pb2 as pb
from idalloc_server.auth.authorize import RULES
from idalloc_server.auth.rejected_callers import BURST
from tests.support import environments
from tests.support.http2 import PREFACE, client_context, settings
from tests.support.manifests import DEPLOY, read_yaml
from tests.support.paths import ROOT
from tests.support.proxy import HEALTHY, OPTIONS, Proxy, render, sdk, serving
from tests.support.rpc_errors import details_of
from tests.support.server_calls import id_allocator, log_events, stream_of_requests
from tests.support.under_attack import write_access
from tests.support.waiting import wait_until

REAL = pytest.mark.test_long
HEALTH = {f"/grpc.health.v1.Health/{method}" for method in ("Check", "List", "Watch")}
SET_BY_ENVOY = {"x-forwarded-for", "x-forwarded-proto", "x-envoy-external-address"}
REFLECTION = {f"/grpc.reflection.{version}.ServerReflection/ServerReflectionInfo" for version in ("v1", "v1alpha")}


def allocate(channel: grpc.Channel, **options: Any) -> Any:
    return id_allocator(channel).AllocateRange(pb.AllocateRangeRequest(sequence="orders"), timeout=20, **options)


def failure(channel: grpc.Channel, **options: Any) -> grpc.RpcError:
    with pytest.raises(grpc.RpcError) as failed:
        allocate(channel, **options)
    return failed.value


def routes() -> list[dict[str, Any]]:
    [listener] = read_yaml(DEPLOY / "envoy/envoy.yaml")["static_resources"]["listeners"]
    config = listener["filter_chains"][0]["filters"][0]["typed_config"]["route_config"]
    found: list[dict[str, Any]] = config["virtual_hosts"][0]["routes"]
    return found


def test_envoy_passes_the_methods_of_the_server_only() -> None:
    """Envoy routes each method of the server by its exact path, and answers all others itself."""
    paths = [each["match"]["path"] for each in routes() if "route" in each]
    assert sorted(paths) == sorted({*RULES, *HEALTH, *REFLECTION})
    assert [each["match"]["prefix"] for each in routes() if "route" not in each] == ["/", "/", "/"]


def test_the_guide_states_the_limits_of_the_configuration() -> None:
    """The limits on connections, handshakes and heap in docs/guides/envoy.md are envoy.yaml's."""
    guide = (ROOT / "docs/guides/envoy.md").read_text()
    config = read_yaml(DEPLOY / "envoy/envoy.yaml")
    heap, connections = [each["typed_config"] for each in config["overload_manager"]["resource_monitors"]]
    known, others = config["static_resources"]["listeners"][0]["filter_chains"]
    limit, rate = [each["typed_config"] for each in others["filters"][:2]]
    bucket = rate["token_bucket"]
    a_second = bucket["tokens_per_fill"] / float(bucket["fill_interval"].removesuffix("s"))
    assert f"{heap['max_heap_size_bytes'] / 2**20:g} MiB of its own heap |" in guide
    most = connections["max_active_downstream_connections"]
    row = f"at most {most:,}; from unknown networks {limit['max_connections']:,}, and {a_second:g} new ones a second"
    assert f"| connections | {row} |" in guide
    seconds = known["transport_socket_connect_timeout"].removesuffix("s")
    assert others["transport_socket_connect_timeout"] == f"{seconds}s"
    assert f"| handshakes | ends them after {seconds} seconds |" in guide


@REAL
def test_envoy_accepts_the_configuration(short_folder: Path) -> None:
    """`envoy --mode validate` accepts the files of deploy/envoy, and refuses an unknown field."""
    for text, code in (({}, 0), ({"enable_reuse_port": "enable_reuse_ports"}, 1)):
        config = render(short_folder, text)
        done = subprocess.run(
            [environments.envoy(), "--mode", "validate", "-c", config], capture_output=True, timeout=60, check=False
        )
        assert done.returncode == code, done.stderr[-2000:]


@REAL
def test_calls_through_envoy_are_those_of_the_server(proxy: Proxy) -> None:
    """Unary calls, streams, deadlines, error details, health and reflection pass unchanged."""
    with serving(proxy), proxy.channel() as channel:
        assert allocate(channel).range.first_id == 1
        request = pb.StreamRangesRequest(sequence="orders", total_id_count=1000, chunk_id_count=10)
        assert sum(each.range.id_count for each in id_allocator(channel).StreamRanges(request, timeout=20)) == 1000
        with pytest.raises(grpc.RpcError) as failed:
            id_allocator(channel).AllocateRange(pb.AllocateRangeRequest(sequence="orders", id_count=-1), timeout=20)
        assert failed.value.code() == grpc.StatusCode.INVALID_ARGUMENT
        trailers: Any = dict(failed.value.trailing_metadata() or ())  # type: ignore[arg-type]
        details = status_pb2.Status.FromString(trailers["grpc-status-details-bin"]).details
        reasons = error_details_pb2.ErrorInfo()
        assert any(each.Unpack(reasons) for each in details)
        assert reasons.domain == "idalloc"
        endless = pb.StreamRangesRequest(sequence="orders", total_id_count=2**60, chunk_id_count=1)
        with pytest.raises(grpc.RpcError) as late:
            for _ in id_allocator(channel).StreamRanges(endless, timeout=1):
                pass
        assert late.value.code() == grpc.StatusCode.DEADLINE_EXCEEDED
        health: Any = health_pb2_grpc.HealthStub(channel)
        serves = health_pb2.HealthCheckResponse.SERVING
        assert health.Check(health_pb2.HealthCheckRequest(), timeout=20).status == serves
        watch = health.Watch(health_pb2.HealthCheckRequest(), timeout=20)
        assert next(watch).status == serves
        watch.cancel()
        asked = threading.Event()

        def questions() -> Iterator[reflection_pb2.ServerReflectionRequest]:
            yield reflection_pb2.ServerReflectionRequest(list_services="")
            asked.wait(30)  # The answer must not wait for the end of the questions.

        reflection: Any = reflection_pb2_grpc.ServerReflectionStub(channel)
        answer = next(reflection.ServerReflectionInfo(questions(), timeout=20))
        asked.set()
        names = {each.name for each in answer.list_services_response.service}
        assert "idalloc.v1.IdAllocatorService" in names


@REAL
def test_envoy_refuses_unknown_methods_and_compression(proxy: Proxy) -> None:
    """Envoy itself answers unknown methods and compressed requests with UNIMPLEMENTED."""
    with proxy.channel() as channel:
        for method in ("/idalloc.v1.IdAllocatorService/Nothing", "/idalloc.v1.IdAllocatorService/AllocateRange/", "/a"):
            call: Any = channel.unary_unary(method)
            with pytest.raises(grpc.RpcError) as failed:
                call(b"", timeout=20)
            assert (failed.value.code(), failed.value.details()) == (grpc.StatusCode.UNIMPLEMENTED, "unknown method")
        for compression in (grpc.Compression.Gzip, grpc.Compression.Deflate):
            packed = failure(channel, compression=compression)
            assert (packed.code(), packed.details()) == (
                grpc.StatusCode.UNIMPLEMENTED,
                "compressed requests are not supported",
            )
    wait_until(lambda: len(proxy.log) == 5, "the access log")
    assert {each["details"] for each in proxy.log} == {"direct_response"}
    assert {each["server"] for each in proxy.log} == {None}


@REAL
def test_envoy_requires_modern_tls_and_a_certificate(proxy: Proxy) -> None:
    """Without TLS 1.2, HTTP/2 by ALPN or a client certificate, no call is answered."""
    host, _, port = proxy.address.rpartition(":")

    def shake(context: ssl.SSLContext, request: bytes = b"") -> tuple[str | None, bytes]:
        plain = socket.create_connection((host, int(port)), timeout=20)
        with plain, context.wrap_socket(plain, server_hostname=host) as secured:
            secured.sendall(request)
            return secured.selected_alpn_protocol(), secured.recv(1000)

    old = client_context(proxy.tls)
    with warnings.catch_warnings(action="ignore", category=DeprecationWarning):
        old.minimum_version, old.maximum_version = ssl.TLSVersion.TLSv1, ssl.TLSVersion.TLSv1_1
    old.set_ciphers("ALL:@SECLEVEL=0")
    with pytest.raises(ssl.SSLError, match="PROTOCOL_VERSION"):
        shake(old)
    with pytest.raises(ssl.SSLError, match="CERTIFICATE_REQUIRED"):
        shake(ssl.create_default_context(cafile=proxy.tls / "ca.pem"))
    stranger = client_context(proxy.tls)
    trustme.CA().issue_cert("client.example").configure_cert(stranger)
    with pytest.raises(ssl.SSLError, match="UNKNOWN_CA"):
        shake(stranger)
    older = client_context(proxy.tls)
    older.set_alpn_protocols(["http/1.1"])
    selected, answer = shake(older, b"GET / HTTP/1.1\r\nhost: a\r\n\r\n")
    assert selected is None
    assert not answer.startswith(b"HTTP/1.1")
    two = client_context(proxy.tls)
    two.maximum_version = ssl.TLSVersion.TLSv1_2
    assert shake(two, PREFACE + settings(0))[0] == "h2"


@REAL
def test_envoy_reloads_certificates(proxy: Proxy) -> None:
    """A certificate that is moved into place serves new connections."""
    host, _, port = proxy.address.rpartition(":")

    def serial() -> str:
        plain = socket.create_connection((host, int(port)), timeout=20)
        with plain, client_context(proxy.tls).wrap_socket(plain, server_hostname=host) as secured:
            found = secured.getpeercert()
            assert found
            return str(found["serialNumber"])

    before = serial()
    proxy.certify()
    wait_until(lambda: serial() != before, "the new certificate")


class Recorder(grpc.GenericRpcHandler):
    """Answers every method, and records the metadata of its calls."""

    def __init__(self) -> None:
        self.seen: dict[str, str] = {}

    def service(self, details: Any) -> Any:
        def answer(request: bytes, context: Any) -> bytes:
            self.seen = {key: value for key, value in context.invocation_metadata() if isinstance(value, str)}
            return b""

        if details.method.startswith("/grpc.health"):
            serving = health_pb2.HealthCheckResponse(status=health_pb2.HealthCheckResponse.SERVING)
            return grpc.unary_unary_rpc_method_handler(lambda *_: serving.SerializeToString())
        return grpc.unary_unary_rpc_method_handler(answer)


@REAL
def test_envoy_removes_addresses_and_names_of_clients(proxy: Proxy) -> None:
    """Envoy removes address headers from calls, and does not forward client certificate names."""
    recorder, server = Recorder(), grpc.server(futures.ThreadPoolExecutor(4))
    server.add_generic_rpc_handlers((recorder,))
    server.add_insecure_port(proxy.sockets[0])
    server.start()
    try:
        wait_until(lambda: proxy.stat(HEALTHY) == 1, "Envoy knows the server")
        forged = ["x-forwarded-for", "x-forwarded-host", "x-forwarded-client-cert", "x-forwarded-proto", "forwarded"]
        forged += ["x-real-ip", "x-envoy-external-address", "x-envoy-max-retries", "x-envoy-upstream-rq-timeout-ms"]
        with proxy.channel() as channel:
            metadata = [*((name, "9.9.9.9") for name in [*forged, *forged]), ("authorization", "Bearer t")]
            call: Any = channel.unary_unary("/idalloc.v1.NodeService/GetNode")
            call(b"", timeout=20, metadata=metadata)
    finally:
        server.stop(None).wait()
    assert recorder.seen["authorization"] == "Bearer t"
    assert recorder.seen["x-forwarded-for"] == "127.0.0.1"
    assert {key for key in recorder.seen if key.startswith(("x-", "forwarded"))} <= SET_BY_ENVOY
    assert "9.9.9.9" not in recorder.seen.values()
    assert not any("client.example" in value for value in recorder.seen.values())


@REAL
def test_a_caller_behind_envoy_is_limited_by_its_address(proxy: Proxy) -> None:
    """Audit and limits see the caller's address, whatever it sends; wrong tokens count per host."""
    with serving(proxy, access_file=write_access(proxy.folder)) as server:
        with proxy.channel() as channel:
            forged = [("x-forwarded-for", "9.9.9.9"), ("authorization", "Bearer wrong")]
            with pytest.raises(grpc.RpcError) as rejected:
                next(id_allocator(channel).AllocateStream(iter(()), metadata=forged))
            errors = [failure(channel, metadata=forged) for _ in range(BURST + 5)]
        assert {each.code() for each in [*errors, rejected.value]} == {grpc.StatusCode.UNAUTHENTICATED}

        def hosts() -> set[str]:
            return {each["subject"] for each in log_events(server, "audit") if "subject" in each}

        wait_until(hosts, "the sum of the calls beyond the rate")
        assert hosts() == {"host:127.0.0.1"}
        assert {each["peer"] for each in log_events(server, "audit") if "peer" in each} == {"ipv4:127.0.0.1"}


@REAL
def test_envoys_admin_interface_is_its_users_only(proxy: Proxy) -> None:
    """The admin interface is a Unix socket of mode 0600."""
    assert stat.S_IMODE(proxy.admin.stat().st_mode) == 0o600
    assert proxy.ask("/ready").strip() == "LIVE"
    assert proxy.ask("/listeners").count("::") == 1, "the only port is that of the clients"


@REAL
def test_envoy_logs_each_call(proxy: Proxy) -> None:
    """The access log has caller, method, status and server of each call as JSON."""
    with serving(proxy), proxy.channel() as channel:
        allocate(channel)
        wait_until(lambda: proxy.log, "the access log")
        [line] = proxy.log
    assert line["method"] == "/idalloc.v1.IdAllocatorService/AllocateRange"
    assert line["grpc_status"] == "OK"
    assert line["peer"].startswith("127.0.0.1:")
    assert line["server"] == proxy.sockets[0].removeprefix("unix:")


@REAL
def test_a_second_envoy_on_the_port_is_refused(proxy: Proxy) -> None:
    """A second Envoy on the same port ends, instead of sharing the port."""
    other = proxy.folder / "other.yaml"
    port = proxy.address.rpartition(":")[2]
    text = (proxy.folder / "etc/envoy.yaml").read_text().replace("port_value: 0", f"port_value: {port}")
    other.write_text(text.replace("admin.sock", "other.sock"))
    done = subprocess.run([environments.envoy(), "-c", other, *OPTIONS], capture_output=True, timeout=60)
    assert done.returncode != 0
    assert b"Address already in use" in done.stderr


@REAL
def test_a_rolling_restart_behind_envoy_fails_no_call(proxy: Proxy) -> None:
    """Two servers restart one after the other, and no call fails, without retries of the client."""
    stop, failed, done = threading.Event(), [], []

    def call_until_stopped() -> None:
        with proxy.channel(options=[("grpc.enable_retries", 0)]) as channel:
            while not stop.is_set():
                try:
                    done.append(allocate(channel).range.first_id)
                except grpc.RpcError as error:
                    failed.append((error.code(), error.details()))

    callers = [threading.Thread(target=call_until_stopped) for _ in range(4)]
    with serving(proxy) as one, serving(proxy, listen=proxy.sockets[1]) as two:
        for caller in callers:
            caller.start()
        try:
            wait_until(lambda: len(done) > 100 or failed, "calls")
            wait_until(lambda: proxy.stat(HEALTHY) == 2, "Envoy knows both servers")
            assert one.stop() == 0
            wait_until(lambda: proxy.stat(HEALTHY) == 1, "Envoy knows that the first server has stopped")
            with serving(proxy):
                wait_until(lambda: proxy.stat(HEALTHY) == 2, "Envoy knows the new server")
                assert two.stop() == 0
                before = len(done)
                wait_until(lambda: len(done) > before + 100 or failed, "calls of the new server")
                stop.set()
                for caller in callers:
                    caller.join()
        finally:
            stop.set()
    assert failed == []
    assert len(set(done)) == len(done)
    assert len(done) == len(set(done))


@REAL
def test_streams_of_requests_move_to_another_server(proxy: Proxy) -> None:
    """A drain ends AllocateStream with SERVER_DRAINING; requests of the SDK then get other ids."""
    issued: list[int] = []
    with (
        serving(proxy) as one,
        sdk(proxy) as client,
        client.allocate_stream() as stream,
        proxy.channel() as channel,
        stream_of_requests(channel) as (send, coming),
    ):
        send("orders")
        issued.append(next(coming).allocate_range.range.first_id)
        issued += stream.allocate_range("orders")
        with serving(proxy, listen=proxy.sockets[1]), ThreadPoolExecutor(1) as threads:
            stopping = threads.submit(one.stop)
            while not stopping.done():
                issued += stream.allocate_range("orders")
            with pytest.raises(grpc.RpcError) as ended:
                next(coming)
            issued += stream.allocate_range("orders")
    assert stopping.result() == 0
    details = details_of(ended.value)  # type: ignore[arg-type]
    assert (details.code, details.info.reason) == (grpc.StatusCode.UNAVAILABLE, "SERVER_DRAINING")
    assert len(set(issued)) == len(issued)
