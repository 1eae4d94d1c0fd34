/**
 * Gets ids from an idalloc server: one by one from memory, in ranges, and in streams.
 *
 * <pre>{@code
 * try (IdallocClient client = IdallocClient.builder("127.0.0.1:50051").build()) {
 *   IdPool ids = client.pool("orders");
 *   long id = ids.next();
 * }
 * }</pre>
 *
 * <p>Platform and virtual threads may share a client, a pool and an {@link
 * io.idalloc.client.AllocateStream}. Each failure is an {@link
 * io.idalloc.client.IdallocException}. A retry, by the client or by the caller, never returns an id
 * twice: at worst it leaves a gap. The package does not log; see {@link
 * io.idalloc.client.IdallocClient.Builder#observer} for metrics.
 */
package io.idalloc.client;
