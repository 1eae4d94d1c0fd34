"""A server that others can reach refuses insecure settings, and each suggested step works."""

from pathlib import Path

import pytest

from idalloc_server import app
from idalloc_server.domain.errors import StartRefused
from idalloc_server.listen.transport import check_settings, uses_tls
from idalloc_server.node.mode import ProcessMode
from idalloc_server.settings.model import Settings
from idalloc_server.settings.persisted import NodeSettingsFile

OPEN: dict[str, object] = {"listen": "0.0.0.0:0"}
CERT: dict[str, object] = {"tls_cert": "/cert", "tls_key": "/key"}


def refusal(settings: dict[str, object], *, requires_authentication: bool = False) -> str:
    with pytest.raises(StartRefused) as error:
        check_settings(Settings.model_validate(settings), requires_authentication=requires_authentication)
    return str(error.value)


@pytest.mark.parametrize("authenticates", [False, True])
def test_native_error_suggests_only_steps_that_work(authenticates: bool) -> None:
    """The error for native suggests no setting that native does not support."""
    native = {**OPEN, "transport": "native"}
    missing = "tls_cert" if authenticates else "access_file and tls_cert"
    problem = "tokens and ids are not encrypted" if authenticates else "callers are not authenticated"
    assert refusal(native, requires_authentication=authenticates) == (
        f"listen: other machines can reach 0.0.0.0:0, and {problem}, and native unpacks requests of any size before it "
        "authenticates a caller: listen on 127.0.0.1 or on unix:/PATH, set insecure = true (--insecure true), "
        f"or use --transport grpcio and set {missing}"
    )
    for allowed in ({"listen": "127.0.0.1:0"}, {"listen": "unix:/run/idalloc.sock"}, {"insecure": True}):
        check_settings(Settings.model_validate(native | allowed), requires_authentication=authenticates)
    check_settings(Settings.model_validate(native | CERT | {"transport": "grpcio"}), requires_authentication=True)


def test_grpcio_error_names_missing_settings() -> None:
    """The error for grpcio names exactly the missing settings."""
    assert (
        "set access_file and tls_cert, listen on 127.0.0.1 or on unix:/PATH, or set insecure = true (--insecure true)"
        in refusal(OPEN)
    )
    assert "set access_file, listen" in refusal(OPEN | CERT)
    assert "set tls_cert, listen" in refusal(OPEN, requires_authentication=True)
    check_settings(Settings.model_validate(OPEN | CERT), requires_authentication=True)


async def test_access_file_with_quotas_only_does_not_authenticate(tmp_path: Path) -> None:
    """An access file without identities does not count as authentication."""
    file = tmp_path / "access.toml"
    file.write_text("[[quota]]\nsequence = '*'\nids_per_second = 1\n")
    settings = Settings.model_validate(OPEN | {"access_file": str(file), "store": f"sqlite://{tmp_path}/ids.db"})
    with pytest.raises(StartRefused, match="callers are not authenticated: set access_file and tls_cert"):
        await app.serve(settings, ProcessMode(NodeSettingsFile(None, "0.0.0.0:0"), 1.0))


@pytest.mark.parametrize("transport", ["grpcio", "native"])
def test_a_proxy_is_trusted_on_a_unix_socket_only(transport: str) -> None:
    """`trust_proxy` without a Unix socket is refused: any caller could name an address."""
    trusting: dict[str, object] = {"transport": transport, "trust_proxy": True}
    assert refusal(trusting | {"listen": "127.0.0.1:0"}).startswith("trust_proxy: ")
    check_settings(Settings.model_validate(trusting | {"listen": "unix:/run/idalloc.sock"}))


@pytest.mark.parametrize("transport", ["grpcio", "native"])
def test_behind_a_proxy_tls_is_for_the_other_ports(transport: str) -> None:
    """With `trust_proxy` native permits `tls_cert`, for other ports; client CAs are refused."""
    behind = CERT | {"transport": transport, "listen": "unix:/run/idalloc.sock", "trust_proxy": True}
    behind |= {"http_listen": "0.0.0.0:0"}
    settings = Settings.model_validate(behind)
    check_settings(settings, requires_authentication=True)
    assert not uses_tls(settings)
    assert uses_tls(Settings.model_validate(OPEN | CERT))
    assert refusal(behind | {"tls_client_ca": "/ca"}).startswith("tls_client_ca: with trust_proxy")
