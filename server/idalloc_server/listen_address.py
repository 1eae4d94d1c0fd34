"""Listen addresses as text: ``HOST:PORT`` or ``unix:/PATH``."""

import re

# The kernel takes a path of 103 bytes on each system.
_LONGEST_UNIX = 103 + len("unix:")


def check_listen_address(value: str) -> str:
    """Return a listen address unchanged.

    Raises:
        ValueError: It is neither HOST:PORT nor unix:/PATH.
    """
    if value.startswith("unix:"):
        if not re.fullmatch(r"unix:(/[\w.@+-]+)+", value, re.ASCII) or len(value) > _LONGEST_UNIX:
            raise ValueError(
                f"must be unix:/PATH, at most {_LONGEST_UNIX} ASCII letters, digits and characters of /._@+-"
            )
        return value
    match = re.fullmatch(r"([^\s:]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})", value)
    if match is None or int(match[2]) > 65_535:
        raise ValueError("must be HOST:PORT such as 127.0.0.1:50051 or [::]:50051, or unix:/PATH")
    try:
        match[1].encode("idna")  # as whoever looks up its address does, at the start
    except UnicodeError:
        raise ValueError("must be a name that can be looked up, or an address, and :PORT") from None
    return value


def unix_path(listen: str) -> str:
    """Returns the path of a Unix socket; empty where the address is HOST:PORT."""
    return listen.removeprefix("unix:") if listen.startswith("unix:/") else ""
