"""All mutants by name."""

from tests.support.mutants.edit import Mutant
from tests.support.mutants.table import (
    changes,
    counters,
    doc_ids,
    identities,
    imports,
    joined,
    leases,
    marks,
    request_ids,
    reserves,
    rpc,
    witnesses,
)

_TABLES = (
    leases,
    counters,
    reserves,
    marks,
    changes,
    imports,
    request_ids,
    doc_ids,
    witnesses,
    identities,
    joined,
    rpc,
)
_ALL = [mutant for table in _TABLES for mutant in table.MUTANTS]

MUTANTS: dict[str, Mutant] = {mutant.name: mutant for mutant in _ALL}
assert len(MUTANTS) == len(_ALL), "two mutants have one name"
