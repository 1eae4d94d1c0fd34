"""How the port passes handlers to grpcio."""

import inspect

import pytest

from idalloc_server.rpc.server import CoroutineFunction


async def answer(request: str, context: object) -> str:
    return f"{request} of {context}"


async def test_a_handler_passes_both_checks_of_grpcio() -> None:
    """It passes the cheaper one, and the other if a release of grpcio has no such check."""
    handler = CoroutineFunction(answer)
    assert inspect.isawaitable(handler)
    assert inspect.iscoroutinefunction(handler)
    assert await handler("request", "context") == "request of context"


async def test_a_handler_cannot_be_awaited_itself() -> None:
    """An await of the handler instead of its result is an error."""
    with pytest.raises(TypeError, match="call the handler"):
        await CoroutineFunction(answer)
