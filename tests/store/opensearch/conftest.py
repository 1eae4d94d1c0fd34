from collections.abc import AsyncIterator

import pytest

from tests.support.opensearch.stand_in import OpenSearchStandIn


@pytest.fixture
async def opensearch() -> AsyncIterator[OpenSearchStandIn]:
    """A stand-in; the test fails if it gets a request that it does not know."""
    async with OpenSearchStandIn() as stand_in:
        yield stand_in
    assert stand_in.unknown == []
