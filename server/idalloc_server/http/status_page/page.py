"""The status page and the two JSON documents that it reads; it changes nothing.

The files of the page are open to all and have no data. The page requests the documents every two
seconds.
"""

from collections import Counter
from collections.abc import Callable, Mapping
from importlib.resources import files
from typing import Any, Protocol

from aiohttp import web

from idalloc_server.domain.administration.index import MAX_KEPT, SortKey
from idalloc_server.domain.allocation.reserve import MAX_LEASE_SIZE, MAX_RESERVED_IDS, PREFETCH_SHARE, REMAINING_IDS
from idalloc_server.domain.clock import Clock
from idalloc_server.domain.errors import StoreUnavailable
from idalloc_server.telemetry import families, recent
from idalloc_server.telemetry.call_rates import CallRates
from idalloc_server.telemetry.metrics import Counts

# The longest wait for a process that answers a question.
ANSWER_SECONDS = 2.0
DEFAULT_LIMIT = 50
MAX_LIMIT = 100
MAX_OFFSET = MAX_KEPT
# Why a reserve is limited, in words.
LIMITS = {
    REMAINING_IDS: f"{100 / PREFETCH_SHARE:g} % of the ids left",
    MAX_RESERVED_IDS: "max_reserved_ids",
    MAX_LEASE_SIZE: "max_lease_size",
}

# The page loads nothing from elsewhere, runs no inline script, and is shown in no frame.
PAGE_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self' data:; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
FILES = {
    "/": ("index.html", "text/html"),
    "/status.css": ("status.css", "text/css"),
    "/status.js": ("status.js", "text/javascript"),
}


class Source(Protocol):
    """What the HTTP port shows: a whole server in one process, or the supervisor of several."""

    def describe(self) -> Mapping[str, Any]:
        """Return the addresses of the server, its store and its witness, without secrets."""

    def checks(self) -> Mapping[str, str]:
        """Return the problem that each check of readiness found, by name; empty if it passes."""

    async def ask_all(self, question: str, arguments: Mapping[str, Any], timeout: float) -> list[Any]:
        """Return the answers of all processes that answered a question in time, as JSON values."""

    async def ask(self, question: str, arguments: Mapping[str, Any], timeout: float) -> Any:
        """Return the answer of a process with an open store to a question, as a JSON value.

        Raises:
            StoreUnavailable, TimeoutError: No process answered within ``timeout`` seconds.
        """

    def counts(self) -> Counts:
        """Return the metrics of the server, without those that the port adds."""

    def pids(self) -> Mapping[str, int]:
        """Return the process ids of the server's processes, by name."""


class StatusPage:
    """Serves the page and its documents.

    Args:
        clock: Dates the answers.
        node: What does not change while the server runs, as JSON values.
        ready_source: Returns what the page shows, or raises ``HTTPServiceUnavailable``.
        checks: Returns the problem that each check found, by its name; empty if it passes.
    """

    def __init__(
        self,
        clock: Clock,
        node: Mapping[str, Any],
        ready_source: Callable[[], Source],
        checks: Callable[[], Mapping[str, str]],
    ) -> None:
        self._clock = clock
        self._node = node
        self._ready_source = ready_source
        self._checks = checks
        self._started_at = clock.wall()
        self.rates = CallRates()  # gets a sample of the calls every second
        folder = files("idalloc_server.http.status_page")
        self._files = {path: (folder.joinpath(name).read_bytes(), kind) for path, (name, kind) in FILES.items()}

    async def file(self, request: web.BaseRequest) -> web.Response:
        """Answer with the file at a path of ``FILES``."""
        content, kind = self._files[request.path]
        headers = {"Content-Security-Policy": PAGE_POLICY}
        return web.Response(body=content, content_type=kind, charset="utf-8", headers=headers)

    async def status(self, request: web.BaseRequest) -> web.Response:
        """Answer with the state of the server."""
        source = self._ready_source()
        health = self._checks()
        lists = await source.ask_all("recent", {}, ANSWER_SECONDS)
        counts = source.counts()
        counters = counts.counters
        gauges = counts.gauges
        prefix = next(iter(gauges[families.START_TIMESTAMP]), "")
        times = {"started_at": self._started_at, "now": self._clock.wall()}
        node = {**self._node, **source.describe(), "prefix": prefix, **times}
        if (witness_up := gauges[families.WITNESS_UP].get("")) is not None:
            node["witness_up"] = bool(witness_up)
        return web.json_response(
            {
                "node": node,
                "health": [{"check": name, "problem": problem} for name, problem in health.items()],
                "calls": self.rates.by_method(),
                "totals": {
                    "ids_issued": str(counters[families.IDS_ISSUED].total()),
                    "doc_ids_issued": str(counters[families.DOC_IDS_ISSUED].total()),
                    "burned": {cause: str(ids) for cause, ids in counters[families.IDS_BURNED].items() if ids},
                    "in_flight": counts.calls.in_flight,
                    "sequences_in_memory": int(gauges[families.SEQUENCES_IN_MEMORY].get("", 0)),
                    "leases": int(gauges[families.LEASES].get("", 0)),
                },
                "refusals": recent.newest(*(each["refusals"] for each in lists)),
                "events": recent.newest(*(each["events"] for each in lists)),
            }
        )

    async def sequences(self, request: web.BaseRequest) -> web.Response:
        """Answer with a page of the list of sequences.

        Raises:
            HTTPBadRequest: A parameter is invalid.
        """
        source = self._ready_source()
        query = request.query
        sort = query.get("sort", "name")
        if sort not in [*SortKey]:
            raise web.HTTPBadRequest(reason=f"sort must be one of {', '.join(SortKey)}")
        arguments = {
            "search": query.get("search", ""),
            "sort": sort,
            "descending": bool(_number(request, "descending", default=0, least=0, most=1)),
            "offset": _number(request, "offset", default=0, least=0, most=MAX_OFFSET),
            "limit": _number(request, "limit", default=DEFAULT_LIMIT, least=1, most=MAX_LIMIT),
        }
        try:
            found = await source.ask("sequences", arguments, ANSWER_SECONDS)
        except (StoreUnavailable, TimeoutError) as error:
            return web.Response(status=503, text=f"{str(error) or 'no process answered in time'}\n")
        names = [each["name"] for each in found["sequences"]]
        held = await source.ask_all("in_memory", {"names": names}, ANSWER_SECONDS) if names else []
        for each in found["sequences"]:
            states = [shown[each["name"]] for shown in held]
            burned = Counter[str]()
            for state in states:
                burned.update(state["burned"])
            each["lease_ids"] = str(sum(state["lease_ids"] for state in states))
            # Of the process with the shortest reserve.
            reserves = [(state["reserve_seconds"], state["reserve_limit"]) for state in states]
            known = [(seconds, limit) for seconds, limit in reserves if seconds is not None]
            each["reserve_seconds"], limit = min(known, default=(None, ""))
            each["reserve_limit"] = LIMITS.get(limit, "")
            each["burned"] = {cause: str(ids) for cause, ids in burned.items()}
        return web.json_response({**found, "offset": arguments["offset"]})


def _number(request: web.BaseRequest, name: str, *, default: int, least: int, most: int) -> int:
    text = request.query.get(name, str(default))
    if not (text.isascii() and text.isdigit() and len(text) < 10 and least <= int(text) <= most):
        raise web.HTTPBadRequest(reason=f"{name} must be between {least} and {most}")
    return int(text)
