"""Probes: ``/livez`` answers while the process runs, ``/readyz`` only while it can serve."""

from collections.abc import Callable, Mapping

from aiohttp import web

from idalloc_server.http.server import Handler


async def livez(request: web.BaseRequest) -> web.Response:
    """Answer 200 while the event loop of the process runs."""
    return web.Response(text="ok\n")


def readyz(run_checks: Callable[[], Mapping[str, str]]) -> Handler:
    """Return a handler that answers 200 if all checks pass, else 503 with those that fail.

    ``?verbose`` lists all checks. ``run_checks`` returns the problem that each check found, by its
    name; empty if it passes.
    """

    async def answer(request: web.BaseRequest) -> web.Response:
        checks = run_checks()
        failed = {name: problem for name, problem in checks.items() if problem}
        lines = ["ok"] if not failed else []
        if failed or "verbose" in request.query:
            lines = [f"[-]{name} failed: {problem}" if problem else f"[+]{name} ok" for name, problem in checks.items()]
        return web.Response(status=503 if failed else 200, text="\n".join(lines) + "\n")

    return answer
