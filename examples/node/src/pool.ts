// A pool of prefetched ids: it hands them out one by one, and requests larger ranges the faster they are used.

import { IdallocError } from './errors.js';

/** A contiguous range of ids. All ids are bigint: Number is exact only up to 2^53. */
export interface AllocatedRange {
  firstId: bigint;
  lastId: bigint;
  step: bigint;
  idCount: bigint;
  /** How long the pool may keep the ids, in milliseconds, counted from before the request was sent. */
  ttlMs: number;
  /** The period whose counter the ids are from; empty for a sequence that never restarts. */
  period: string;
}

/**
 * Requests a range of `idCount` ids. It must end within a deadline of its own. An IdallocError lets the pool adapt the
 * next request. `signal` is aborted when the pool is closed.
 */
export type Allocate = (idCount: bigint, signal: AbortSignal) => Promise<AllocatedRange>;

/** Two clocks, in milliseconds. Neither alone counts all time: see `Part.hasExpired`. */
export interface Clock {
  /** A clock that cannot be set. Node's does not count the time while the machine is suspended. */
  monotonic(): number;
  /** The time since 1970, which may be set. */
  wall(): number;
}

export const systemClock: Clock = { monotonic: () => performance.now(), wall: () => Date.now() };

export interface NextOptions {
  /** How long to wait for a range or a quota; at most 2^31 - 1, default 10,000. */
  timeoutMs?: number;
  signal?: AbortSignal;
}

const DEFAULT_TIMEOUT_MS = 10_000;
// setTimeout takes no more, and fires at once if it gets more.
const MAX_TIMER_MS = 2 ** 31 - 1;
// The next range is twice as large if it is requested within this time of the current range's first id.
const FAST_MS = 500;
// The default of the server's limit max_ids_per_call.
const MAX_RANGE_SIZE = 1_000_000;
// How many ranges in a row that had expired on arrival are an error.
const MAX_LATE_RANGES = 3;
const MIN_RETRY_DELAY_MS = 10;
// The largest id that a store holds.
const MAX_ID = 2n ** 63n - 2n;
const TIMED_OUT = Symbol('timed out');

/** A half of a range. */
class Part {
  constructor(
    /** Identifies the range: both of its halves have the same. */
    readonly range: object,
    private nextId: bigint,
    private readonly step: bigint,
    public left: number,
    private readonly monotonicDeadline: number,
    private readonly wallDeadline: number,
  ) {}

  /**
   * Whether either clock has advanced by the ttl since the range was requested. The monotonic clock covers a wall clock
   * that is set back, the wall clock covers a suspended machine.
   */
  hasExpired(clock: Clock): boolean {
    return clock.monotonic() >= this.monotonicDeadline || clock.wall() >= this.wallDeadline;
  }

  take(): bigint {
    const id = this.nextId;
    this.nextId += this.step;
    this.left--;
    return id;
  }
}

const EMPTY = new Part({}, 0n, 1n, 0, Infinity, Infinity);

/** A request under way. */
interface Pending {
  /** Resolves to the error that callers must get; to undefined if they shall look again. It never rejects. */
  readonly done: Promise<unknown>;
  readonly end: (error?: unknown) => void;
}

/** The time during which no caller requests a range, because a quota is used up. */
interface Pause extends Pending {
  readonly until: number;
  readonly error: IdallocError;
}

/**
 * Hands out the ids of one sequence one by one.
 *
 * Any number of callers may share a pool: each id goes to one of them. Before each id the pool reads the clocks, and
 * drops ids that are older than the server allows. Each worker thread needs a pool of its own.
 *
 * A range is used in two halves. When the second half begins, the pool requests the next range. So a slow caller holds
 * few ids, and a fast caller does not wait. Ranges are used in the order of their arrival.
 */
export class Pool {
  private current = EMPTY;
  private parts: Part[] = [];
  // When the first id of the current range was taken.
  private started: number | undefined;
  private size = 1;
  private maxSize = MAX_RANGE_SIZE;
  // Whether ranges are used up before they expire. The pool prefetches only then.
  private inDemand = true;
  private lateRanges = 0;
  private pending: Pending | undefined;
  private pause: Pause | undefined;
  private readonly closing = new AbortController();

  constructor(
    private readonly allocate: Allocate,
    private readonly clock: Clock = systemClock,
  ) {}

  /**
   * Returns the next id. It waits for a range if none is at hand, and while a quota is used up.
   *
   * A caller that stops waiting takes no id; the range requested for it goes to the next callers.
   *
   * @throws IdallocError as from AllocateRange, or DEADLINE_EXCEEDED; the next call tries again
   * @throws the reason of the signal, after it was aborted
   */
  next(options: NextOptions = {}): Promise<bigint> {
    // Not an async function: its frame would cost more than the checks of the id.
    try {
      options.signal?.throwIfAborted();
      const id = this.tryNext();
      return id === undefined ? this.waitForNext(options) : Promise.resolve(id);
    } catch (error) {
      return Promise.reject(error);
    }
  }

  /** Returns the next id if one is at hand, without a promise; else undefined: only `next` requests a range. */
  tryNext(): bigint | undefined {
    do {
      const part = this.current;
      if (part.left > 0 && !part.hasExpired(this.clock)) return part.take();
    } while (this.advance());
    return undefined;
  }

  /** Closes the pool: drops the ids at hand, and ends the calls that wait. */
  close(): void {
    this.current = EMPTY;
    this.parts = [];
    this.closing.abort(new IdallocError('CANCELLED', 'the pool is closed'));
    this.pending?.end();
    this.pause?.end();
  }

  private async waitForNext({ timeoutMs = DEFAULT_TIMEOUT_MS, signal }: NextOptions): Promise<bigint> {
    const deadline = this.clock.monotonic() + timeoutMs;
    for (;;) {
      if (this.pause !== undefined && this.pause.until >= deadline) throw this.pause.error;
      const { done } = this.pause ?? this.pending ?? this.request(true);
      const error = await waitFor(done, deadline - this.clock.monotonic(), signal);
      if (error === TIMED_OUT) throw new IdallocError('DEADLINE_EXCEEDED', `no id arrived within ${timeoutMs} ms`);
      if (error !== undefined) throw error;
      signal?.throwIfAborted();
      const id = this.tryNext();
      if (id !== undefined) return id;
    }
  }

  /** Makes the next part current. Returns false if none is left, or all have expired. */
  private advance(): boolean {
    this.closing.signal.throwIfAborted();
    const used = this.current;
    if (used.hasExpired(this.clock)) this.reduceDemand();
    else if (this.started !== undefined && this.parts[0]?.range !== used.range) this.inDemand = true;
    this.current = EMPTY;
    for (let part = this.parts.shift(); part !== undefined; part = this.parts.shift()) {
      const isNewRange = part.range !== used.range;
      if (!part.hasExpired(this.clock)) {
        if (isNewRange) {
          this.started = this.clock.monotonic();
          this.lateRanges = 0;
        }
        this.current = part;
        if (this.inDemand && this.parts.length === 0 && this.pending === undefined) this.request(false);
        return true;
      }
      if (isNewRange) this.dropLateRange();
    }
    this.started = undefined;
    return false;
  }

  /** Requests a range. The error of a prefetch, which no caller demanded, goes to no caller. */
  private request(isDemanded: boolean): Pending {
    // Before the request is sent, as the ttl counts from then.
    const [monotonic, wall] = [this.clock.monotonic(), this.clock.wall()];
    if (this.started !== undefined && monotonic - this.started < FAST_MS) this.size *= 2;
    this.size = Math.min(this.size, this.maxSize);
    const pending = newPending();
    this.pending = pending;
    void this.receive(this.size, monotonic, wall, isDemanded).then(pending.end);
    return pending;
  }

  /** Returns the error that callers must get, if any. It never rejects. */
  private async receive(size: number, monotonic: number, wall: number, isDemanded: boolean): Promise<unknown> {
    try {
      const range = await this.allocate(BigInt(size), this.closing.signal);
      checkRange(range, BigInt(size));
      // In one step with the ids: a caller in between must not find ids at hand and a request under way.
      this.pending = undefined;
      if (!this.closing.signal.aborted) this.add(range, monotonic + range.ttlMs, wall + range.ttlMs);
      return undefined;
    } catch (error) {
      this.pending = undefined;
      return this.canRetry(error, size, isDemanded) || !isDemanded ? undefined : error;
    }
  }

  private add({ firstId, step, idCount }: AllocatedRange, monotonicDeadline: number, wallDeadline: number): void {
    const range = {};
    const count = Number(idCount); // as many as requested
    const half = Math.floor(count / 2);
    if (half > 0) this.parts.push(new Part(range, firstId, step, half, monotonicDeadline, wallDeadline));
    const secondId = firstId + BigInt(half) * step;
    this.parts.push(new Part(range, secondId, step, count - half, monotonicDeadline, wallDeadline));
  }

  /** Adapts the size of the next range to an error. Returns whether the callers that wait shall request it. */
  private canRetry(error: unknown, size: number, isDemanded: boolean): boolean {
    if (!(error instanceof IdallocError) || this.closing.signal.aborted) return false;
    const { field, metadata, retryDelayMs } = error.details;
    if (error.reason === 'SEQUENCE_EXHAUSTED') {
      const largest = Number(metadata?.['largest_range']);
      if (!Number.isInteger(largest) || largest < 1 || largest >= size) return false;
      this.size = largest;
      return true;
    }
    if (error.reason === 'INVALID_REQUEST' && field === 'id_count' && size > 1) {
      this.size = this.maxSize = Math.floor(size / 2);
      return true;
    }
    if (error.reason === 'QUOTA_EXCEEDED' && retryDelayMs !== undefined) {
      // A call may overdraw the quota, and all calls fail until it is refilled: smaller ranges make shorter waits.
      if (retryDelayMs > FAST_MS) this.halve();
      if (isDemanded) this.startPause(error, retryDelayMs);
      return true;
    }
    return false;
  }

  private startPause(error: IdallocError, retryDelayMs: number): void {
    // Jitter, so that clients that wait for the same quota do not retry at the same moment.
    const delay = Math.max(MIN_RETRY_DELAY_MS, retryDelayMs) * (1 + 0.2 * Math.random());
    const { done, end } = newPending();
    const resume = () => {
      clearTimeout(timer);
      this.pause = undefined;
      end();
    };
    // The callers that wait have timers of their own, so this one need not keep the process alive.
    const timer = setTimeout(resume, Math.min(delay, MAX_TIMER_MS)).unref();
    this.pause = { until: this.clock.monotonic() + delay, error, done, end: resume };
  }

  /** Stops prefetching, and halves the size, because a range expired before it was used up. */
  private reduceDemand(): void {
    this.inDemand = false;
    this.halve();
  }

  private halve(): void {
    this.size = Math.max(1, Math.floor(this.size / 2));
  }

  private dropLateRange(): void {
    this.parts = [];
    this.started = undefined;
    this.reduceDemand();
    this.lateRanges++;
    if (this.lateRanges < MAX_LATE_RANGES) return;
    this.lateRanges = 0;
    throw new IdallocError(
      'DEADLINE_EXCEEDED',
      `${MAX_LATE_RANGES} ranges in a row had expired on arrival; ` +
        'check the latency to the server, or raise its lease_ttl',
    );
  }
}

/**
 * Checks a range against the contract of AllocateRange.
 *
 * @throws IdallocError if it is invalid, or if the sequence restarts, so that its numbers repeat
 */
export function checkRange({ firstId, lastId, step, idCount, ttlMs, period }: AllocatedRange, asked: bigint): void {
  const invalid = (text: string) => new IdallocError('INVALID_REPLY', text);
  if (period) {
    const details = { field: 'sequence' };
    throw new IdallocError('INVALID_REQUEST', 'the sequence restarts in each period, so its numbers repeat', details);
  }
  if (idCount !== asked) throw invalid(`the range has ${idCount} ids, not ${asked} as requested`);
  if (step === 0n) throw invalid('the step of the range is 0');
  if (lastId !== firstId + (idCount - 1n) * step) {
    throw invalid(`the range ends at ${lastId}, which is not ${idCount - 1n} steps of ${step} after ${firstId}`);
  }
  if (firstId > MAX_ID || lastId > MAX_ID) throw invalid(`the range from ${firstId} to ${lastId} passes ${MAX_ID}`);
  if (!(ttlMs >= 0 && ttlMs < Infinity)) throw invalid(`the ttl of the range is ${ttlMs} ms`);
}

function newPending(): Pending {
  let end!: Pending['end'];
  const done = new Promise<unknown>((resolve) => (end = resolve));
  return { done, end };
}

/** Returns what `done` resolves to, or TIMED_OUT. Throws the reason of the signal once it is aborted. */
function waitFor(done: Promise<unknown>, ms: number, signal: AbortSignal | undefined): Promise<unknown> {
  return new Promise((resolve, reject) => {
    const cleanUp = () => {
      clearTimeout(timer);
      signal?.removeEventListener('abort', onAbort);
    };
    const settle = (value: unknown) => {
      cleanUp();
      resolve(value);
    };
    const onAbort = () => {
      cleanUp();
      reject(signal?.reason);
    };
    const timer = setTimeout(settle, Math.min(Math.max(ms, 0), MAX_TIMER_MS), TIMED_OUT);
    signal?.addEventListener('abort', onAbort);
    void done.then(settle);
  });
}
