"""The scripts of idalloc in Python, with the 64-bit arithmetic and the type errors of painless.

A script is known by the SHA-256 of its source. A changed script needs a changed function here, and
then its new hash.
"""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from tests.support.opensearch.refusals import UnknownRequest, failed_script

_MAX_ID = 2**63 - 2
_TYPES = {bool: "java.lang.Boolean", float: "double", str: "java.lang.String", int: "java.math.BigInteger"}


@dataclass
class Context:
    """What a script sees: ``ctx``, and the clock."""

    source: dict[str, Any]  # the document; the script changes it
    op: str  # ``index``, or ``create`` for a missing document; a script sets ``none`` or ``delete``
    now_ms: int  # ``System.currentTimeMillis()``


Script = Callable[[Context, dict[str, Any]], None]


def long(value: object) -> int:
    """Convert as ``long x = value``.

    Raises:
        Refusal: The value is no integer of 64 bits.
    """
    return _long(value, "implicitly")


def cast(value: object) -> int:
    """Convert as ``(long)value``, which cuts off fractions.

    Raises:
        Refusal: The value is no number of 64 bits.
    """
    return _long(int(value) if isinstance(value, float) else value, "explicitly")


def _long(value: object, how: str) -> int:
    if value is None:
        raise failed_script("null_pointer_exception", None)
    if type(value) is not int or not -(2**63) <= value < 2**63:
        name = _TYPES.get(type(value), type(value).__name__)
        raise failed_script("class_cast_exception", f"cannot {how} cast def [{name}] to long")
    return value


def wrapped(value: int) -> int:
    """Return the 64 bits that Java keeps of a result."""
    return (value + 2**63) % 2**64 - 2**63


def _remainder(value: int, size: int) -> int:
    """Return Java's ``value % size``, which has the sign of ``value``."""
    return value % size if value >= 0 else -(-value % size)


def _or(value: object, default: int) -> int:
    return default if value is None else cast(value)


def _can_grant(s: dict[str, Any], p: dict[str, Any], last: int) -> bool:
    generation = _or(s.get("generation"), 1)
    return generation >= cast(p["generation"]) and cast(p["least"]) <= last <= cast(p["most"])


def _keep_lease(s: dict[str, Any], p: dict[str, Any]) -> None:
    lease = long(p["lease_ms"])
    if s.get("lease_ms") is None or cast(s["lease_ms"]) < lease:
        s["lease_ms"] = lease


def grant(ctx: Context, p: dict[str, Any]) -> None:
    s, granted = ctx.source, 0
    if s.get("last_value") is not None:
        last = long(s["last_value"])
        if s.get("mode") in (None, "period") and _can_grant(s, p, last):
            step, left = _or(s.get("step"), 1), 0
            if step > 0:
                left = max(0, min(_or(s.get("max_value"), _MAX_ID), _MAX_ID) - last) // step
            elif step < 0:
                left = max(0, last - _or(s.get("min_value"), 1)) // -step
            wanted = long(p["wanted"])
            if wanted % 2**64 <= left:
                granted = wanted
                s["last_value"] = wrapped(last + step * wanted)
    s["granted"] = granted
    _keep_lease(s, p)


def grant_with_demand(ctx: Context, p: dict[str, Any]) -> None:
    grant(ctx, p)
    if p.get("demand") is not None:
        ctx.source["demand"] = p["demand"]


def stamps(ctx: Context, p: dict[str, Any]) -> None:
    s, granted = ctx.source, 0
    if s.get("last_value") is not None and s.get("mode") == "timestamp":
        last = long(s["last_value"])
        if _can_grant(s, p, last):
            clock = ctx.now_ms * (1000 if '"kind": 3' in s["settings"] else 1)
            now, ahead = long(p["now"]), long(p["ahead"])
            if now > clock + ahead:
                now = clock
            base = max(last, now - 1)
            top = min(_or(s.get("max_value"), _MAX_ID), now + ahead)
            if top > base:
                granted = min(long(p["wanted"]), top - base)
                if granted > 0:
                    s["last_value"] = base + granted
    s["granted"] = granted
    _keep_lease(s, p)


def back(ctx: Context, p: dict[str, Any]) -> None:
    s = ctx.source
    if _or(s.get("generation"), 1) == cast(p["generation"]):
        last = long(s.get("last_value"))
        s["last_value"] = wrapped(last - _or(s.get("step"), 1) * long(p["count"]))
    s["granted"] = 0


def touch(ctx: Context, p: dict[str, Any]) -> None:
    ctx.source["granted"] = 0


def _reached(s: dict[str, Any], p: dict[str, Any]) -> int:
    """Return the first lattice value at or past ``at_least`` and the counter."""
    last, up = long(s.get("last_value")), cast(p["row"]["step"]) > 0
    value, size, offset = long(p["at_least"]), long(p["size"]), long(p["offset"])
    if last > value if up else last < value:
        value = last
    if up:
        way = (offset - _remainder(value, size)) % size
        return min(value, _MAX_ID - way) + way
    way = (offset + _remainder(value, size)) % size
    return max(value, -(2**63) + 1 + way) - way


def revise(ctx: Context, p: dict[str, Any]) -> None:
    s, revision = ctx.source, _or(ctx.source.get("rev"), 0)
    if revision == cast(p["rev"]) and s.get("last_value") is not None:
        last, up, limit = long(s["last_value"]), cast(p["row"]["step"]) > 0, cast(p["limit"])
        if last <= limit if up else last >= limit:
            value = _reached(s, p)
            generation = max(_or(s.get("generation"), 1) + cast(p["grows"]), cast(p["generation"]))
            s.update(p["row"])
            if p["row"].get("mode") is None:
                s.pop("mode", None)
            s |= {"last_value": value, "generation": generation, "rev": revision + 1}
    s["granted"] = 0


def period(ctx: Context, p: dict[str, Any]) -> None:
    s, generation = ctx.source, cast(p["generation"])
    if ctx.op == "create":
        s.update(p["row"], generation=generation, last_value=cast(p["at_least"]))
    elif _or(s.get("generation"), 1) < generation:
        value = _reached(s, p)
        s.update(p["row"], last_value=value, generation=generation)
    s["granted"] = 0


def keep(ctx: Context, p: dict[str, Any]) -> None:
    s = ctx.source
    is_free = s.get("holder") is None or s["holder"] == p["holder"] or s.get("seen_at") is None
    if is_free or cast(s["seen_at"]) + cast(p["stale_ms"]) <= ctx.now_ms:
        s |= {"holder": p["holder"], "seen_at": ctx.now_ms}


def claim(ctx: Context, p: dict[str, Any]) -> None:
    s, least = ctx.source, long(p["at_least"])
    if s.get("last_start") is not None and cast(s["last_start"]) >= least:
        least = wrapped(cast(s["last_start"]) + 1)
    s |= {"prefix": p["prefix"], "last_start": least}
    keep(ctx, p)


def release(ctx: Context, p: dict[str, Any]) -> None:
    if ctx.source.get("holder") == p["holder"]:
        ctx.source.pop("holder", None)


def raise_start(ctx: Context, p: dict[str, Any]) -> None:
    s, to = ctx.source, long(p["to"])
    s["prefix"] = p["prefix"]
    if s.get("last_start") is None or cast(s["last_start"]) < to:
        s["last_start"] = to


def record(ctx: Context, p: dict[str, Any]) -> None:
    s = ctx.source
    if ctx.op == "create":
        s.update(p["row"], written_at=ctx.now_ms)
    else:
        s["again"] = _or(s.get("again"), 0) + 1


def mark(ctx: Context, p: dict[str, Any]) -> None:
    if ctx.op == "create" or ctx.source.get("token") == p["seen"]:
        ctx.source.update(p["row"])


def recipe(ctx: Context, p: dict[str, Any]) -> None:
    """Add as ``+=`` does: a number that fits 32 bits is an Integer, and so is the sum of two of
    them.
    """
    value, count = long(ctx.source["last_value"]), long(p["n"])
    bits = 31 if all(-(2**31) <= each < 2**31 for each in (value, count)) else 63
    ctx.source["last_value"] = (value + count + 2**bits) % 2 ** (bits + 1) - 2**bits


def counted(script: Script) -> Script:
    """Return a script that counts the writes of its row besides."""

    def run(ctx: Context, p: dict[str, Any]) -> None:
        script(ctx, p)
        _count_write(ctx.source)

    return run


def counted_change(script: Script, field: str) -> Script:
    """Return a script that counts its changes of an existing row besides; each of them changes
    this field.
    """

    def run(ctx: Context, p: dict[str, Any]) -> None:
        before = ctx.source.get(field)
        script(ctx, p)
        if ctx.op != "create" and ctx.source.get(field) != before:
            _count_write(ctx.source)

    return run


def tied(script: Script) -> Script:
    """Return a script that writes the nonce of its request besides, if it has one."""

    def run(ctx: Context, p: dict[str, Any]) -> None:
        script(ctx, p)
        if p.get("nonce") is not None:
            ctx.source["nonce"] = p["nonce"]

    return run


def _count_write(s: dict[str, Any]) -> None:
    s["writes"] = wrapped(_or(s.get("writes"), 0) + 1)


def digest(source: str) -> str:
    """Return how ``KNOWN`` names a script."""
    return hashlib.sha256(source.encode()).hexdigest()[:16]


KNOWN: dict[str, tuple[str, Script]] = {
    # As recorded.
    "1f8a1fed59793fa6": ("GRANT", grant),
    "c67aeb1d48129fda": ("STAMPS", stamps),
    "b2865d77eeb15196": ("BACK", back),
    "7f7e5105c391076f": ("TOUCH", touch),
    "248a8fbf8403a82d": ("REVISE", revise),
    "1d180b8f9d4b8325": ("PERIOD", period),
    "d2177f5a796b7697": ("CLAIM", claim),
    "6a30f20d930f9b4c": ("KEEP", keep),
    "2dfde27bbaea2894": ("RELEASE", release),
    "f4a4d1d24f1d08d5": ("RAISE", raise_start),
    "ea337d6e17d280a8": ("RECORD", record),
    "78a09695fffdae8d": ("RECIPE", recipe),
    # As idalloc before the nonce sends them: they count the writes of a row besides.
    "dd5584015d6a3c54": ("GRANT", counted(grant)),
    "70858f0d908ca822": ("STAMPS", counted(stamps)),
    "6e0b8d75e7a79839": ("BACK", counted(back)),
    "14470585c074ec60": ("REVISE", counted_change(revise, "rev")),
    "16e0dc80e7c7bf95": ("PERIOD", counted_change(period, "generation")),
    # As idalloc before the demand sends it.
    "04d9fba4ae9e1e45": ("GRANT", tied(counted(grant))),
    # As idalloc sends them.
    "5e6b12b11853b255": ("GRANT", tied(counted(grant_with_demand))),
    "cd56f9068f159d96": ("STAMPS", tied(counted(stamps))),
    "ce957cb35bb3b379": ("BACK", tied(counted(back))),
    "586310ebd28e01a2": ("TOUCH", tied(touch)),
    "18a17d8084a3f8d0": ("REVISE", tied(counted_change(revise, "rev"))),
    "7cd635145e592f60": ("PERIOD", tied(counted_change(period, "generation"))),
    "0b28d2bfbd2fc4df": ("CLAIM", tied(claim)),
    "8584c21a4949aabf": ("KEEP", tied(keep)),
    "70fa09f00823e878": ("RELEASE", tied(release)),
    "e049b675d846b09c": ("RAISE", tied(raise_start)),
    "183ba2e4bff97edb": ("RECORD", tied(record)),
    "002ec0ddca5e61c3": ("MARK", tied(mark)),
}


def known(source: str) -> tuple[str, Script]:
    """Return the name and the function of a script.

    Raises:
        UnknownRequest: There is none.
    """
    if (found := KNOWN.get(digest(source))) is None:
        raise UnknownRequest(f"a script with the hash {digest(source)}: {source}")
    return found
