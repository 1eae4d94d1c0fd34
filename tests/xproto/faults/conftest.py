"""What the fault scenarios of tests/faults share; `make faults` runs both folders."""

from tests.faults.conftest import pytest_collection_modifyitems as pytest_collection_modifyitems
from tests.faults.conftest import scenario as scenario
