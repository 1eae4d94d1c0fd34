"""Listen addresses as text: ``HOST:PORT`` or ``unix:/PATH``."""

import re

# Every supported kernel allows 103 bytes.
_MAX_UNIX_LENGTH = 103 + len("unix:")


def check_listen_address(value: str) -> str:
    """Return a valid listen address unchanged.

    Raises:
        ValueError: It is neither HOST:PORT nor unix:/PATH.
    """
    if value.startswith("unix:"):
        if not re.fullmatch(r"unix:(/[\w.@+-]+)+", value, re.ASCII) or len(value) > _MAX_UNIX_LENGTH:
            raise ValueError(
                f"must be unix:/PATH, at most {_MAX_UNIX_LENGTH} ASCII letters, digits and characters of /._@+-"
            )
        return value
    return _check_host_and_port(value, "must be HOST:PORT such as 127.0.0.1:50051 or [::]:50051, or unix:/PATH")


def check_http_address(value: str) -> str:
    """Return a valid address of the HTTP port unchanged; an empty one turns it off.

    Raises:
        ValueError: It is not HOST:PORT.
    """
    return _check_host_and_port(value, "must be HOST:PORT such as 127.0.0.1:50080, or empty") if value else value


def check_host_names(value: str) -> str:
    """Return a valid list of host names unchanged; it may be empty.

    Raises:
        ValueError: It is not a list of host names without ports, separated by commas.
    """
    if value and not re.fullmatch(r"[\w.-]+(,[\w.-]+)*", value, re.ASCII):
        raise ValueError("must be host names without ports, separated by commas, such as idalloc-1,idalloc.example.com")
    return value


def _check_host_and_port(value: str, rule: str) -> str:
    match = re.fullmatch(r"([^\s:]+|\[[0-9A-Fa-f:.]+\]):([0-9]{1,5})", value)
    if match is None or int(match[2]) > 65_535:
        raise ValueError(rule)
    try:
        match[1].encode("idna")  # as the lookup at startup encodes it
    except UnicodeError:
        raise ValueError("must be HOST:PORT with a valid host name or address") from None
    return value


def unix_path(listen: str) -> str:
    """Return the path of a Unix socket, or an empty text for HOST:PORT."""
    return listen.removeprefix("unix:") if listen.startswith("unix:/") else ""
