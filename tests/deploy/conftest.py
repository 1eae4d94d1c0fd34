"""An Envoy with the configuration of deploy/envoy."""

from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest

from tests.support.proxy import Proxy, proxying


@pytest.fixture
def short_folder() -> Iterator[Path]:
    """A folder with a short name, since socket paths are limited."""
    with TemporaryDirectory() as folder:
        yield Path(folder)


@pytest.fixture
def proxy(short_folder: Path) -> Iterator[Proxy]:
    """Envoy without a server behind it."""
    with proxying(short_folder) as running:
        yield running
