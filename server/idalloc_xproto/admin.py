"""Commands of the namespace `mysqlx`: collections, notices and ping."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from idalloc.xprotocol.v1 import notice_pb2, statement_pb2
from idalloc_xproto import frames
from idalloc_xproto.caller import Caller
from idalloc_xproto.documents.like import like_pattern
from idalloc_xproto.documents.protocol import Documents
from idalloc_xproto.mysql_errors import XError, no_schema, not_supported, text_of, unknown_schema
from idalloc_xproto.names import check_names
from idalloc_xproto.operations import CREATE_COLLECTION, DROP_COLLECTION, LIST

# MySQL's commands that idalloc does not serve.
_NOT_SERVED = frozenset(
    {"create_collection_index", "drop_collection_index", "modify_collection_options", "get_collection_options",
     "list_clients", "kill_client", "list_notices"}
)  # fmt: skip
_FIELDS: Mapping[str, tuple[str, ...]] = {
    "ping": (),
    "create_collection": ("schema", "name", "options"),
    "ensure_collection": ("schema", "name", "options"),
    "drop_collection": ("schema", "name"),
    "list_objects": ("schema", "pattern"),
    "enable_notices": ("notice",),
    "disable_notices": ("notice",),
}
_TEXTS = (notice_pb2.SCALAR_TYPE_V_STRING, notice_pb2.SCALAR_TYPE_V_OCTETS)


@dataclass(frozen=True)
class Admin:
    """Runs the commands on a store of documents."""

    documents: Documents

    async def execute(self, command: str, args: Sequence[notice_pb2.Any], caller: Caller) -> list[bytes]:
        """Run a command and return the frames of its reply.

        Raises:
            XError: The command is unknown, or failed.
        """
        if command not in _FIELDS:
            raise (
                not_supported(command) if command in _NOT_SERVED else XError(5157, f"Invalid xplugin command {command}")
            )
        values = _fields(command, args)
        match command:
            case "create_collection" | "ensure_collection":
                await self._create(command, values, caller)
            case "drop_collection":
                await self._drop(values, caller)
            case "list_objects":
                return [*await self._list(values, caller), frames.DONE_EXECUTING]
            case "enable_notices" | "disable_notices":
                array = values["notice"]
                for each in array.array.value if array.type == notice_pb2.ANY_TYPE_ARRAY else [array]:
                    name = _text({"notice": each}, "notice")
                    if name != "warnings":
                        text = "Cannot disable notice" if command == "disable_notices" else "Invalid notice name"
                        raise XError(5163, f"{text} {name}")
        return [frames.DONE_EXECUTING]

    async def _create(self, command: str, values: Mapping[str, notice_pb2.Any], caller: Caller) -> None:
        schema = _text(values, "schema")
        name = _text(values, "name")
        if not schema:
            raise XError(5112, "Invalid schema")
        if not name:
            raise XError(5113, "Invalid collection name")
        check_names(schema, name)
        reuses = _check_options(values.get("options")) or command == "ensure_collection"
        with caller.rights.audited(CREATE_COLLECTION, schema, name) as record:
            if schema not in await self.documents.list_schemas():
                raise unknown_schema(schema)
            is_new = await self.documents.create_collection(schema, name)
            record["changed"] = int(is_new)
            if not is_new and not reuses:
                raise XError(1050, f"Table '{name}' already exists", "42S01")

    async def _drop(self, values: Mapping[str, notice_pb2.Any], caller: Caller) -> None:
        schema = _text(values, "schema")
        name = _text(values, "name")
        if not name:
            raise XError(5113, "Invalid collection name")
        check_names(schema, name)
        with caller.rights.audited(DROP_COLLECTION, schema, name) as record:
            if not await self.documents.drop_collection(schema, name):
                raise XError(1051, f"Unknown table '{schema}.{name}'", "42S02")
            record["changed"] = 1

    async def _list(self, values: Mapping[str, notice_pb2.Any], caller: Caller) -> list[bytes]:
        schema = _text(values, "schema") if "schema" in values else caller.schema
        if not schema:
            raise no_schema()
        check_names(schema)
        if not caller.rights.visible([schema]):
            caller.rights.require(LIST, schema)
        if schema not in await self.documents.list_schemas():
            raise unknown_schema(schema)
        matches = like_pattern(_text(values, "pattern")) if "pattern" in values else None
        names = caller.rights.visible(await self.documents.list_collections(schema), schema)
        kinds = statement_pb2.COLUMN_TYPE_BYTES
        return [
            frames.column(kinds, "name", original=("name", "", "", ""), collation=frames.BINARY, length=192),
            frames.column(kinds, "type", collation=frames.UTF8MB4, length=60, flags=frames.NOT_NULL),
            *(
                frames.row([frames.text_field(name), frames.text_field("COLLECTION")])
                for name in names
                if matches is None or matches(name)
            ),
            frames.DONE_FETCHING,
        ]


def _fields(command: str, args: Sequence[notice_pb2.Any]) -> dict[str, notice_pb2.Any]:
    allowed = _FIELDS[command]
    if not args:
        values: dict[str, notice_pb2.Any] = {}
    elif len(args) > 1 or args[0].type != notice_pb2.ANY_TYPE_OBJECT:
        raise XError(5016, f"Invalid type of arguments for {command}, expected one object")
    else:
        values = {field.key: field.value for field in args[0].obj.fld}
    for key in values:
        if key not in allowed:
            raise XError(5021, f"'{key}' is not a valid field for {command} command")
    if command != "list_objects":
        for key in allowed:
            if key not in values and key != "options":
                raise XError(5015, f"Invalid number of arguments, expected value for '{key}'")
    return values


def _text(values: Mapping[str, notice_pb2.Any], key: str) -> str:
    value = values[key]
    if value.type != notice_pb2.ANY_TYPE_SCALAR or value.scalar.type not in _TEXTS:
        raise XError(5017, f"Invalid type of value for argument '{key}', expected text")
    scalar = value.scalar
    content = scalar.v_string.value if scalar.type == notice_pb2.SCALAR_TYPE_V_STRING else scalar.v_octets.value
    return text_of(content)


def _check_options(options: notice_pb2.Any | None) -> bool:
    """Return whether the options of a new collection accept an existing one."""
    reuses = False
    for field in options.obj.fld if options is not None else ():
        if field.key == "reuse_existing":
            reuses = field.value.scalar.v_bool
        elif field.key == "validation":
            levels = [each.value.scalar.v_string.value for each in field.value.obj.fld if each.key == "level"]
            if levels not in ([b"off"], [b"OFF"]):
                raise not_supported("validation")
        else:
            raise XError(5021, f"'{field.key}' is not a valid field for create_collection command")
    return reuses
