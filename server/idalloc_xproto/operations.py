"""The operations of statements on schemas and collections, and the role that each one needs."""

from typing import NamedTuple

from idalloc_server.auth.sessions import ADMIN, ALLOCATE, READ, Role


class Operation(NamedTuple):
    """An operation on a collection, or on a schema."""

    name: str
    role: Role  # the role that it needs
    command: str  # the command that MySQL's error 1142 names

    @property
    def method(self) -> str:
        """The method in the audit."""
        return f"xproto/{self.name}"


FIND = Operation("find", READ, "SELECT")
LIST = Operation("list", READ, "SHOW")
COUNT = Operation("count", READ, "SELECT")
ADD = Operation("add", ALLOCATE, "INSERT")
# An upsert of an existing ``_id``. It needs ALLOCATE, too.
REPLACE = Operation("replace", ADMIN, "UPDATE")
MODIFY = Operation("modify", ADMIN, "UPDATE")
REMOVE = Operation("remove", ADMIN, "DELETE")
CREATE_COLLECTION = Operation("create_collection", ADMIN, "CREATE")
DROP_COLLECTION = Operation("drop_collection", ADMIN, "DROP")
CREATE_SCHEMA = Operation("create_schema", ADMIN, "CREATE")
DROP_SCHEMA = Operation("drop_schema", ADMIN, "DROP")
