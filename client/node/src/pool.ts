// A pool of prefetched ids: it hands them out one by one, and requests larger ranges the faster they are used.

import { status } from '@grpc/grpc-js';
import { abortOf, MAX_TIMER_MS, TIMED_OUT, within } from './abort.js';
import { closed, IdallocError, invalidArgument, late } from './errors.js';
import { checkDisjoint, checkRange, type IdRange } from './ranges.js';
import { backoffMs } from './retries.js';

/**
 * Requests a range of `idCount` ids. It must end within a deadline of its own. An IdallocError lets the pool adapt the
 * next request. `signal` is aborted when the pool is closed.
 */
export type Allocate = (idCount: bigint, signal: AbortSignal) => Promise<IdRange>;

/** Two clocks, in milliseconds. Neither alone counts all time: see `Lease.hasExpired`. */
export interface Clock {
  /** A clock that cannot be set. Node's does not count the time while the machine is suspended. */
  monotonic(): number;
  /** The time since 1970, which may be set. */
  wall(): number;
}

const systemClock: Clock = { monotonic: () => performance.now(), wall: () => Date.now() };

export interface PoolOptions {
  /** The most ids in a range, default 1,000,000: the pool holds at most two ranges. */
  maxRangeSize?: number | undefined;
  /** For tests. */
  clock?: Clock | undefined;
}

export interface NextOptions {
  /** How long to wait for a range or a quota, in milliseconds; at most 2^31 - 1, default 10,000. */
  timeoutMs?: number | undefined;
  signal?: AbortSignal | undefined;
}

const DEFAULT_TIMEOUT_MS = 10_000;
// The next range is twice as large if it is requested within this time of the current range's first id.
const FAST_MS = 500;
// The default of the server's limit max_ids_per_call.
const MAX_RANGE_SIZE = 1_000_000;
// How many ranges in a row that had expired on arrival are an error.
const MAX_LATE_RANGES = 3;

/** A range in use. */
class Lease {
  /** The next range is requested when fewer ids than these are left. */
  prefetchBelow: number;

  constructor(
    private nextId: bigint,
    private readonly step: bigint,
    public left: number,
    private readonly deadline: { readonly monotonic: number; readonly wall: number },
  ) {
    this.prefetchBelow = Math.ceil(left / 2);
  }

  /**
   * Whether either clock has advanced by the ttl since the range was requested. The monotonic clock covers a wall clock
   * that is set back, the wall clock covers a suspended machine.
   */
  hasExpired(clock: Clock): boolean {
    return clock.monotonic() >= this.deadline.monotonic || clock.wall() >= this.deadline.wall;
  }

  take(): bigint {
    const id = this.nextId;
    this.nextId += this.step;
    this.left--;
    return id;
  }
}

const EMPTY = new Lease(0n, 1n, 0, { monotonic: Infinity, wall: Infinity });

/** A request under way. */
interface Pending {
  /** Resolves to the error that callers must get; to undefined if they shall look again. It never rejects. */
  readonly done: Promise<unknown>;
  readonly end: (error?: unknown) => void;
  /** Until when it waits after an error: a quota is used up, or no server answers. */
  readonly pause?: { readonly until: number; readonly error: IdallocError };
}

/**
 * Hands out the ids of one sequence one by one.
 *
 * Any number of callers may share a pool: each id goes to one of them. For each id the pool reads the clocks, and
 * drops ids that are older than the server allows. Each worker thread and each process needs a pool of its own; a copy
 * that is sent to another one (a structured clone, or JSON) has no ids and no methods.
 *
 * A range is used in two halves. When the second half begins, the pool requests the next range. So a slow caller holds
 * few ids, and a fast caller does not wait. Ranges are used in the order of their arrival.
 */
export class Pool implements AsyncIterable<bigint>, AsyncDisposable {
  #current = EMPTY;
  #next: Lease | undefined; // the prefetched range
  #known: IdRange[] = []; // the last 8
  // When the first id of the current range was taken.
  #started: number | undefined;
  #size = 1;
  // Whether ranges are used up before they expire. The pool prefetches only then.
  #inDemand = true;
  #lateRanges = 0;
  // Failures since the last range.
  #failures = 0;
  // The error of the last request; undefined after a range.
  #failure: unknown;
  #pending: Pending | undefined;
  readonly #closing = new AbortController();

  readonly #allocate: Allocate;
  readonly #clock: Clock;
  #maxSize: number;

  /**
   * A pool for `allocate`, such as one that also writes a log. `Client.pool` makes one for a sequence.
   */
  constructor(allocate: Allocate, { maxRangeSize = MAX_RANGE_SIZE, clock = systemClock }: PoolOptions = {}) {
    if (!Number.isSafeInteger(maxRangeSize) || maxRangeSize < 1) {
      throw invalidArgument('maxRangeSize', `must be an integer of at least 1, not ${maxRangeSize}`);
    }
    this.#allocate = allocate;
    this.#maxSize = maxRangeSize;
    this.#clock = clock;
  }

  /**
   * Returns the next id. It waits for a range if none is at hand: for a quota, or for a server.
   *
   * All callers wait for the same request, each for its own time. A caller that stops waiting takes
   * no id; the range goes to the next callers.
   *
   * @throws IdallocError as from AllocateRange; after `timeoutMs` the last error, or DEADLINE_EXCEEDED;
   * EXPIRED_ON_ARRIVAL if three ranges in a row came too late. The next call tries again. CLOSED after `close`
   * @throws the reason of the signal, after it was aborted
   */
  next(options: NextOptions = {}): Promise<bigint> {
    // Not an async function: its frame would cost more than the checks of the id.
    try {
      options.signal?.throwIfAborted();
      const id = this.tryNext();
      return id === undefined ? this.#waitForNext(options) : Promise.resolve(id);
    } catch (error) {
      return Promise.reject(error);
    }
  }

  /**
   * Returns the next id if one is at hand, without a promise; else undefined: only `next` requests a range.
   *
   * @throws IdallocError CLOSED after `close`, or EXPIRED_ON_ARRIVAL
   */
  tryNext(): bigint | undefined {
    do {
      const lease = this.#current;
      if (lease.left > 0) {
        const id = lease.take();
        if (lease.left < lease.prefetchBelow) this.#prefetch(lease);
        // Checked last: a process that was paused above must not return an id that expired meanwhile.
        if (!lease.hasExpired(this.#clock)) return id;
      }
    } while (this.#advance());
    return undefined;
  }

  /** Yields ids, and ends when the pool is closed. Leave the loop to stop; the pool stays usable. */
  async *[Symbol.asyncIterator](): AsyncGenerator<bigint, void, undefined> {
    for (;;) {
      let id: bigint;
      try {
        id = this.tryNext() ?? (await this.next());
      } catch (error) {
        if (this.#closing.signal.aborted) return;
        throw error;
      }
      yield id;
    }
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
  }

  /** Closes the pool: drops the ids at hand, and ends the calls that wait with CLOSED. */
  close(): void {
    this.#current = EMPTY;
    this.#next = undefined;
    this.#closing.abort(closed('pool'));
    this.#pending?.end();
  }

  /** @internal Is aborted by `close`. */
  get closing(): AbortSignal {
    return this.#closing.signal;
  }

  async #waitForNext({ timeoutMs = DEFAULT_TIMEOUT_MS, signal }: NextOptions): Promise<bigint> {
    const deadline = this.#clock.monotonic() + timeoutMs;
    for (;;) {
      const { done, pause } = this.#pending ?? this.#request(true);
      if (pause !== undefined && pause.until >= deadline) throw pause.error;
      const error = await within(done, deadline - this.#clock.monotonic(), abortOf(signal));
      if (error === TIMED_OUT) throw this.#failure ?? late(`no id arrived within ${timeoutMs} ms`);
      if (error !== undefined) throw error;
      signal?.throwIfAborted();
      const id = this.tryNext();
      if (id !== undefined) return id;
    }
  }

  /** Makes the next range current. Returns false if there is none, or if it has expired. */
  #advance(): boolean {
    this.#closing.signal.throwIfAborted();
    if (this.#current.hasExpired(this.#clock)) this.#reduceDemand();
    else if (this.#started !== undefined) this.#inDemand = true;
    const next = this.#next;
    this.#current = EMPTY;
    this.#next = undefined;
    this.#started = undefined;
    if (next === undefined) return false;
    if (next.hasExpired(this.#clock)) {
      this.#countLateRange();
      return false;
    }
    this.#current = next;
    this.#started = this.#clock.monotonic();
    this.#lateRanges = 0;
    return true;
  }

  /** Requests the range after this one, if ranges are used up in time. */
  #prefetch(lease: Lease): void {
    lease.prefetchBelow = 0;
    const isNeeded = this.#inDemand && this.#next === undefined && !lease.hasExpired(this.#clock);
    if (isNeeded && this.#pending === undefined) this.#request(false);
  }

  /** Requests a range. The error of a prefetch, which no caller demanded, goes to no caller. */
  #request(isDemanded: boolean, isRepeated = false): Pending {
    // Before the request is sent, as the ttl counts from then.
    const [monotonic, wall] = [this.#clock.monotonic(), this.#clock.wall()];
    const isFast = this.#started !== undefined && monotonic - this.#started < FAST_MS;
    if (isFast && !isRepeated) this.#size *= 2;
    this.#size = Math.min(this.#size, this.#maxSize);
    const pending = newPending();
    this.#pending = pending;
    void this.#receive(this.#size, monotonic, wall, isDemanded).then(pending.end);
    return pending;
  }

  /** Prefetches later, since no server answered in time: the ids at hand may last until one does. */
  #prefetchLater(delayMs: number): void {
    const prefetch = () => {
      const isNeeded = this.#next === undefined && this.#current.left > 0 && !this.#closing.signal.aborted;
      if (isNeeded && this.#pending === undefined) this.#request(false, true);
    };
    setTimeout(prefetch, delayMs).unref();
  }

  /** Returns the error that callers must get, if any. It never rejects. */
  async #receive(size: number, monotonic: number, wall: number, isDemanded: boolean): Promise<unknown> {
    try {
      const range = await this.#allocate(BigInt(size), this.#closing.signal);
      checkRange(range, BigInt(size));
      if (range.period) {
        const text = 'the sequence restarts in each period, so its numbers repeat: allocate ranges with texts instead';
        throw new IdallocError('INVALID_REQUEST', text, { code: status.INVALID_ARGUMENT, field: 'sequence' });
      }
      const known = [...this.#known, range];
      checkDisjoint(known);
      this.#known = known.slice(-8);
      // In one step with the ids: a caller in between must not find ids at hand and a request under way.
      this.#pending = undefined;
      this.#failures = 0;
      this.#failure = undefined;
      const deadline = { monotonic: monotonic + range.ttlMs, wall: wall + range.ttlMs };
      if (!this.#closing.signal.aborted) this.#next = new Lease(range.firstId, range.step, size, deadline);
      return undefined;
    } catch (error) {
      this.#pending = undefined;
      this.#failure = error;
      return this.#canRetry(error, size, isDemanded) || !isDemanded ? undefined : error;
    }
  }

  /** Adapts the size of the next range to an error. Returns whether the callers that wait shall request it. */
  #canRetry(error: unknown, size: number, isDemanded: boolean): boolean {
    if (!(error instanceof IdallocError) || this.#closing.signal.aborted) return false;
    const { field, metadata, retryDelayMs } = error.details;
    if (error.reason === 'SEQUENCE_EXHAUSTED') {
      const largest = Number(metadata?.['largest_range']);
      if (!Number.isInteger(largest) || largest < 1 || largest >= size) return false;
      this.#size = largest;
      return true;
    }
    if (error.reason === 'INVALID_REQUEST' && field === 'id_count' && size > 1) {
      this.#size = this.#maxSize = Math.floor(size / 2);
      return true;
    }
    if (error.reason === 'QUOTA_EXCEEDED' && retryDelayMs !== undefined) {
      // A call may overdraw the quota, and all calls fail until it is refilled: smaller ranges make shorter waits.
      if (retryDelayMs > FAST_MS) this.#halve();
      if (isDemanded) this.#startPause(error, backoffMs(1, retryDelayMs));
      return true;
    }
    if (error.code !== status.UNAVAILABLE && error.code !== status.DEADLINE_EXCEEDED) return false;
    const delay = backoffMs(++this.#failures, retryDelayMs);
    if (isDemanded) this.#startPause(error, delay);
    else this.#prefetchLater(delay);
    return true;
  }

  #startPause(error: IdallocError, delay: number): void {
    const { done, end } = newPending();
    const resume = () => {
      clearTimeout(timer);
      this.#pending = undefined;
      end();
    };
    // The callers that wait have timers of their own, so this one need not keep the process alive.
    const timer = setTimeout(resume, Math.min(delay, MAX_TIMER_MS)).unref();
    this.#pending = { done, end: resume, pause: { until: this.#clock.monotonic() + delay, error } };
  }

  /** Stops prefetching, and halves the size, because a range expired before it was used up. */
  #reduceDemand(): void {
    this.#inDemand = false;
    this.#halve();
  }

  #halve(): void {
    this.#size = Math.max(1, Math.floor(this.#size / 2));
  }

  #countLateRange(): void {
    this.#reduceDemand();
    this.#lateRanges++;
    if (this.#lateRanges < MAX_LATE_RANGES) return;
    this.#lateRanges = 0;
    throw new IdallocError(
      'EXPIRED_ON_ARRIVAL',
      `${MAX_LATE_RANGES} ranges in a row had expired on arrival; ` +
        'check the latency to the server, or raise its lease_ttl',
      { code: status.FAILED_PRECONDITION },
    );
  }
}

function newPending(): Pending {
  let end!: Pending['end'];
  const done = new Promise<unknown>((resolve) => (end = resolve));
  return { done, end };
}
