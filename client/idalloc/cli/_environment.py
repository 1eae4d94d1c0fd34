"""Finds environment variables named IDALLOC_… that have no effect, such as mistyped ones."""

import re
from collections.abc import Iterator, Mapping
from difflib import get_close_matches

PREFIX = "IDALLOC_"
# Variables that the client reads, without the prefix.
CLIENT = ("SERVER", "TIMEOUT", "TLS", "CA", "CERT", "KEY", "SERVER_NAME", "TOKEN", "TOKEN_FILE", "TOKEN_INSECURE")
# Variables that the server reads: both may share an environment, as in the container image. Listed
# here because the client works without the server.
SERVER = (
    *("CONFIG", "LISTEN", "HTTP_LISTEN", "TRANSPORT", "STORE", "NODE_PREFIX", "PREFIX_CONFLICT"),
    *("AUTO_INCREMENT_OFFSET", "AUTO_INCREMENT_INCREMENT", "LEASE_TTL", "OUTAGE_RESERVE", "MAX_RESERVED_IDS"),
    *("STORE_TIMEOUT", "MAX_CLOCK_SKEW", "WORKERS", "DRAIN_TIMEOUT", "MAX_IDS_PER_CALL", "MAX_SEQUENCES"),
    *("AUTO_CREATE_SEQUENCES", "REQUEST_ID_WINDOW", "TLS_CERT", "TLS_KEY", "TLS_CLIENT_CA", "ACCESS_FILE", "INSECURE"),
    *("MAX_CONNECTION_AGE", "LOG_LEVEL", "DEBUG_METRICS", "XPROTO_LISTEN"),
    *("TRUST_PROXY", "WITNESS", "PROBE_LISTEN", "HTTP_HOSTS"),
)
# Variables of the tests, and those that Kubernetes sets for a service named idalloc.
_IGNORED = re.compile(r"TEST_\w+|(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_\w+)?)")


def unknown_variables(environ: Mapping[str, str]) -> Iterator[str]:
    """Yield a warning for each unknown variable that begins with IDALLOC_."""
    for variable in sorted(environ):
        name = variable.removeprefix(PREFIX)
        if name == variable or name in CLIENT or name in SERVER or _IGNORED.fullmatch(name):
            continue
        close = get_close_matches(name, CLIENT + SERVER, 1)
        hint = f"; did you mean {PREFIX}{close[0]}?" if close else ""
        yield f"idalloc: the environment variable {variable} is unknown and has no effect{hint}"
