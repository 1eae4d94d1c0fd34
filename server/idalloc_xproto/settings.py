"""The settings of the X Protocol's port."""

from collections.abc import Mapping
from typing import Annotated, ClassVar

from pydantic import Field

from idalloc_server.settings.model import HttpAddress, Settings


class XProtocolSettings(Settings):
    """The settings of a server with the X Protocol's port."""

    renamed: ClassVar[Mapping[str, str]] = {**Settings.renamed, "xproto_max_message": "xproto_max_message_bytes"}

    xproto_listen: HttpAddress = Field(
        "", description="Address of the X Protocol's port for MySQL's X DevAPI clients, HOST:PORT; empty for none."
    )
    xproto_max_message_bytes: Annotated[int, Field(ge=65_536, le=2**30)] = Field(
        4 * 2**20, description="Maximum size of a message of an X DevAPI client, in bytes."
    )
    xproto_max_connections: Annotated[int, Field(ge=1, le=100_000)] = Field(
        100, description="Maximum number of connections of X DevAPI clients to a process."
    )
