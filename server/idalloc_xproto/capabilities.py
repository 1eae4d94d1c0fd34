"""Capabilities of a connection: what a client asks for, and may set, before its login."""

from functools import cache

from idalloc.xprotocol.v1 import connection_pb2, notice_pb2
from idalloc_xproto.mysql_errors import XError

# MySQL's limit of the names of connection attributes, in bytes.
MAX_ATTRIBUTE_NAME = 32

_READ_ONLY = ("authentication.mechanisms", "doc.formats", "node_type")


class Capabilities:
    """The capabilities of one connection."""

    def __init__(self, *, has_tls: bool) -> None:
        self.is_secure = False  # whether TLS is on, or is about to start
        self._has_tls = has_tls  # whether the server has a certificate
        self._flags = {"client.interactive": False, "client.pwd_expire_ok": False}

    def message(self) -> connection_pb2.Capabilities:
        """Return all capabilities, in MySQL's order; connections share the object."""
        return _message(self._has_tls, self.is_secure, *self._flags.values())

    def set(self, message: connection_pb2.CapabilitiesSet) -> bool:
        """Set all capabilities of a message, or none, and return whether TLS must start.

        Raises:
            XError: A capability is unknown, or cannot have the value.
        """
        flags = dict(self._flags)
        starts_tls = False
        for capability in message.capabilities.capabilities:
            name = capability.name
            value = capability.value
            if name == "tls":
                if not self._has_tls or self.is_secure or starts_tls or not _is_true(value):
                    raise _not_prepared(name)
                starts_tls = True
            elif name == "session_connect_attrs":
                _check_attributes(value)
            elif name in flags:
                if value.scalar.type != notice_pb2.SCALAR_TYPE_V_BOOL:
                    raise _not_prepared(name)
                flags[name] = value.scalar.v_bool
            elif name in _READ_ONLY:
                raise XError(5001, f"CapabilitiesSet not supported for the {name} capability")
            else:
                raise XError(5002, f"Capability '{name}' doesn't exist")
        self._flags = flags
        self.is_secure = self.is_secure or starts_tls
        return starts_tls


# Made once for each combination, so that clients that ask again and again cost little.
@cache
def _message(has_tls: bool, is_secure: bool, interactive: bool, expire_ok: bool) -> connection_pb2.Capabilities:
    # MySQL's client for Node gives up without MYSQL41 in this list, even where it cannot work.
    mechanisms = ["MYSQL41", "SHA256_MEMORY", *(["PLAIN"] if is_secure else [])]
    array = notice_pb2.AnyArray(value=[_text(name) for name in mechanisms])
    values = {
        "authentication.mechanisms": notice_pb2.Any(type=notice_pb2.ANY_TYPE_ARRAY, array=array),
        "doc.formats": _text("text"),
        "client.interactive": _bool(interactive),
        "node_type": _text("mysql"),
        "client.pwd_expire_ok": _bool(expire_ok),
    }
    if has_tls:
        values = {"tls": _bool(is_secure), **values}
    return connection_pb2.Capabilities(
        capabilities=[connection_pb2.Capability(name=name, value=value) for name, value in values.items()]
    )


def _check_attributes(value: notice_pb2.Any) -> None:
    if value.type != notice_pb2.ANY_TYPE_OBJECT:
        raise _not_prepared("session_connect_attrs")
    for field in value.obj.fld:
        if not field.key:
            raise XError(5006, "Empty key name given")
        if len(field.key.encode()) > MAX_ATTRIBUTE_NAME:
            start = field.key[:MAX_ATTRIBUTE_NAME]
            limit = f"currently limited to {MAX_ATTRIBUTE_NAME}"
            raise XError(5005, f"Key name beginning with '{start}'... is too long, {limit}")
        if field.value.scalar.type != notice_pb2.SCALAR_TYPE_V_STRING:
            raise XError(5008, "Key and values support only string values")


def _not_prepared(name: str) -> XError:
    return XError(5001, f"Capability prepare failed for '{name}'")


def _is_true(value: notice_pb2.Any) -> bool:
    scalar = value.scalar
    if scalar.type == notice_pb2.SCALAR_TYPE_V_BOOL:
        return scalar.v_bool
    numbers = {notice_pb2.SCALAR_TYPE_V_SINT: scalar.v_signed_int, notice_pb2.SCALAR_TYPE_V_UINT: scalar.v_unsigned_int}
    return numbers.get(scalar.type, 0) != 0


def _text(value: str) -> notice_pb2.Any:
    scalar = notice_pb2.Scalar(type=notice_pb2.SCALAR_TYPE_V_STRING, v_string=notice_pb2.Text(value=value.encode()))
    return notice_pb2.Any(type=notice_pb2.ANY_TYPE_SCALAR, scalar=scalar)


def _bool(value: bool) -> notice_pb2.Any:
    scalar = notice_pb2.Scalar(type=notice_pb2.SCALAR_TYPE_V_BOOL, v_bool=value)
    return notice_pb2.Any(type=notice_pb2.ANY_TYPE_SCALAR, scalar=scalar)
