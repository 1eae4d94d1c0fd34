"""The SQL that MySQL's clients send: schemas, counts, variables. All other SQL is refused."""

import re
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass

from idalloc.xprotocol.v1 import notice_pb2, statement_pb2
from idalloc_xproto import frames
from idalloc_xproto.caller import Caller
from idalloc_xproto.documents.like import like_pattern
from idalloc_xproto.documents.protocol import Documents
from idalloc_xproto.mysql_errors import XError, no_schema, not_supported, text_of, unknown_collection, unknown_schema
from idalloc_xproto.names import check_names
from idalloc_xproto.operations import COUNT, CREATE_SCHEMA, DROP_COLLECTION, DROP_SCHEMA
from idalloc_xproto.variables import VERSION, Assignment, Variables

# The longest statement with its arguments, in characters.
MAX_STATEMENT = 4_096

_NAME = r"(`(?:[^`]|``)+`|[\w$]+)"
_TEXT = r"('(?:[^'\\]|''|\\.)*'|\"(?:[^\"\\]|\"\"|\\.)*\")"
_VALUE = rf"(?:{_TEXT}|(-?\d+)|(\w+)|(-?[\d.]+))"
_ASSIGNMENT = re.compile(
    rf"(?:(GLOBAL|SESSION|LOCAL|PERSIST)\s+|@@(?:(GLOBAL|SESSION|LOCAL|PERSIST)\.)?)?(\w+)\s*:?=\s*{_VALUE}\s*(?:,\s*|$)",
    re.IGNORECASE,
)
_ITEM = re.compile(
    rf"\s*(@@(?:(GLOBAL|SESSION)\.)?(\w+)|(VERSION|CONNECTION_ID|DATABASE|SCHEMA)\(\s*\)|(-?\d+)|{_TEXT}|{_NAME})"
    rf"(?:\s+(?:AS\s+)?{_NAME})?\s*(?:,|$)",
    re.IGNORECASE,
)
_QUOTED_OR_END = re.compile(rf"{_TEXT}|`[^`]*`|(;|['\"`].*)", re.DOTALL)  # the last is a quote without its end
_BEGINNINGS = re.compile(
    r"(SELECT|INSERT|UPDATE|DELETE|REPLACE|CREATE|DROP|ALTER|SHOW|SET|USE|CALL|DO|WITH|GRANT|REVOKE|TRUNCATE|EXPLAIN|"
    r"DESCRIBE|DESC|LOCK|UNLOCK|LOAD|RENAME|ANALYZE|FLUSH|KILL|START|BEGIN|COMMIT|ROLLBACK|SAVEPOINT|RELEASE|XA|TABLE|"
    r"VALUES|PREPARE|EXECUTE|RESET)\b",
    re.IGNORECASE,
)
_CHARSETS = ("utf8mb4", "utf8mb3", "utf8", "latin1", "ascii", "binary")
_NUMBER = statement_pb2.COLUMN_TYPE_UINT
_BYTES = statement_pb2.COLUMN_TYPE_BYTES

_Result = Awaitable[Iterable[bytes]]


@dataclass(eq=False)
class Sql:
    """Runs the SQL of one session."""

    documents: Documents
    variables: Variables
    caller: Caller  # the session, whose default schema USE changes

    def __post_init__(self) -> None:
        self._rights = self.caller.rights
        forms: tuple[tuple[str, Callable[[re.Match[str]], _Result]], ...] = (
            (rf"CREATE\s+(?:DATABASE|SCHEMA)(\s+IF\s+NOT\s+EXISTS)?\s+{_NAME}.*", self._create_schema),
            (rf"DROP\s+(?:DATABASE|SCHEMA)(\s+IF\s+EXISTS)?\s+{_NAME}", self._drop_schema),
            (rf"DROP\s+TABLE(\s+IF\s+EXISTS)?\s+(?:{_NAME}\s*\.\s*)?{_NAME}", self._drop_table),
            (rf"USE\s+{_NAME}", self._use_schema),
            (rf"SELECT\s+(COUNT\(\*\))\s+FROM\s+information_schema\.schemata\s+WHERE\s+schema_name\s*=\s*{_TEXT}",
             self._count_schemas),
            (rf"SELECT\s+(COUNT\(\*\))\s+FROM\s+information_schema\.tables\s+WHERE\s+table_schema\s*=\s*{_TEXT}"
             rf"\s+AND\s+table_name\s*=\s*{_TEXT}", self._count_tables),
            (rf"SELECT\s+(COUNT\(\*\))\s+FROM\s+(?:{_NAME}\s*\.\s*)?{_NAME}", self._count),
            (rf"SHOW\s+(?:DATABASES|SCHEMAS)(?:\s+LIKE\s+{_TEXT})?", self._show_schemas),
            (rf"SELECT\s+(schema_name)\s+FROM\s+information_schema\.schemata(?:\s+WHERE\s+schema_name\s*=\s*{_TEXT})?",
             self._select_schemas),
            (rf"SHOW\s+(?:(GLOBAL|SESSION)\s+)?VARIABLES(?:\s+LIKE\s+{_TEXT}|\s+WHERE\s+`?Variable_name`?\s*=\s*{_TEXT})?",
             self._show_variables),
            (r"SET\s+NAMES\s+['\"]?(\w+)['\"]?(?:\s+COLLATE\s+['\"]?\w+['\"]?)?", self._set_names),
            (r"SET\s+(.*)", self._set),
            (r"(?:COMMIT|ROLLBACK)(?:\s+WORK)?|DO\s+1", self._nothing),
            (r"((?:START\s+TRANSACTION|BEGIN|SAVEPOINT|RELEASE\s+SAVEPOINT|ROLLBACK\s+TO)\b).*", self._refuse),
            (r"SELECT\s+(.*?)(?:(?<!\s)\s+LIMIT\s+\d+)?", self._select),
        )  # fmt: skip
        self._forms = [(re.compile(form, re.IGNORECASE | re.DOTALL), run) for form, run in forms]

    async def execute(self, statement: str, args: Sequence[notice_pb2.Any]) -> list[bytes]:
        """Run a statement, and return the frames of its reply.

        Raises:
            XError: The statement is not served, or failed.
        """
        bound = _bind(statement, args) if len(statement) <= MAX_STATEMENT else statement
        if len(bound) > MAX_STATEMENT:
            raise not_supported(f"statements of more than {MAX_STATEMENT} characters")
        text = bound.strip().removesuffix(";").strip()
        if not text:
            raise XError(1065, "Query was empty", "42000")
        if end := next((found for found in _QUOTED_OR_END.finditer(text) if found[2]), None):
            raise _syntax_error(text[end.end() :].strip() if end[2] == ";" else end[2])
        for form, run in self._forms:
            if match := form.fullmatch(text):
                return [*await run(match), frames.DONE_EXECUTING]
        raise not_supported(text[:80]) if _BEGINNINGS.match(text) else _syntax_error(text)

    async def _create_schema(self, match: re.Match[str]) -> Iterable[bytes]:
        name = _unquoted(match[2])
        check_names(name)
        with self._rights.audited(CREATE_SCHEMA, name) as record:
            is_new = await self.documents.create_schema(name)
            record["changed"] = int(is_new)
            if is_new:
                return [frames.rows_affected(1)]
            failure = XError(1007, f"Can't create database '{name}'; database exists")
            return [_note(failure, is_allowed=bool(match[1])), frames.rows_affected(1)]

    async def _drop_schema(self, match: re.Match[str]) -> Iterable[bytes]:
        name = _unquoted(match[2])
        check_names(name)
        with self._rights.audited(DROP_SCHEMA, name) as record:
            dropped = await self.documents.drop_schema(name)
            if dropped is not None:
                record |= {"changed": 1, "collections": dropped}
                if self.caller.schema == name:
                    self.caller.schema = ""
                return [frames.rows_affected(dropped)]
            record["changed"] = 0
            failure = XError(1008, f"Can't drop database '{name}'; database doesn't exist")
            return [_note(failure, is_allowed=bool(match[1])), frames.rows_affected(0)]

    async def _drop_table(self, match: re.Match[str]) -> Iterable[bytes]:
        schema, name = self._collection(match)
        with self._rights.audited(DROP_COLLECTION, schema, name) as record:
            is_dropped = await self.documents.drop_collection(schema, name)
            record["changed"] = int(is_dropped)
            if is_dropped:
                return [frames.rows_affected(0)]
            failure = XError(1051, f"Unknown table '{schema}.{name}'", "42S02")
            return [_note(failure, is_allowed=bool(match[1])), frames.rows_affected(0)]

    async def _use_schema(self, match: re.Match[str]) -> Iterable[bytes]:
        name = _unquoted(match[1])
        check_names(name)
        if name not in await self._schemas():
            raise unknown_schema(name)
        self.caller.schema = name
        return [frames.rows_affected(0)]

    async def _count_schemas(self, match: re.Match[str]) -> Iterable[bytes]:
        return _counted(match[1], int(_unquoted(match[2]) in await self._schemas()))

    async def _count_tables(self, match: re.Match[str]) -> Iterable[bytes]:
        schema = _unquoted(match[2])
        names = self._rights.visible(await self.documents.list_collections(schema), schema)
        return _counted(match[1], int(_unquoted(match[3]) in names))

    async def _count(self, match: re.Match[str]) -> Iterable[bytes]:
        schema, name = self._collection(match)
        self._rights.require(COUNT, schema, name)
        if name not in await self.documents.list_collections(schema):
            raise unknown_collection(schema, name)
        return _counted(match[1], await self.documents.count(schema, name))

    async def _show_schemas(self, match: re.Match[str]) -> Iterable[bytes]:
        matches = like_pattern(_unquoted(match[1])) if match[1] else None
        names = [name for name in await self._schemas() if matches is None or matches(name)]
        shown = f"Database ({_unquoted(match[1])})" if match[1] else "Database"
        return _texts(shown, names, "SCHEMA_NAME", "schemata")

    async def _select_schemas(self, match: re.Match[str]) -> Iterable[bytes]:
        wanted = _unquoted(match[2]) if match[2] else None
        names = [name for name in await self._schemas() if wanted is None or name == wanted]
        return _texts(match[1], names, "SCHEMA_NAME", "SCHEMATA")

    async def _schemas(self) -> list[str]:
        """Return the schemas that the caller may see."""
        return self._rights.visible(await self.documents.list_schemas())

    async def _show_variables(self, match: re.Match[str]) -> Iterable[bytes]:
        matches = like_pattern(_unquoted(match[2])) if match[2] else None
        wanted = _unquoted(match[3]).lower() if match[3] else None
        values = self.variables.all(is_global=(match[1] or "").upper() == "GLOBAL")
        table = ("session_variables", "session_variables", "performance_schema")
        columns = [
            frames.column(_BYTES, name, original=(name, *table), collation=frames.UTF8MB4, length=length, flags=flags)
            for name, length, flags in (("Variable_name", 256, frames.NOT_NULL), ("Value", 4096, 0))
        ]
        rows = [
            frames.row([frames.text_field(name), frames.text_field(str(value))])
            for name, value in values.items()
            if (matches is None or matches(name)) and wanted in (None, name)
        ]
        return [*columns, *rows, frames.DONE_FETCHING, frames.rows_affected(0)]

    async def _set_names(self, match: re.Match[str]) -> Iterable[bytes]:
        if match[1].lower() not in _CHARSETS:
            raise XError(1115, f"Unknown character set: '{match[1]}'", "42000")
        return [frames.rows_affected(0)]

    async def _set(self, match: re.Match[str]) -> Iterable[bytes]:
        text = match[1].strip()
        at = 0
        assignments = []
        scope = "SESSION"
        while at < len(text):
            found = _ASSIGNMENT.match(text, at)
            if found is None:
                raise not_supported(f"SET {text[at:][:80]}")
            at = found.end()
            # A keyword holds for the assignments that follow without one.
            if found[1]:
                scope = _scope(found[1])
            own = _scope(found[2]) if found[2] else scope
            assignments.append(Assignment(own, found[3].lower(), _value(found)))
        return [*await self.variables.set(assignments), frames.rows_affected(0)]

    async def _nothing(self, match: re.Match[str]) -> Iterable[bytes]:
        return [frames.rows_affected(0)]

    async def _refuse(self, match: re.Match[str]) -> Iterable[bytes]:
        raise not_supported(" ".join(match[1].upper().split()))

    async def _select(self, match: re.Match[str]) -> Iterable[bytes]:
        text = match[1].strip()
        at = 0
        columns: list[bytes] = []
        fields: list[bytes] = []
        while at < len(text) or not columns:
            found = _ITEM.match(text, at)
            if found is None:
                raise not_supported(f"SELECT {text[at:][:80]}")
            at = found.end()
            column, field = self._item(found)
            columns.append(column)
            fields.append(field)
        return [*columns, frames.row(fields), frames.DONE_FETCHING, frames.rows_affected(0)]

    def _item(self, found: re.Match[str]) -> tuple[bytes, bytes]:
        """Return the metadata and the value of one item of SELECT."""
        whole, scope, variable, function, integer, text, name, alias = found.groups()
        shown = _unquoted(alias) if alias else _unquoted(whole) if text else whole
        value: int | str | None
        if name:
            raise XError(1054, f"Unknown column '{_unquoted(name)}' in 'field list'", "42S22")
        if integer:
            column = frames.column(
                statement_pb2.COLUMN_TYPE_SINT, shown, length=len(integer.lstrip("-")) + 1, flags=frames.NOT_NULL
            )
            number = int(integer)
            if not -(2**63) <= number < 2**63:
                raise not_supported(integer[:80])
            return column, frames.signed_field(number)
        if variable:
            value = self.variables.read(variable, is_global=(scope or "").upper() == "GLOBAL")
        elif function:
            called = function.upper()
            if called == "CONNECTION_ID":
                column = frames.column(_NUMBER, shown, length=20, flags=frames.NOT_NULL)
                return column, frames.unsigned_field(self.caller.connection_id)
            value = VERSION if called == "VERSION" else self.caller.schema or None
        else:
            value = _unquoted(text)
        if isinstance(value, int):
            # MySQL writes the length 21, which Connector/J cannot read.
            return frames.column(_NUMBER, shown, length=20), frames.unsigned_field(value)
        column = frames.column(_BYTES, shown, collation=frames.UTF8MB4, length=65_535)
        return column, frames.text_field(value)

    def _collection(self, match: re.Match[str]) -> tuple[str, str]:
        """Return the schema and the name of a collection, the second and third group of a form."""
        schema = _unquoted(match[2]) if match[2] else self.caller.schema
        name = _unquoted(match[3])
        if not schema:
            raise no_schema()
        check_names(schema, name)
        return schema, name


def _syntax_error(near: str) -> XError:
    manual = "check the manual that corresponds to your MySQL server version for the right syntax to use near"
    return XError(1064, f"You have an error in your SQL syntax; {manual} '{near[:80]}' at line 1", "42000")


def _counted(name: str, count: int) -> list[bytes]:
    column = frames.column(statement_pb2.COLUMN_TYPE_SINT, name, length=21, flags=frames.NOT_NULL)
    return [column, frames.row([frames.signed_field(count)]), frames.DONE_FETCHING, frames.rows_affected(0)]


def _texts(name: str, texts: Iterable[str], original: str, table: str) -> list[bytes]:
    origin = (original, table, table, "information_schema")
    column = frames.column(_BYTES, name, original=origin, collation=frames.UTF8MB4, length=256)
    rows = (frames.row([frames.text_field(text)]) for text in texts)
    return [column, *rows, frames.DONE_FETCHING, frames.rows_affected(0)]


def _note(failure: XError, *, is_allowed: bool) -> bytes:
    """Return the frame of a note in place of an error that IF EXISTS allows."""
    if not is_allowed:
        raise failure
    return frames.warning(notice_pb2.WARNING_LEVEL_NOTE, failure.code, failure.message)


def _scope(keyword: str) -> str:
    return "SESSION" if keyword.upper() == "LOCAL" else keyword.upper()


def _value(found: re.Match[str]) -> int | str | None:
    text, integer, word, other = found.groups()[3:]
    if integer:
        return int(integer[:32])
    if word and word.upper() == "DEFAULT":
        return None
    return _unquoted(text) if text else word or other


def _unquoted(text: str) -> str:
    """Return the content of a name or a text."""
    quote = text[:1]
    if quote == "`":
        return text[1:-1].replace("``", "`")
    if quote in ("'", '"'):
        return re.sub(r"\\(.)", r"\1", text[1:-1].replace(quote * 2, quote), flags=re.DOTALL)
    return text


def _bind(statement: str, args: Sequence[notice_pb2.Any]) -> str:
    """Return a statement with its arguments in place of the ? outside of quotes."""
    if not args:
        return statement
    waiting = list(args)
    parts = re.split(r"('(?:[^'\\]|''|\\.)*'|`[^`]*`|\"(?:[^\"\\]|\\.)*\"|\?)", statement, flags=re.DOTALL)
    for position, part in enumerate(parts):
        if part == "?" and waiting:
            parts[position] = _literal(waiting.pop(0).scalar)
    if waiting:
        raise XError(5015, "Too many arguments")
    return "".join(parts)


def _literal(scalar: notice_pb2.Scalar) -> str:
    if scalar.type == notice_pb2.SCALAR_TYPE_V_SINT:
        return str(scalar.v_signed_int)
    if scalar.type == notice_pb2.SCALAR_TYPE_V_UINT:
        return str(scalar.v_unsigned_int & 2**64 - 1)
    if scalar.type not in (notice_pb2.SCALAR_TYPE_V_STRING, notice_pb2.SCALAR_TYPE_V_OCTETS):
        raise not_supported("arguments of this type")
    content = scalar.v_string.value or scalar.v_octets.value
    text = text_of(content).replace("\\", "\\\\").replace("'", "''")
    return f"'{text}'"
