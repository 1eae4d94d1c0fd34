"""Notifications to the service manager, as sd_notify(3) defines them."""

import os
import socket
from contextlib import suppress

# The longest wait for a service manager that does not read: a lost READY=1 would be a failed start.
SEND_SECONDS = 1.0


def notify(state: str) -> None:
    """Send ``READY=1`` or ``STOPPING=1`` to the socket in ``NOTIFY_SOCKET``, if there is one."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return
    address = "\0" + path[1:] if path.startswith("@") else path  # @ marks an abstract socket
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
        connection.settimeout(SEND_SECONDS)
        connection.connect(address)
        connection.send(state.encode())
