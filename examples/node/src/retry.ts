// Retries for as long as a restart of all servers takes: the client itself retries within its deadline.

import { setTimeout as sleep } from 'node:timers/promises';
import { IdallocError } from '@idalloc/client';

/** How long to go on without progress. */
const GIVE_UP_MS = 60_000;
const INITIAL_BACKOFF_MS = 100;
const MAX_BACKOFF_MS = 2000;
const RETRYABLE = new Set(['SERVER_UNREACHABLE', 'DEADLINE_EXCEEDED', 'STORE_UNAVAILABLE', 'SERVER_DRAINING']);

// At first, the address may be wrong.
let hasAnswered = false;

/** Calls until it succeeds. Throws the error if a retry cannot help, or after a minute without progress. */
export async function retry<T>(call: () => Promise<T>): Promise<T> {
  const started = performance.now();
  for (let failures = 0; ; failures++) {
    try {
      const result = await call();
      hasAnswered = true;
      return result;
    } catch (error) {
      if (!(error instanceof IdallocError) || !hasAnswered || !RETRYABLE.has(error.reason)) throw error;
      const backoff = Math.min(MAX_BACKOFF_MS, INITIAL_BACKOFF_MS * 2 ** failures);
      // Jitter, so that clients of one server do not retry at the same moment.
      const delay = (error.retryDelayMs ?? backoff) * (1 + 0.2 * Math.random());
      if (performance.now() + delay - started > GIVE_UP_MS) throw error;
      await sleep(delay);
    }
  }
}
