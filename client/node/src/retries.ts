// When a broken stream is opened again.

import { setTimeout as sleep } from 'node:timers/promises';
import { status } from '@grpc/grpc-js';
import { IdallocError } from './errors.js';

// How many attempts without progress end in their error: together they take more than half a minute, in which a server
// restarts.
const MAX_ATTEMPTS = 12;
// The same before the first message, when there may be no server: they take 3 to 5 seconds.
const MAX_FIRST_ATTEMPTS = 6;
const INITIAL_BACKOFF_MS = 100;
const MAX_BACKOFF_MS = 5000;
// A quota may take hours: then the caller must know.
const MAX_RETRY_DELAY_MS = 30_000;

/** @internal */
export class Retries {
  #failures = 0;
  #hasStarted = false;

  /** @param deadline - when the attempts end, in milliseconds since 1970 */
  constructor(private readonly deadline = Infinity) {}

  /** Records that a message arrived. */
  progressed(): void {
    this.#failures = 0;
    this.#hasStarted = true;
  }

  /** Returns how long to wait before the next attempt. Throws the error if a retry cannot help or come in time. */
  delayMs(error: unknown): number {
    if (!(error instanceof IdallocError)) throw error;
    const { code, retryDelayMs = 0 } = error.details;
    // A server that shuts down answers CANCELLED to streams of which it has sent nothing.
    const isCancelled = code === status.CANCELLED && (!this.#hasStarted || this.#failures > 0);
    const isRetryable = isCancelled || code === status.UNAVAILABLE || error.reason === 'QUOTA_EXCEEDED';
    this.#failures++;
    // Without an ErrorInfo the reason is the name of the code: nobody answered.
    const noAnswer = code !== undefined && error.reason === status[code];
    const attempts = noAnswer && !this.#hasStarted ? MAX_FIRST_ATTEMPTS : MAX_ATTEMPTS;
    if (!isRetryable || this.#failures >= attempts || retryDelayMs > MAX_RETRY_DELAY_MS) throw error;
    const backoff = Math.min(MAX_BACKOFF_MS, INITIAL_BACKOFF_MS * 2 ** (this.#failures - 1));
    // Jitter, so that the streams of one server do not retry at the same moment.
    const delay = Math.max(backoff, retryDelayMs) * (1 + 0.5 * Math.random());
    if (Date.now() + delay >= this.deadline) throw error;
    return delay;
  }

  /** Waits before the next attempt. */
  async wait(error: unknown, signal: AbortSignal | undefined): Promise<void> {
    const delay = this.delayMs(error);
    try {
      await sleep(delay, undefined, signal === undefined ? {} : { signal });
    } catch {
      throw signal?.reason;
    }
  }
}
