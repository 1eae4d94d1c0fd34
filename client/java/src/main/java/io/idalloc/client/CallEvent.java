package io.idalloc.client;

import java.time.Duration;
import java.util.Optional;

/**
 * A finished call, or ids that a pool dropped; see {@link IdallocClient.Builder#observer}.
 *
 * @param method the RPC, such as {@code "AllocateRange"}; {@code "Pool"} for dropped ids
 * @param sequence the sequence; empty for document ids and batches
 * @param ids how many ids arrived
 * @param dropped how many ids a pool dropped: they expired, it was closed, or another server had
 *     answered before
 * @param duration how long the call took, with its retries
 * @param error the error, if the call failed
 */
public record CallEvent(
    String method,
    String sequence,
    long ids,
    long dropped,
    Duration duration,
    Optional<IdallocException> error) {}
