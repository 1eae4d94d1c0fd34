"""Notifications to the service manager, as sd_notify(3) defines them."""

import os
import socket
from contextlib import suppress

# The longest wait for a service manager that does not read: a lost READY=1 would be a failed start.
SEND_SECONDS = 1.0


def notify(state: str) -> None:
    """Send a state to the socket in ``NOTIFY_SOCKET``.

    Do nothing if the variable is not set or the socket cannot be reached.

    Args:
        state: ``READY=1`` once the server serves, ``STOPPING=1`` once it begins to stop.
    """
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return
    address = "\0" + path[1:] if path.startswith("@") else path  # @ marks an abstract socket
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as connection:
        connection.settimeout(SEND_SECONDS)
        connection.connect(address)
        connection.send(state.encode())
