"""The settings of the X Protocol's port."""

from collections.abc import Mapping
from typing import ClassVar

from pydantic import Field

from idalloc_server.settings.model import HttpAddress, Settings

_MESSAGES = "messages have at most 64 MiB, as in MySQL"


class XProtocolSettings(Settings):
    """The settings of a server with the X Protocol's port."""

    replaced: ClassVar[Mapping[str, str]] = {
        **Settings.replaced,
        "xproto_max_message": _MESSAGES,
        "xproto_max_message_bytes": _MESSAGES,
        "xproto_max_connections": "a process has connections for a quarter of its open files",
    }

    xproto_listen: HttpAddress = Field(
        "", description="Address of the X Protocol's port for MySQL's X DevAPI clients, HOST:PORT; empty for none."
    )
