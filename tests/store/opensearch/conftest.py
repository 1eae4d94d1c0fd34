from collections.abc import AsyncIterator

import pytest

from tests.support.opensearch.backend import OpenSearchBackend
from tests.support.opensearch.stand_in import OpenSearchStandIn
from tests.support.store_backends import Opener


@pytest.fixture
async def opensearch() -> AsyncIterator[OpenSearchStandIn]:
    """A stand-in; the test fails if it gets a request that it does not know."""
    async with OpenSearchStandIn() as stand_in:
        yield stand_in
    assert stand_in.unknown == []


@pytest.fixture
def backend(opener: Opener) -> OpenSearchBackend:
    """The indices behind the stores of the opener."""
    assert isinstance(opener.backend, OpenSearchBackend)
    return opener.backend
