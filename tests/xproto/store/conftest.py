"""The stores of tests/store, which the annex's documents use, too."""

from tests.store.conftest import clock as clock
from tests.store.conftest import emulator as emulator
from tests.store.conftest import opener as opener
from tests.store.conftest import second_look as second_look
from tests.store.conftest import store as store
from tests.store.cratedb.test_refusals import cluster as cluster
