"""System variables: those of document ids, and those that clients read or set at a login."""

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from idalloc.xprotocol.v1 import notice_pb2
from idalloc_server.domain.document_ids.generator import DocIdGenerator
from idalloc_server.domain.errors import PermissionDenied, Refusal
from idalloc_xproto import frames
from idalloc_xproto.mysql_errors import XError, not_supported

PREFIX = "mysqlx_document_id_unique_prefix"
OFFSET = "auto_increment_offset"
INCREMENT = "auto_increment_increment"
VERSION = "8.0.31-idalloc"
# How long a session may wait for its next message: MySQL's default of mysqlx_wait_timeout.
IDLE_SECONDS = 28_800

# The smallest value and the default of each variable of document ids; the largest is 65535.
_LEAST = {PREFIX: 0, OFFSET: 1, INCREMENT: 1}
_MOST = 65_535
# The names of the settings of UpdateNode.
_NODE_SETTINGS = {PREFIX: "prefix", OFFSET: OFFSET, INCREMENT: INCREMENT}
# Set by clients; without effect here.
_IGNORED = ("mysqlx_wait_timeout", "character_set_", "time_zone", "collation_connection", "sql_mode", "net_")


class Assignment(NamedTuple):
    """One assignment of SET."""

    scope: str  # ``SESSION``, ``GLOBAL`` or ``PERSIST``
    name: str  # of the variable, in lower case
    value: int | str | None  # None for DEFAULT


# Changes the node's settings, and if the second argument is True, keeps them over restarts.
ChangeNode = Callable[[Mapping[str, int], bool], Awaitable[None]]


@dataclass(eq=False)
class Variables:
    """The variables of one session."""

    node: DocIdGenerator  # has the node's settings
    change_node: ChangeNode
    max_message_bytes: int  # of the largest message
    own: dict[str, int] = field(default_factory=dict, init=False)  # set by the session

    @property
    def offset(self) -> int:
        """The session's auto_increment_offset; 0 for the node's."""
        return self.own.get(OFFSET, 0)

    @property
    def increment(self) -> int:
        """The session's auto_increment_increment; 0 for the node's."""
        return self.own.get(INCREMENT, 0)

    def reset(self) -> None:
        """Forget the session's own values."""
        self.own = {}

    def read(self, name: str, *, is_global: bool = False) -> int | str:
        """Return the value of a variable.

        Raises:
            XError: There is no such variable.
        """
        values = self.all(is_global=is_global)
        if name.lower() not in values:
            raise XError(1193, f"Unknown system variable '{name}'")
        return values[name.lower()]

    def all(self, *, is_global: bool = False) -> dict[str, int | str]:
        """Return all variables, by name."""
        node = self.node.settings
        own = {} if is_global else self.own
        values: dict[str, int | str] = {
            "autocommit": 1,
            INCREMENT: own.get(INCREMENT, node[INCREMENT]),
            OFFSET: own.get(OFFSET, node[OFFSET]),
            "lower_case_table_names": 0,
            PREFIX: node["prefix"],
            "mysqlx_max_allowed_packet": self.max_message_bytes,
            "mysqlx_wait_timeout": IDLE_SECONDS,
            "sql_mode": "",
            "version": VERSION,
            "version_comment": "idalloc, an id allocator: not MySQL",
        }
        return dict(sorted(values.items()))

    async def set(self, assignments: list[Assignment]) -> list[bytes]:
        """Make the assignments, and return the frames of their warnings.

        All are checked first. Then the node's variables change: those of PERSIST, and after them
        those of GLOBAL.

        Raises:
            XError: A variable is unknown, or cannot have the value.
        """
        warnings: list[bytes] = []
        own = dict(self.own)
        lasting: dict[str, int] = {}
        passing: dict[str, int] = {}
        for each in assignments:
            if each.name not in _LEAST:
                if each.name == "autocommit" and each.value not in (1, "1", "ON", "on", None):
                    raise not_supported("autocommit = 0")
                if each.name != "autocommit" and not each.name.startswith(_IGNORED):
                    raise XError(1193, f"Unknown system variable '{each.name}'")
                continue
            number = _clamp_number(each, warnings)
            if each.scope == "SESSION":
                if each.name == PREFIX:
                    text = f"Variable '{PREFIX}' is a GLOBAL variable and should be set with SET GLOBAL"
                    raise XError(1229, text)
                own[each.name] = number
                continue
            name = _NODE_SETTINGS[each.name]
            passing.pop(name, None)  # the last assignment wins
            (lasting if each.scope == "PERSIST" else passing)[name] = number
        await self._set_node(lasting, persist=True)
        await self._set_node(passing, persist=False)
        self.own = own
        return warnings

    async def _set_node(self, given: Mapping[str, int], *, persist: bool) -> None:
        if not given:
            return
        try:
            await self.change_node(given, persist)
        except PermissionDenied as refusal:
            raise XError(1227, f"Access denied; {refusal}", "42000") from None
        except Refusal as refusal:
            raise XError(1105, str(refusal)) from None


def _clamp_number(assignment: Assignment, warnings: list[bytes]) -> int:
    """Return a number within the limits of its variable; add a warning if that changed it."""
    if assignment.value is None:
        return _LEAST[assignment.name]
    if isinstance(assignment.value, str):
        raise XError(1232, f"Incorrect argument type to variable '{assignment.name}'", "42000")
    number = min(max(assignment.value, _LEAST[assignment.name]), _MOST)
    if number != assignment.value:
        text = f"Truncated incorrect {assignment.name} value: '{assignment.value}'"
        warnings.append(frames.warning(notice_pb2.WARNING_LEVEL_WARNING, 1292, text))
    return number
