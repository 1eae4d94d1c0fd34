package io.idalloc.examples.pool;

import java.time.Duration;

/**
 * The ids {@code firstId}, {@code firstId + step}, … {@code lastId}, as the server allocated them.
 *
 * @param ttl how long a pool may keep them, counted from before the request was sent
 * @param period the period after which the sequence repeats its ids; empty if it never does
 */
public record AllocatedRange(
    long firstId, long lastId, long step, long idCount, Duration ttl, String period) {}
