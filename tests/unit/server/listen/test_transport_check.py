"""Addresses that others can reach: what is refused there, and that the mend which is offered does mend it."""

from pathlib import Path

import pytest

from idalloc_server import app
from idalloc_server.config import Settings
from idalloc_server.domain.errors import StartRefused
from idalloc_server.listen.transport import check
from idalloc_server.node_settings import NodeSettingsFile
from idalloc_server.process_mode import SingleProcess

OPEN: dict[str, object] = {"listen": "0.0.0.0:0"}
CERT: dict[str, object] = {"tls_cert": "/cert", "tls_key": "/key"}


def said(settings: dict[str, object], *, asks: bool = False) -> str:
    with pytest.raises(StartRefused) as error:
        check(Settings.model_validate(settings), asks=asks)
    return str(error.value)


@pytest.mark.parametrize("asks", [False, True])
def test_native_is_told_only_what_helps_it(asks: bool) -> None:
    native = {**OPEN, "transport": "native"}
    missing = "tls_cert" if asks else "access and tls_cert"
    why = "tokens and ids are not encrypted" if asks else "nobody is asked who they are"
    assert said(native, asks=asks) == (
        f"listen: others can reach 0.0.0.0:0, and {why}, and native unpacks requests of any size before it "
        "authenticates a caller: listen on 127.0.0.1 or on unix:/PATH, say insecure = true (--insecure true), "
        f"or choose --transport grpcio and set {missing}"
    )
    for allowed in ({"listen": "127.0.0.1:0"}, {"listen": "unix:/run/idalloc.sock"}, {"insecure": True}):
        check(Settings.model_validate(native | allowed), asks=asks)
    check(Settings.model_validate(native | CERT | {"transport": "grpcio"}), asks=True)


def test_grpcio_is_told_what_it_misses() -> None:
    assert (
        "set access and tls_cert, listen on 127.0.0.1 or on unix:/PATH, or say insecure = true (--insecure true)"
        in said(OPEN)
    )
    assert "set access, listen" in said(OPEN | CERT)
    assert "set tls_cert, listen" in said(OPEN, asks=True)
    check(Settings.model_validate(OPEN | CERT), asks=True)


async def test_a_file_of_quotas_alone_asks_nobody(tmp_path: Path) -> None:
    file = tmp_path / "access.toml"
    file.write_text("[[quota]]\nsequence = '*'\nids_per_second = 1\n")
    settings = Settings.model_validate(OPEN | {"access": str(file), "store": f"sqlite://{tmp_path}/ids.db"})
    with pytest.raises(StartRefused, match="nobody is asked who they are: set access and tls_cert"):
        await app.serve(settings, SingleProcess(NodeSettingsFile(None, "0.0.0.0:0"), 1.0))
