// When another attempt is made, and on which server.

import { status } from '@grpc/grpc-js';
import { IdallocError, late } from './errors.js';
import type { Server, Servers } from './servers.js';

const INITIAL_BACKOFF_MS = 100;
const MAX_BACKOFF_MS = 2000;
/** @internal How long a stream may make no progress. A restart of a server takes less. */
export const MAX_STALL_MS = 60_000;

/** @internal When retries end. The caller must know of a delay above `maxDelayMs`. */
const UNARY = { rounds: 5, maxDelayMs: 5000, maxQuotaDelayMs: 0, maxStallMs: Infinity, maxFirstStallMs: Infinity };
/** @internal The pool repeats its refill. */
export const REFILL = { ...UNARY, rounds: 1 };
/** @internal While no server has ever answered, there may be none at the address. */
export const STREAM = {
  rounds: Infinity,
  maxDelayMs: MAX_STALL_MS,
  maxQuotaDelayMs: 30_000,
  maxStallMs: MAX_STALL_MS,
  maxFirstStallMs: 4000,
};

/** @internal The wait after so many failures. Clients must not return at the same moment. */
export function backoffMs(failures: number, leastMs = 0): number {
  const backoff = Math.min(MAX_BACKOFF_MS, INITIAL_BACKOFF_MS * 2 ** Math.max(0, failures - 1));
  return Math.max(backoff, leastMs) * (1 + 0.2 * Math.random());
}

/** @internal Whether another attempt may succeed. */
export function isRetryable(error: unknown): error is IdallocError {
  return error instanceof IdallocError && error.code === status.UNAVAILABLE;
}

/** @internal Returns how long a request of a stream waits, if another attempt may help. */
export function requestDelayMs(error: IdallocError, failures: number, deadline: number): number | undefined {
  const least = error.retryDelayMs ?? 0;
  const delay = backoffMs(failures, least);
  const mayHelp = isRetryable(error) || isStreamFull(error);
  const isInTime = failures < UNARY.rounds && least <= UNARY.maxDelayMs && Date.now() + delay < deadline;
  return mayHelp && isInTime ? delay : undefined;
}

/** @internal Whether a request was rejected since other requests of its stream ask for too many ids. */
export function isStreamFull(error: IdallocError): boolean {
  return error.reason === 'QUOTA_EXCEEDED' && error.details.metadata?.['subject'] === 'stream';
}

/** @internal The attempts of a call or a stream, in rounds. */
export class Retries {
  /** The servers that this round has asked. */
  readonly asked = new Set<Server>();
  /** Whether the call has sent its second attempt. */
  hasSecond = false;
  /** Whether it has sent another token since its last progress. */
  hasNewToken = false;
  #failures = 0;
  #failedAt = 0; // first
  #last: IdallocError | undefined;

  /** @param deadline - when the attempts end, in milliseconds since 1970 */
  constructor(
    private readonly servers: Servers,
    private readonly deadline = Infinity,
    private readonly limits = UNARY,
  ) {}

  /** Forgets the failures: a message arrived, or no caller waits. */
  reset(): void {
    this.#failures = 0;
    this.hasNewToken = false;
  }

  /** Returns the wait before the next attempt. Throws the error if it cannot help or come in time. */
  delayMs(error: unknown): number {
    if (!(error instanceof IdallocError)) throw error;
    const delay = this.#delayMs(error);
    if (delay === undefined || Date.now() + delay >= this.deadline) {
      // grpc-js ended the attempt at the deadline.
      throw error.reason === 'DEADLINE_EXCEEDED' && this.#last ? late(error.message, this.#last) : error;
    }
    this.#last = error;
    return delay;
  }

  #delayMs(error: IdallocError): number | undefined {
    const { reason, retryDelayMs: least = 0 } = error;
    const { rounds, maxDelayMs, maxQuotaDelayMs, maxStallMs, maxFirstStallMs } = this.limits;
    if (reason === 'QUOTA_EXCEEDED') return least > 0 && least <= maxQuotaDelayMs ? backoffMs(0, least) : undefined;
    if (!isRetryable(error)) return undefined;
    if (this.servers.hasUsable(this.asked)) return 0;
    if (this.#failures++ === 0) this.#failedAt = Date.now();
    const delay = backoffMs(this.#failures, least);
    const stall = Date.now() + delay - this.#failedAt;
    const maxMs = this.servers.hasAnswered || reason !== 'SERVER_UNREACHABLE' ? maxStallMs : maxFirstStallMs;
    return this.#failures >= rounds || least > maxDelayMs || stall > maxMs ? undefined : delay;
  }
}
