"""An index of another program whose answers are given, also wrong ones."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from aiohttp import web

BLOCKED = {"counters": {"settings": {"index": {"blocks": {"write": "true"}}}}}
WRITABLE = {"counters": {"settings": {"index": {"number_of_shards": "1"}}}}


def page(*names: str, total: int = 3, failed: int = 0, **more: Any) -> dict[str, Any]:
    """Return a page of counters, and the changes of ``more``; None leaves a field out."""
    answer: dict[str, Any]
    hits = [{"_id": name, "_source": {"last_value": 7}} for name in names]
    found = {"total": {"value": total, "relation": "eq"}, "hits": hits}
    answer = {"_scroll_id": "next", "timed_out": False, "_shards": {"failed": failed}, "hits": found}
    answer |= {"aggregations": {"writes": {"sum": 3.0}}, **more}
    return {name: value for name, value in answer.items() if value is not None}


class Pages:
    """An index whose answers are given."""

    def __init__(self) -> None:
        self.host = ""  # HOST:PORT
        self.settings: Any = BLOCKED
        self.refresh: Any = {"_shards": {"total": 2, "successful": 1, "failed": 0}}
        # The answers to the search and to each scroll; a text is an answer that is no JSON.
        self.pages: list[Any] = [page("a", "b"), page("c"), page()]
        self.last: Any = page()  # the answer to the search without hits, after the pages
        self.status = 200  # of all answers
        self.requests: list[tuple[str, str, Any]] = []  # method, path and body

    async def answer(self, request: web.BaseRequest) -> web.Response:
        """Answer a request."""
        text = await request.text()
        body = json.loads(text) if text else None
        self.requests.append((request.method, request.path, body))
        content = self._content(request, body)
        if isinstance(content, str):
            return web.Response(text=content, content_type="text/html", status=self.status)
        return web.json_response(content, status=self.status)

    def _content(self, request: web.BaseRequest, body: Any) -> Any:
        if request.method == "DELETE":
            return {"succeeded": True, "num_freed": 1}
        if request.path.endswith("_settings"):
            return self.settings
        if request.path.endswith("_refresh"):
            return self.refresh
        return self.last if body.get("size") == 0 else self.pages.pop(0)


@asynccontextmanager
async def serve_pages() -> AsyncIterator[Pages]:
    """Serve an index whose answers are given."""
    pages = Pages()
    runner = web.ServerRunner(web.Server(pages.answer), shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    pages.host = "127.0.0.1:{1}".format(*runner.addresses[0])
    yield pages
    await runner.cleanup()
