"""Probes: ``/livez`` answers while the process runs, ``/readyz`` only while it can serve."""

from collections.abc import Callable, Mapping

from aiohttp import web

# By the name of a check: what is wrong; empty if it passes.
Checks = Callable[[], Mapping[str, str]]


async def livez(request: web.BaseRequest) -> web.Response:
    """Answer 200 while the event loop of the process runs."""
    return web.Response(text="ok\n")


class Readiness:
    """Answers ``/readyz``: 200 if all checks pass, else 503 with those that fail.

    ``?verbose`` lists all checks.

    Args:
        checks: Returns the present result of each check.
    """

    def __init__(self, checks: Checks) -> None:
        self._checks = checks

    async def readyz(self, request: web.BaseRequest) -> web.Response:
        """Answer with the checks."""
        checks = self._checks()
        failed = {name: problem for name, problem in checks.items() if problem}
        lines = ["ok"] if not failed else []
        if failed or "verbose" in request.query:
            lines = [f"[-]{name} failed: {problem}" if problem else f"[+]{name} ok" for name, problem in checks.items()]
        return web.Response(status=503 if failed else 200, text="\n".join(lines) + "\n")
