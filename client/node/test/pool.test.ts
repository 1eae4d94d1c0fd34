import assert from 'node:assert/strict';
import { afterEach, beforeEach, mock, test } from 'node:test';
import { type ErrorDetails, IdallocError } from '../src/errors.js';
import { type Clock, Pool } from '../src/pool.js';
import type { IdRange } from '../src/ranges.js';
import { hasReason, settle } from './fake-server.js';

const TTL_MS = 180_000;

/** Both clocks move with the mocked timers; `skipMonotonic` and `skipWall` move one alone. */
class FakeClock implements Clock {
  private monotonicMs = 1000;
  private wallMs = 1_800_000_000_000;

  monotonic(): number {
    return this.monotonicMs;
  }

  wall(): number {
    return this.wallMs;
  }

  advance(ms: number): void {
    this.skipMonotonic(ms);
    this.skipWall(ms);
    mock.timers.tick(ms);
  }

  skipMonotonic(ms: number): void {
    this.monotonicMs += ms;
  }

  skipWall(ms: number): void {
    this.wallMs += ms;
  }
}

interface Request {
  idCount: bigint;
  signal: AbortSignal;
  resolve(range: IdRange): void;
  reject(error: unknown): void;
}

/** A sequence whose replies the test may hold back, change or replace by errors. */
class FakeServer {
  readonly sizes: bigint[] = [];
  /** While true, requests wait in `held`. */
  isHolding = false;
  readonly held: Request[] = [];
  /** The errors of the next requests. */
  readonly errors: unknown[] = [];
  change: (range: IdRange) => IdRange = (range) => range;

  constructor(
    private nextId = 1n,
    private readonly step = 1n,
  ) {}

  readonly allocate = (idCount: bigint, signal: AbortSignal): Promise<IdRange> => {
    this.sizes.push(idCount);
    const error = this.errors.shift();
    if (error !== undefined) return Promise.reject(error);
    if (!this.isHolding) return Promise.resolve(this.range(idCount));
    return new Promise((resolve, reject) => this.held.push({ idCount, signal, resolve, reject }));
  };

  range(idCount: bigint): IdRange {
    const firstId = this.nextId;
    this.nextId += idCount * this.step;
    const lastId = this.nextId - this.step;
    return this.change({ firstId, lastId, step: this.step, idCount, ttlMs: TTL_MS, period: '' });
  }

  /** Answers the oldest request. */
  answer(): void {
    const request = this.held.shift();
    assert.ok(request, 'no request is held');
    request.resolve(this.range(request.idCount));
  }
}

let clock: FakeClock;
let server: FakeServer;
let pool: Pool;

beforeEach(() => {
  mock.timers.enable({ apis: ['setTimeout'] });
  clock = new FakeClock();
  server = new FakeServer();
  pool = new Pool(server.allocate, { clock });
});
afterEach(() => mock.timers.reset());

function error(reason: string, details: ErrorDetails = {}): IdallocError {
  return new IdallocError(reason, 'of the test', details);
}

async function take(pool: Pool, count: number): Promise<bigint[]> {
  const ids: bigint[] = [];
  while (ids.length < count) ids.push(await pool.next());
  return ids;
}

test('hands out each id once, in order', async () => {
  assert.deepEqual(await take(pool, 5000), Array.from({ length: 5000 }, (_, index) => BigInt(index + 1)));
});

test('is exact beyond 2^53, and at the largest id', async () => {
  const ids = await take(new Pool(new FakeServer(9007199254740993n).allocate, { clock }), 4);
  assert.deepEqual(ids, [9007199254740993n, 9007199254740994n, 9007199254740995n, 9007199254740996n]);
  const last = new Pool(new FakeServer(2n ** 63n - 2n).allocate, { clock });
  assert.equal(await last.next(), 9223372036854775806n);
});

test('counts down with a negative step', async () => {
  assert.deepEqual(await take(new Pool(new FakeServer(5n, -5n).allocate, { clock }), 4), [5n, 0n, -5n, -10n]);
});

test('doubles the size of ranges that are used fast, up to a million', async () => {
  await take(pool, 1000);
  assert.deepEqual(server.sizes.slice(0, 5), [1n, 2n, 4n, 8n, 16n]);
  while (server.sizes.at(-1)! < 1_000_000n) while (pool.tryNext() === undefined) await settle();
  for (let left = 3_000_000; left > 0; left--) pool.tryNext() ?? (await pool.next());
  assert.equal(server.sizes.at(-1), 1_000_000n);
});

test('keeps the size of ranges that are used slowly', async () => {
  for (let id = 0; id < 20; id++) {
    await pool.next();
    clock.advance(600);
  }
  assert.ok(server.sizes.every((size) => size <= 2n), `${server.sizes}`);
});

test('prefetches once when the second half of a range begins', async () => {
  await take(pool, 1 + 2 + 4 + 8); // the range of 16 is at hand
  await settle();
  server.isHolding = true;
  await take(pool, 8);
  assert.equal(server.held.length, 0);
  await take(pool, 8);
  assert.deepEqual(server.held.map(({ idCount }) => idCount), [32n]);
  assert.equal(pool.tryNext(), undefined);
  server.answer();
  assert.equal(await pool.next(), 32n);
});

for (const [name, pass] of [
  ['both clocks', (ms: number) => clock.advance(ms)],
  [
    'the monotonic clock alone (the wall clock is set back)',
    (ms: number) => {
      clock.skipMonotonic(ms);
      clock.skipWall(-3_600_000);
    },
  ],
  ['the wall clock alone (the machine was suspended)', (ms: number) => clock.skipWall(ms)],
] as const) {
  test(`drops ids in the middle of a range when their time ends by ${name}`, async () => {
    await take(pool, 1 + 2 + 4 + 1); // three more ids of this half are at hand
    await settle();
    pass(TTL_MS - 1);
    assert.equal(await pool.next(), 9n);
    pass(1);
    assert.equal(pool.tryNext(), undefined);
    const id = await pool.next();
    assert.ok(id > 15n, `${id} is of a range that has expired`);
  });
}

test('counts the ttl from before the request was sent', async () => {
  server.isHolding = true;
  const first = pool.next({ timeoutMs: 10 * TTL_MS });
  clock.advance(TTL_MS);
  server.answer(); // id 1, too late
  await settle();
  server.answer();
  assert.equal(await first, 2n);
});

test('halves the size and stops to prefetch when a range expires unused', async () => {
  await take(pool, 1 + 2 + 4 + 1);
  await settle();
  assert.equal(server.sizes.at(-1), 8n);
  clock.advance(TTL_MS);
  await take(pool, 4);
  assert.deepEqual(server.sizes.slice(4), [4n]);
});

test('fails after three ranges that had expired on arrival', async () => {
  server.change = (range) => ({ ...range, ttlMs: 0 });
  await assert.rejects(pool.next(), hasReason('EXPIRED_ON_ARRIVAL'));
  assert.equal(server.sizes.length, 3);
  server.change = (range) => range;
  assert.equal(await pool.next(), 4n);
});

test('late ranges with a timely one between them are no error', async () => {
  let requests = 0;
  server.change = (range) => ({ ...range, ttlMs: ++requests % 3 === 0 ? TTL_MS : 0 });
  for (let round = 0; round < 5; round++) {
    await pool.next();
    clock.advance(TTL_MS);
  }
  assert.equal(requests, 15);
});

test('gives each id to one of many callers', async () => {
  server.isHolding = true;
  const callers = Array.from({ length: 1000 }, () => pool.next());
  const ids = Promise.all(callers);
  let mostHeld = 0;
  for (let round = 0; round < 20 && server.held.length > 0; round++) {
    mostHeld = Math.max(mostHeld, server.held.length);
    server.answer();
    await settle();
  }
  assert.equal(new Set(await ids).size, 1000);
  assert.equal(mostHeld, 1);
});

test('a cancelled caller takes no id, and its range goes to the next', async () => {
  server.isHolding = true;
  const abort = new AbortController();
  const cancelled = pool.next({ signal: abort.signal });
  const reason = new Error('of the caller');
  abort.abort(reason);
  await assert.rejects(cancelled, reason);
  await assert.rejects(pool.next({ signal: abort.signal }), reason);
  const other = pool.next();
  server.answer();
  assert.equal(await other, 1n);
  assert.equal(server.sizes[0], 1n);
});

test('a caller whose time ends leaves the request to the next', async () => {
  server.isHolding = true;
  const late = pool.next({ timeoutMs: 50 });
  const patient = pool.next();
  clock.advance(50);
  await assert.rejects(late, hasReason('DEADLINE_EXCEEDED'));
  server.answer();
  assert.equal(await patient, 1n);
});

test('gives an error to the callers that wait, and tries again with the next call', async () => {
  server.errors.push(error('STORE_UNAVAILABLE'), new TypeError('of the test'));
  const callers = await Promise.allSettled([pool.next(), pool.next()]);
  assert.ok(callers.every((caller) => caller.status === 'rejected' && caller.reason.reason === 'STORE_UNAVAILABLE'));
  await assert.rejects(pool.next(), TypeError);
  assert.equal(await pool.next(), 1n);
});

test('next gives its errors by the promise: it never throws', async () => {
  server.change = (range) => ({ ...range, ttlMs: 0 });
  await assert.rejects(pool.next(), hasReason('EXPIRED_ON_ARRIVAL'));
  const aborted = pool.next({ signal: AbortSignal.abort(new Error('of the caller')) });
  await assert.rejects(aborted, /of the caller/);
  pool.close();
  await assert.rejects(pool.next(), hasReason('CLOSED'));
});

test('an allocate that throws at once is an error like any other', async () => {
  const pool = new Pool(() => {
    throw new TypeError('of the test');
  }, { clock });
  await assert.rejects(pool.next(), TypeError);
  await assert.rejects(pool.next(), TypeError);
});

test('a failed prefetch is no error: the caller asks again', async () => {
  server.isHolding = true;
  const first = pool.next();
  server.answer();
  assert.equal(await first, 1n);
  const second = pool.next(); // waits for the prefetch
  server.held.shift()?.reject(error('STORE_UNAVAILABLE'));
  await settle();
  server.answer();
  assert.equal(await second, 2n);
});

test('takes exactly what is left of a sequence', async () => {
  let remaining = 100n;
  const pool = new Pool((idCount, signal) => {
    if (idCount > remaining) {
      const metadata = { remaining: `${remaining}`, largest_range: `${remaining}` };
      return Promise.reject(error('SEQUENCE_EXHAUSTED', { metadata }));
    }
    remaining -= idCount;
    return server.allocate(idCount, signal);
  }, { clock });
  assert.equal((await take(pool, 100)).at(-1), 100n);
  await assert.rejects(pool.next(), hasReason('SEQUENCE_EXHAUSTED'));
});

test('asks for less when the server allows less in a call', async () => {
  const limit = 100n;
  const sizes: bigint[] = [];
  const pool = new Pool((idCount, signal) => {
    sizes.push(idCount);
    if (idCount > limit) return Promise.reject(error('INVALID_REQUEST', { field: 'id_count' }));
    return server.allocate(idCount, signal);
  }, { clock });
  assert.equal(new Set(await take(pool, 2000)).size, 2000);
  assert.equal(sizes.filter((size) => size > limit).length, 1);
  assert.equal(sizes.at(-1), 64n);
});

test('waits for a quota within the time of the caller', async () => {
  const quota = error('QUOTA_EXCEEDED', { retryDelayMs: 1000 });
  server.errors.push(quota);
  const impatient = pool.next({ timeoutMs: 900 });
  const patient = pool.next({ timeoutMs: 5000 });
  await assert.rejects(impatient, quota);
  await assert.rejects(pool.next({ timeoutMs: 900 }), quota);
  clock.advance(999);
  await settle();
  assert.equal(server.sizes.length, 1);
  clock.advance(201); // the jitter is at most a fifth
  assert.equal(await patient, 1n);
});

test('prefetches again after a range was used up in time', async () => {
  await take(pool, 1 + 2 + 4 + 1);
  await settle();
  clock.advance(TTL_MS);
  await take(pool, 4); // expired ids stop the prefetch; these 4 are used up
  assert.equal(server.sizes.at(-1), 4n);
  await take(pool, 3); // of the next range of 4, whose second half has begun
  assert.deepEqual(server.sizes.slice(-3), [4n, 4n, 8n]);
});

test('halves the size after a long wait for a quota', async () => {
  await take(pool, 1 + 2 + 4 + 3);
  await settle();
  server.errors.push(error('QUOTA_EXCEEDED', { retryDelayMs: 600 })); // of the prefetch of 16
  await take(pool, 6);
  assert.equal(server.sizes.at(-2), 16n);
  assert.equal(server.sizes.at(-1), 8n);
});

test('a quota without a delay is an error at once', async () => {
  server.errors.push(error('QUOTA_EXCEEDED'));
  await assert.rejects(pool.next(), hasReason('QUOTA_EXCEEDED'));
});

for (const [name, change, reason] of [
  ['a step of 0', { step: 0n }, 'INVALID_REPLY'],
  ['another last id', { lastId: 2n }, 'INVALID_REPLY'],
  ['another number of ids', { idCount: 2n, lastId: 2n }, 'INVALID_REPLY'],
  ['an id past the largest', { firstId: 2n ** 63n - 1n, lastId: 2n ** 63n - 1n }, 'INVALID_REPLY'],
  ['a negative ttl', { ttlMs: -1 }, 'INVALID_REPLY'],
  ['an absent ttl', { ttlMs: NaN }, 'INVALID_REPLY'],
  ['a period', { period: '2026-11' }, 'INVALID_REQUEST'],
] as const) {
  test(`refuses a range with ${name}`, async () => {
    server.change = (range) => ({ ...range, ...change });
    await assert.rejects(pool.next(), hasReason(reason));
  });
}

for (const step of [1n, 3n, -1n, -3n]) {
  test(`refuses an id of one of the last eight ranges, by steps of ${step}`, async () => {
    let place = 0n;
    const server = new FakeServer(0n, step);
    server.change = (range) => ({ ...range, firstId: place * step, lastId: place * step });
    const pool = new Pool(server.allocate, { clock, maxRangeSize: 1 });
    const accepted = [1n, 100n, 2n, 50n, 101n, 3n, 99n, 4n];
    for (place of accepted) assert.equal(await pool.next(), place * step);
    for (place of accepted) await assert.rejects(pool.next(), hasReason('INVALID_REPLY'));
    for (place = 200n; place < 208n; place++) assert.equal(await pool.next(), place * step);
    place = 1n;
    assert.equal(await pool.next(), step);
  });
}

test('close drops the ids at hand, ends waiting calls and aborts the request', async () => {
  await take(pool, 1 + 2 + 4);
  server.isHolding = true;
  await take(pool, 8);
  const waiting = [pool.next(), pool.next()];
  pool.close();
  for (const caller of waiting) await assert.rejects(caller, hasReason('CLOSED'));
  assert.equal(server.held[0]?.signal.aborted, true);
  server.answer();
  await settle();
  assert.throws(() => pool.tryNext(), hasReason('CLOSED'));
  await assert.rejects(pool.next(), hasReason('CLOSED'));
});

test('close ends the wait for a quota', async () => {
  server.errors.push(error('QUOTA_EXCEEDED', { retryDelayMs: 1000 }));
  const waiting = pool.next();
  await settle();
  pool.close();
  await assert.rejects(waiting, hasReason('CLOSED'));
});

/** The error of a call that no server answered. */
function unavailable(retryDelayMs?: number): IdallocError {
  return error('SERVER_UNREACHABLE', { code: 14, ...(retryDelayMs === undefined ? {} : { retryDelayMs }) });
}

test('it waits for a server within the time of the caller', async () => {
  server.errors.push(unavailable());
  const first = pool.next();
  await settle();
  clock.advance(121);
  assert.equal(await first, 1n);
  await take(pool, 2);
  await settle();
  server.isHolding = true;
  await take(pool, 4);
  const patient = pool.next({ timeoutMs: 5000 });
  server.held.shift()?.reject(unavailable()); // of the prefetch
  await settle();
  server.held.shift()?.reject(unavailable(1000));
  await settle();
  await assert.rejects(pool.next({ timeoutMs: 900 }), hasReason('SERVER_UNREACHABLE'));
  assert.equal(server.held.length, 0);
  clock.advance(1201);
  await settle();
  server.answer();
  assert.equal(await patient, 8n);
});

test('prefetches again when no server answered, while ids are at hand', async () => {
  await take(pool, 1 + 2 + 4 + 4);
  await settle();
  server.isHolding = true;
  await take(pool, 1); // the prefetch of 16
  const requests = server.sizes.length;
  server.held.shift()?.reject(unavailable());
  await settle();
  assert.equal(server.sizes.length, requests);
  clock.advance(121);
  assert.deepEqual(server.sizes.slice(-2), [16n, 16n]);
  server.answer();
  await settle();
  server.isHolding = false;
  assert.deepEqual((await take(pool, 4)).at(-1), 16n);
});

test('its own request that is late is asked again', async () => {
  const late = error('DEADLINE_EXCEEDED', { code: 4 });
  server.isHolding = true;
  const first = pool.next();
  server.answer();
  assert.equal(await first, 1n);
  const patient = pool.next(); // waits for the prefetch
  for (const delay of [0, 241]) {
    server.held.shift()?.reject(late);
    await settle();
    clock.advance(delay);
    await settle();
  }
  server.answer();
  assert.equal(await patient, 2n);
});

test('a caller without an id in time has the error of the last request', async () => {
  server.isHolding = true;
  const first = pool.next();
  server.answer();
  await first;
  const waiting = pool.next({ timeoutMs: 1000 }).catch((each: unknown) => each);
  const failures = [error('STORE_UNAVAILABLE', { code: 14 }), error('SERVER_DRAINING', { code: 14 })];
  for (const each of failures) {
    server.held.shift()?.reject(each);
    await settle();
  }
  clock.advance(241);
  await settle();
  clock.advance(1000); // the next request gets no answer
  assert.equal(await waiting, failures[1]);
});

test('for await ends when the pool is closed, also while it waits', async () => {
  server.isHolding = true;
  const next = pool[Symbol.asyncIterator]().next();
  pool.close();
  assert.deepEqual(await next, { value: undefined, done: true });
  assert.throws(() => pool.tryNext(), hasReason('CLOSED'));
});
