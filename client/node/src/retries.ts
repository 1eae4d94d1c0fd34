// When a call is repeated, and when a broken stream is opened again.

import { status } from '@grpc/grpc-js';
import { IdallocError } from './errors.js';

const INITIAL_BACKOFF_MS = 100;
const MAX_BACKOFF_MS = 2000;
// The attempts of a call, and the longest delay before the next one.
const MAX_ATTEMPTS = 5;
const MAX_DELAY_MS = 5000;
/** @internal How long a stream may make no progress. A restart of a server takes less. */
export const MAX_STALL_MS = 60_000;
// The same while no server has ever answered: there may be none at the address.
const MAX_FIRST_STALL_MS = 4000;
// A quota may take hours: then the caller must know.
const MAX_QUOTA_DELAY_MS = 30_000;

/**
 * @internal Returns how long a call waits before its next attempt after so many failures; undefined if a retry cannot
 * help or come in time.
 */
export function retryDelayMs(error: unknown, failures: number, deadline: number): number | undefined {
  if (!(error instanceof IdallocError) || failures >= MAX_ATTEMPTS) return undefined;
  if (!isTemporary(error) && !isStreamFull(error)) return undefined;
  const delay = error.retryDelayMs ?? backoffMs(failures);
  return delay > Math.min(deadline - Date.now(), MAX_DELAY_MS) ? undefined : delay;
}

/** @internal Whether a request was rejected since other requests of its stream ask for too many ids. */
export function isStreamFull(error: IdallocError): boolean {
  return error.reason === 'QUOTA_EXCEEDED' && error.details.metadata?.['subject'] === 'stream';
}

/** @internal Decides whether a stream is opened again. */
export class Retries {
  #failures = 0;
  // When the first of the failures came.
  #failedAt = 0;

  /** @param deadline - when the attempts end, in milliseconds since 1970 */
  constructor(private readonly deadline = Infinity) {}

  /** Forgets the failures: a message arrived, or no caller waits. */
  reset(): void {
    this.#failures = 0;
  }

  /**
   * Returns how long to wait before the next attempt. Throws the error if a retry cannot help or come in time.
   *
   * @param hasAnswered - whether a server has ever answered the client
   */
  delayMs(error: unknown, hasAnswered: boolean): number {
    if (!(error instanceof IdallocError)) throw error;
    const delay = error.reason === 'QUOTA_EXCEEDED' ? this.#quotaDelayMs(error) : this.#stallDelayMs(error, hasAnswered);
    if (Date.now() + delay >= this.deadline) throw error;
    return delay;
  }

  #quotaDelayMs(error: IdallocError): number {
    const { retryDelayMs: delay } = error;
    if (delay === undefined || delay > MAX_QUOTA_DELAY_MS) throw error;
    return jittered(delay);
  }

  #stallDelayMs(error: IdallocError, hasAnswered: boolean): number {
    if (!isTemporary(error)) throw error;
    if (this.#failures++ === 0) this.#failedAt = Date.now();
    const delay = Math.max(backoffMs(this.#failures), error.retryDelayMs ?? 0);
    const most = hasAnswered || error.reason !== 'SERVER_UNREACHABLE' ? MAX_STALL_MS : MAX_FIRST_STALL_MS;
    if (Date.now() + delay - this.#failedAt > most) throw error;
    return delay;
  }
}

/** Whether the same call may succeed at once or soon. A server that shuts down also answers CANCELLED. */
function isTemporary(error: IdallocError): boolean {
  return error.code === status.UNAVAILABLE || error.reason === 'CANCELLED';
}

function backoffMs(failures: number): number {
  return jittered(Math.min(MAX_BACKOFF_MS, INITIAL_BACKOFF_MS * 2 ** Math.max(0, failures - 1)));
}

/** Adds up to a fifth: clients that wait for the same server or quota must not return at the same moment. */
function jittered(delay: number): number {
  return delay * (1 + 0.2 * Math.random());
}
