"""Faults of writes that share a request (P1, P9)."""

from tests.support.mutants.edit import Edit, Place

JOINED = "idalloc_server.store.cluster.joined_writes"

MUTANTS = (
    Place("P1", JOINED).mutant(
        "joined-answers-are-swapped",
        "a write of a request gets the answer of another one",
        Edit("JoinedWrites._end", "task.result()", "task.result()[::-1]"),
        scenarios=("joined",),
    ),
    Place("P9", JOINED).mutant(
        "joined-row-twice",
        "a request has two writes of one row",
        Edit("JoinedWrites._send_chosen", "self._send_many(writes)", "self._send_many([*writes, writes[0]])"),
        Edit("JoinedWrites._end", "task.result()", "task.result()[: len(joined.writes)]"),
        scenarios=("joined",),
    ),
    Place("P9", "idalloc_server.domain.errors").mutant(
        "lost-grants-are-not-counted",
        "the ids of a grant that the answer lacks are not burned",
        Edit("GrantLost", "StoreOutcomeUnknown", "StoreUnavailable"),
        scenarios=("joined",),
    ),
)
