"""The scripts of the updates, in painless: constants, since each distinct source is compiled.

They follow from what a live OpenSearch 3.8.0 and 2.19.1 did:

* The cluster may apply an update twice, and answer 409 for an applied one. So an increment is
  relative, and an absolute value is guarded by a revision or a generation in the row.
* A number in ``_source`` or ``params`` that fits in 32 bits is an Integer, whose arithmetic wraps.
  ``long v = …`` widens it, and refuses texts, doubles and null. ``Math.max`` of longs is a double;
  ``Long.max`` is exact. Longs overflow silently.
* Only a write is confirmed by the other copies, so no script makes a noop. A result is written into
  ``granted``.
"""

# ruff: noqa: E501

# The number of idalloc's writes of this row. `_seq_no` counts the writes of all rows.
_COUNT_WRITE = """
s.writes = (s.writes == null ? 0L : (long)s.writes) + 1L;"""

# The answer to the write repeats this. It is absent where the index has no field for it.
_NONCE = """
if (params.nonce != null) { ctx._source.nonce = params.nonce; }"""

# The first lattice point at or past `v`, or the end of BIGINT if that comes first; `p` is params.
_ALIGN = """    long v = p.at_least; long size = p.size; long off = p.offset;
    if (up ? last > v : last < v) { v = last; }
    if (up) { long way = (off - v % size) % size; if (v > 9223372036854775806L - way) { v = 9223372036854775806L - way; } v += way; }
    else { long way = (off + v % size) % size; if (v < -9223372036854775807L + way) { v = -9223372036854775807L + way; } v -= way; }
"""

# Params: wanted (at most 2^63-2; 0 renews), lease_ms, the floor (generation, least, most), and
# demand, which may be absent. A distance over 2^63 is right as an unsigned number.
GRANT = (
    """def s = ctx._source; def p = params; long g = 0L;
if (s.last_value != null) {
  long last = s.last_value; long gen = s.generation == null ? 1L : (long)s.generation;
  if ((s.mode == null || s.mode == 'period') && gen >= (long)p.generation && last >= (long)p.least && last <= (long)p.most) {
    long step = s.step == null ? 1L : (long)s.step; long left = 0L;
    if (step > 0L) {
      long max = s.max_value == null ? 9223372036854775806L : (long)s.max_value;
      if (max > 9223372036854775806L) { max = 9223372036854775806L; }
      if (max > last) { left = Long.divideUnsigned(max - last, step); }
    } else if (step < 0L) {
      long min = s.min_value == null ? 1L : (long)s.min_value;
      if (last > min) { left = Long.divideUnsigned(last - min, -step); }
    }
    long w = p.wanted;
    if (Long.compareUnsigned(w, left) <= 0) { g = w; s.last_value = last + step * w; }
  }
}
s.granted = g; long lease = p.lease_ms;
if (s.lease_ms == null || (long)s.lease_ms < lease) { s.lease_ms = lease; }
if (p.demand != null) { s.demand = p.demand; }"""
    + _COUNT_WRITE
    + _NONCE
)
# Params: as GRANT without demand, and now and ahead in the unit of the kind. No text in the
# settings matches, its quotes are escaped.
STAMPS = (
    """def s = ctx._source; def p = params; long g = 0L;
if (s.last_value != null && s.mode == 'timestamp') {
  long last = s.last_value; long gen = s.generation == null ? 1L : (long)s.generation;
  if (gen >= (long)p.generation && last >= (long)p.least && last <= (long)p.most) {
    long clock = System.currentTimeMillis(); if (s.settings.contains('"kind": 3')) { clock *= 1000L; }
    long now = p.now; long ahead = p.ahead; if (now > clock + ahead) { now = clock; }
    long base = Long.max(last, now - 1L);
    long top = s.max_value == null ? 9223372036854775806L : (long)s.max_value;
    if (top > now + ahead) { top = now + ahead; }
    if (top > base) { g = Long.min(p.wanted, top - base); if (g > 0L) { s.last_value = base + g; } }
  }
}
s.granted = g; long lease = p.lease_ms;
if (s.lease_ms == null || (long)s.lease_ms < lease) { s.lease_ms = lease; }"""
    + _COUNT_WRITE
    + _NONCE
)
# Params: count, generation. The request has if_seq_no and if_primary_term.
BACK = (
    """def s = ctx._source; long gen = s.generation == null ? 1L : (long)s.generation;
if (gen == (long)params.generation) { long last = s.last_value; long step = s.step == null ? 1L : (long)s.step; long c = params.count; s.last_value = last - step * c; }
s.granted = 0L;"""
    + _COUNT_WRITE
    + _NONCE
)
# A write that changes nothing; its answer has the row, confirmed.
TOUCH = """ctx._source.granted = 0L;""" + _NONCE
# Params: rev, limit, at_least, size and offset of the lattice, grows, generation, row. Without a
# match it still writes: a repetition must not find its own unconfirmed change.
REVISE = (
    """def s = ctx._source; def p = params; long rev = s.rev == null ? 0L : (long)s.rev;
if (rev == (long)p.rev && s.last_value != null) {
  long last = s.last_value; boolean up = (long)p.row.step > 0L;
  if (up ? last <= (long)p.limit : last >= (long)p.limit) {
"""
    + _ALIGN
    + """    long gen = s.generation == null ? 1L : (long)s.generation; gen += (long)p.grows; if (gen < (long)p.generation) { gen = (long)p.generation; }
    s.putAll(p.row); if (p.row.mode == null) { s.remove('mode'); }
    s.last_value = v; s.generation = gen; s.rev = rev + 1L;"""
    + _COUNT_WRITE
    + """
  }
}
s.granted = 0L;"""
    + _NONCE
)
# Params: row, at_least, generation, size and offset of the lattice.
PERIOD = (
    """def s = ctx._source; def p = params;
if (ctx.op == 'create') { s.putAll(p.row); s.generation = (long)p.generation; s.last_value = (long)p.at_least; }
else {
  long gen = s.generation == null ? 1L : (long)s.generation;
  if (gen < (long)p.generation) {
    long last = s.last_value; boolean up = (long)p.row.step > 0L;
"""
    + _ALIGN
    + """    s.putAll(p.row); s.last_value = v; s.generation = (long)p.generation;"""
    + _COUNT_WRITE
    + """
  }
}
s.granted = 0L;"""
    + _NONCE
)
# Params: prefix, at_least, holder, stale_ms.
CLAIM = (
    """def s = ctx._source; def p = params; long now = System.currentTimeMillis(); long least = p.at_least;
if (s.last_start != null && (long)s.last_start >= least) { least = (long)s.last_start + 1L; }
s.prefix = p.prefix; s.last_start = least;
if (s.holder == null || s.holder == p.holder || s.seen_at == null || (long)s.seen_at + (long)p.stale_ms <= now) { s.holder = p.holder; s.seen_at = now; }"""
    + _NONCE
)
# Params: holder, stale_ms.
KEEP = (
    """def s = ctx._source; def p = params; long now = System.currentTimeMillis();
if (s.holder == null || s.holder == p.holder || s.seen_at == null || (long)s.seen_at + (long)p.stale_ms <= now) { s.holder = p.holder; s.seen_at = now; }"""
    + _NONCE
)
# Params: holder.
RELEASE = """if (ctx._source.holder == params.holder) { ctx._source.remove('holder'); }""" + _NONCE
# Params: prefix, to.
RAISE = (
    """def s = ctx._source; long to = params.to; s.prefix = params.prefix;
if (s.last_start == null || (long)s.last_start < to) { s.last_start = to; }"""
    + _NONCE
)
# Params: row. Made, or the earlier one written again.
RECORD = (
    """def s = ctx._source;
if (ctx.op == 'create') { s.putAll(params.row); s.written_at = System.currentTimeMillis(); }
else { s.again = s.again == null ? 1L : (long)s.again + 1L; }"""
    + _NONCE
)
# Params: row, seen (the token that it replaces). Made, replaced, or the present one written again.
MARK = (
    """def s = ctx._source; def p = params;
if (ctx.op == 'create' || s.token == p.seen) { s.putAll(p.row); }"""
    + _NONCE
)
