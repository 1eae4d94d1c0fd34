import assert from 'node:assert/strict';
import { lookup } from 'node:dns/promises';
import dns from 'node:dns';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { afterEach, beforeEach, mock, test } from 'node:test';
import { credentials, status } from '@grpc/grpc-js';
import {
  type AllocatedRange,
  type CallReport,
  Client,
  connect,
  type ConnectOptions,
  errorOf,
  IdallocError,
} from '../src/index.js';
import { GetSequenceRequest, SequenceServiceClient, SequenceServiceService } from '../src/v1.js';
import { addressesOf, isLocal } from '../src/options.js';
import { failure, FakeServer, hasReason, settle } from './fake-server.js';
import { Wire } from './wire.js';

let server: FakeServer;
let client: Client;

beforeEach(async () => {
  server = await FakeServer.start();
  client = connect({ addresses: server.address });
});
afterEach(() => {
  client.close();
  server.stop();
  mock.restoreAll();
  mock.timers.reset();
});

async function collect<T>(stream: AsyncIterable<T>): Promise<T[]> {
  const all: T[] = [];
  for await (const each of stream) all.push(each);
  return all;
}

function idsOf(ranges: AllocatedRange[]): bigint[] {
  return ranges.flatMap((range) => [...range]);
}

function counting(first: bigint, count: number): bigint[] {
  return Array.from({ length: count }, (_, index) => first + BigInt(index));
}

test('a range has its ids, exact beyond 2^53, and the rest of the reply', async () => {
  server.nextId = 9007199254740993n;
  const range = await client.allocateRange({ sequence: 'orders', idCount: 3 });
  assert.deepEqual([...range], [9007199254740993n, 9007199254740994n, 9007199254740995n]);
  const { firstId, lastId, step, idCount, ttlMs, period, generation, ordering, nodeId, created, texts } = range;
  assert.deepEqual(
    [firstId, lastId, step, idCount, ttlMs, period, generation, ordering, nodeId, created, texts],
    [9007199254740993n, 9007199254740995n, 1n, 3n, 180_000, '', 7n, 'RISING_PER_NODE', 42n, false, []],
  );
});

test('the request has the sequence, the count, the request id and the view', async () => {
  const requestId = '5f2d4c0e-6a57-4d0f-9a43-1c9a5a7d3b11';
  const { texts } = await client.allocateRange({ sequence: 'orders', idCount: 2n, requestId, texts: true });
  assert.deepEqual(texts, ['INV-1', 'INV-2']);
  assert.deepEqual(server.requests, [{ sequence: 'orders', idCount: 2n, requestId, view: 3 }]);
});

test('a name that a program without types mistyped is refused', async () => {
  const mistyped = { sequence: 'orders', count: 3 };
  await assert.rejects(client.allocateRange(mistyped), /^TypeError: count: unknown; the names are sequence, idCount/);
  await assert.rejects(client.batchAllocateRanges([mistyped]), /^TypeError: count: unknown/);
  const stream = { sequence: 'orders', totalIdCount: 3, idCount: 1 };
  assert.throws(() => client.streamRanges(stream), /^TypeError: idCount: unknown/);
  const options = { addresses: server.address, token_file: 'token' };
  assert.throws(() => connect(options), /^TypeError: token_file: unknown/);
});

test('a batch has a range or an error for each request', async () => {
  const [first, wrong, second] = await client.batchAllocateRanges([
    { sequence: 'orders', idCount: 2 },
    { sequence: '' },
    { sequence: 'orders' },
  ]);
  assert.ok(first && 'firstId' in first && second && 'firstId' in second);
  assert.deepEqual(idsOf([first, second]), [1n, 2n, 3n]);
  assert.ok(wrong instanceof IdallocError);
  assert.deepEqual([wrong.reason, wrong.code], ['INVALID_REQUEST', status.INVALID_ARGUMENT]);
});

test('a stream has the total in chunks', async () => {
  const ranges = await collect(client.streamRanges({ sequence: 'orders', totalIdCount: 25, chunkIdCount: 10 }));
  assert.deepEqual(idsOf(ranges), counting(1n, 25));
  assert.deepEqual(ranges.map((range) => range.idCount), [10n, 10n, 5n]);
});

test('a broken stream goes on with the missing ids', async () => {
  server.breaks.push(2, 0, 1);
  const ranges = await collect(client.streamRanges({ sequence: 'orders', totalIdCount: 50, chunkIdCount: 10 }));
  assert.deepEqual(idsOf(ranges), counting(1n, 50));
  assert.equal(server.streams, 4);
});

test('a stream that the caller leaves or aborts ends', async () => {
  const request = { sequence: 'orders', totalIdCount: 10_000, chunkIdCount: 1 };
  for await (const { firstId } of client.streamRanges(request)) if (firstId === 3n) break;
  const abort = new AbortController();
  const reason = new Error('of the caller');
  await assert.rejects(async () => {
    for await (const range of client.streamRanges(request, { signal: abort.signal })) {
      void range;
      abort.abort(reason);
    }
  }, reason);
});

test('document ids come as texts, in one call or as a stream', async () => {
  server.breaks.push(1);
  const three = await client.generateDocIds({ idCount: 3 });
  assert.equal(three.idCount, 3n);
  const ids = [...three];
  assert.deepEqual(ids, [1, 2, 3].map((serial) => `00006b034dfe000000000000000${serial}`));
  const batches = await collect(client.streamDocIds({ totalIdCount: 25, chunkIdCount: 10 }));
  assert.equal(new Set(batches.flatMap((batch) => [...batch])).size, 25);
});

test('UUIDs and the parts of a text', async () => {
  assert.equal((await client.generateUuids({ idCount: 3 })).length, 3);
  assert.match((await client.generateUuids({ version: 4 }))[0]!, /-4000-/);
  assert.deepEqual(await client.parseId('invoices', 'INV-42'), { value: 42n, year: 2026, check: '' });
});

test('an error has reason, code, delay and details', async () => {
  const details = { metadata: { limit: '1000' }, field: 'id_count', quotaSubject: 'identity:x', retryDelayMs: 1500 };
  server.failures.push(failure(status.RESOURCE_EXHAUSTED, 'QUOTA_EXCEEDED', details));
  await assert.rejects(client.allocateRange({ sequence: 'orders' }), (error) => {
    assert.ok(error instanceof IdallocError);
    assert.deepEqual([error.reason, error.code, error.retryDelayMs], ['QUOTA_EXCEEDED', 8, 1500]);
    assert.deepEqual(error.details, { code: 8, ...details });
    return true;
  });
});

test('an unavailable server is asked again, up to five times', async () => {
  const unavailable = failure(status.UNAVAILABLE, 'STORE_UNAVAILABLE');
  server.failures.push(...Array.from({ length: 4 }, () => unavailable));
  assert.equal((await client.allocateRange({ sequence: 'orders' })).firstId, 1n);
  server.failures.push(...Array.from({ length: 5 }, () => unavailable));
  await assert.rejects(client.allocateRange({ sequence: 'orders' }), hasReason('STORE_UNAVAILABLE'));
});

test('a call ends at its deadline, by its signal, or by close', async () => {
  server.change = () => undefined;
  const request = { sequence: 'orders' };
  await assert.rejects(client.allocateRange(request, { timeoutMs: 50 }), hasReason('DEADLINE_EXCEEDED'));
  const reason = new Error('of the caller');
  await assert.rejects(client.allocateRange(request, { signal: AbortSignal.abort(reason) }), reason);
  const abort = new AbortController();
  const aborted = client.allocateRange(request, { signal: abort.signal });
  setImmediate(() => abort.abort(reason));
  await assert.rejects(aborted, reason);
  const running = client.allocateRange(request);
  setImmediate(() => client.close());
  await assert.rejects(running, hasReason('CLOSED'));
  await assert.rejects(client.allocateRange(request), hasReason('CLOSED'));
  await assert.rejects(collect(client.streamRanges({ ...request, totalIdCount: 1 })), hasReason('CLOSED'));
});

test('many calls share a signal without a warning', async () => {
  const warnings: unknown[] = [];
  const listen = (warning: unknown) => warnings.push(warning);
  process.on('warning', listen);
  const { signal } = new AbortController();
  await Promise.all(Array.from({ length: 50 }, () => client.allocateRange({ sequence: 'orders' }, { signal })));
  await new Promise(setImmediate);
  process.off('warning', listen);
  assert.deepEqual(warnings, []);
});

test('refuses arguments before it sends them', async () => {
  for (const idCount of [0, -1, 1.5, NaN, 2 ** 53, 0n, 2n ** 63n]) {
    const found = await client.allocateRange({ sequence: 'orders', idCount }).catch((error: unknown) => error);
    assert.ok(found instanceof IdallocError && found.details.field === 'idCount', String(idCount));
  }
  await assert.rejects(client.allocateRange({ sequence: 'a\ud800' }), hasReason('INVALID_REQUEST'));
  await assert.rejects(client.allocateRange({ sequence: 'a', requestId: '' }), hasReason('INVALID_REQUEST'));
  await assert.rejects(client.allocateRange({ sequence: 'a' }, { timeoutMs: 0 }), TypeError);
  assert.throws(() => client.streamRanges({ sequence: 'a', totalIdCount: 0 }), hasReason('INVALID_REQUEST'));
  assert.deepEqual(server.requests, []);
});

test('the hook gets each call, also each attempt of a stream', async () => {
  const calls: CallReport[] = [];
  const observed = connect({ addresses: server.address, onCall: (call) => calls.push(call) });
  server.breaks.push(1);
  await observed.allocateRange({ sequence: 'orders' });
  await collect(observed.streamRanges({ sequence: 'orders', totalIdCount: 2, chunkIdCount: 1 }));
  observed.close();
  await assert.rejects(observed.allocateRange({ sequence: 'orders' }));
  assert.deepEqual(
    calls.map(({ method, error }) => [method, error?.reason]),
    [
      ['AllocateRange', undefined],
      ['StreamRanges', 'SERVER_DRAINING'],
      ['StreamRanges', undefined],
      ['AllocateRange', 'CLOSED'],
    ],
  );
  assert.ok(calls.every(({ durationMs }) => durationMs >= 0 && durationMs < 60_000));
});

test('the calls in flight when the token file changes all succeed, and so do streams', async () => {
  const folder = mkdtempSync(join(tmpdir(), 'idalloc-'));
  const tokenFile = join(folder, 'token');
  writeFileSync(tokenFile, 'first');
  const withFile = connect({ addresses: server.address, tokenFile });
  const stream = withFile.allocateStream();
  const request = { sequence: 'orders' };
  try {
    await withFile.allocateRange(request);
    const calls: (() => Promise<unknown>)[] = [
      () => withFile.allocateRange(request),
      () => collect(withFile.streamRanges({ ...request, totalIdCount: 3 })),
      () => stream.allocateRange(request),
    ];
    for (const call of calls) {
      const token = `after-${server.tokens.length}-${server.streams}`;
      writeFileSync(tokenFile, token);
      server.token = token;
      await Promise.all([call(), call(), call(), call()]);
    }
    server.token = 'another';
    await assert.rejects(withFile.allocateRange(request), hasReason('UNAUTHENTICATED'));
  } finally {
    withFile.close();
    rmSync(folder, { recursive: true });
  }
});

test('close ends the waits for a retry at once, and the pools', { timeout: 10_000 }, async () => {
  const reports: CallReport[] = [];
  const other = connect({ addresses: server.address, onCall: (call) => reports.push(call) });
  const request = { sequence: 'orders' };
  const [pool, unused, stream] = [other.pool('orders'), other.pool('orders'), other.allocateStream()];
  await Promise.all([pool.next(), stream.allocateRange(request)]);
  const store = () => failure(status.UNAVAILABLE, 'STORE_UNAVAILABLE', { retryDelayMs: 25_000 });
  server.failures.push(store(), store()); // of a prefetch and of the next request
  const next = (async () => {
    for (;;) await pool.next({ timeoutMs: 60_000 });
  })();
  while (server.failures.length > 0) await settle();
  server.breaks.push(0);
  server.endings.push(store());
  const ranges = collect(other.streamRanges({ ...request, totalIdCount: 1 }));
  while (server.endings.length > 0) await settle();
  server.failures.push(failure(status.UNAVAILABLE, 'STORE_UNAVAILABLE', { retryDelayMs: 4000 }));
  const call = other.allocateRange(request, { timeoutMs: 60_000 });
  while (server.failures.length > 0) await settle();
  while (reports.filter(({ error }) => error).length < 3) await settle();
  other.close();
  await Promise.all([next, ranges, call].map((each) => assert.rejects(each, hasReason('CLOSED'))));
  assert.throws(() => unused.tryNext(), hasReason('CLOSED'));
  await assert.rejects(stream.allocateRange(request), hasReason('CLOSED'));
});

test('a stream has no silence of a minute, but as much time as its consumer needs', async () => {
  server.silentAfter = 2;
  const ranges = client.streamRanges({ sequence: 'orders', totalIdCount: 3, chunkIdCount: 1 });
  await ranges.next();
  mock.timers.enable({ apis: ['setTimeout'] });
  mock.timers.tick(300_000);
  assert.equal((await ranges.next()).value?.firstId, 2n);
  const silent = ranges.next();
  await settle();
  mock.timers.tick(60_000);
  await assert.rejects(silent, hasReason('DEADLINE_EXCEEDED'));
});

test('a host that vanished is noticed within 45 s', async () => {
  const wire = await Wire.start(server.address);
  mock.timers.enable({ apis: ['setTimeout'] });
  const failed: unknown[] = [];
  const far = connect({ addresses: wire.address, onCall: ({ error }) => failed.push(error) });
  server.silentAfter = 1;
  const ranges = far.streamRanges({ sequence: 'orders', totalIdCount: 2, chunkIdCount: 1 });
  await ranges.next();
  wire.isHung = true;
  const rest = assert.rejects(ranges.next(), hasReason('CLOSED'));
  await settle();
  for (let seconds = 0; seconds < 45 && failed.length === 0; seconds++) {
    mock.timers.tick(1000);
    await settle();
  }
  assert.ok(hasReason('SERVER_UNREACHABLE')(failed[0]), String(failed[0]));
  far.close();
  await rest;
  wire.stop();
});

test('a server that cannot be reached is named, with a reason of the client', async () => {
  const nowhere = connect({ addresses: ['127.0.0.1:1', '127.0.0.2:1'] });
  await assert.rejects(nowhere.allocateRange({ sequence: 'orders' }), (error) => {
    assert.match(String(error), /^SERVER_UNREACHABLE: 127\.0\.0\.1:1, 127\.0\.0\.2:1: /);
    return error instanceof IdallocError && error.code === status.UNAVAILABLE;
  });
  nowhere.close();
});

test('errors of the client have a status code', async () => {
  const invalid = client.allocateRange({ sequence: 'a', idCount: 0 });
  await assert.rejects(invalid, { reason: 'INVALID_REQUEST', code: status.INVALID_ARGUMENT });
  const unreadable = () => connect({ addresses: server.address, tokenFile: '/no' });
  assert.throws(unreadable, { reason: 'INVALID_CONFIG', code: status.FAILED_PRECONDITION });
  server.change = (reply) => ({ ...reply, range: undefined });
  const wrong = client.allocateRange({ sequence: 'a' });
  await assert.rejects(wrong, { reason: 'INVALID_REPLY', code: status.INTERNAL });
  client.close();
  await assert.rejects(client.generateUuids(), { reason: 'CLOSED', code: status.CANCELLED });
  assert.equal(new IdallocError('OTHER', 'of the test').code, status.UNKNOWN);
});

test('call makes any call with token and retries; errorOf converts the errors of a stub', async () => {
  server.token = 't';
  const withToken = connect({ addresses: server.address, token: 't' });
  server.failures.push(failure(status.UNAVAILABLE, 'STORE_UNAVAILABLE', { retryDelayMs: 1 }));
  const request = GetSequenceRequest.fromPartial({ name: 'orders' });
  const { sequence } = await withToken.call(SequenceServiceService.getSequence, request);
  assert.equal(sequence?.name, 'orders');
  withToken.close();
  const stub = new SequenceServiceClient(server.address, credentials.createInsecure());
  const error = await new Promise((resolve) => stub.getSequence(request, (failed) => resolve(errorOf(failed))));
  assert.ok(hasReason('UNAUTHENTICATED')(error));
  stub.close();
});

test('a pool waits for its first range; its error has details', async () => {
  const details = { metadata: { store: 'crate' }, retryDelayMs: 6000 };
  server.failures.push(failure(status.UNAVAILABLE, 'STORE_UNAVAILABLE', details));
  const failed = await client.pool('orders').next({ timeoutMs: 5000 }).catch((error: unknown) => error);
  assert.ok(failed instanceof IdallocError);
  assert.deepEqual([failed.reason, failed.details], ['STORE_UNAVAILABLE', { code: 14, ...details }]);
  server.failures.push(failure(status.UNAVAILABLE, 'STORE_UNAVAILABLE'));
  assert.equal(await client.pool('orders').next(), 1n);
});

test('a call that is late has the error of its last attempt', async () => {
  server.failures.push(failure(status.UNAVAILABLE, 'STORE_UNAVAILABLE', { retryDelayMs: 1 }));
  server.change = () => undefined;
  const late = await client.allocateRange({ sequence: 'orders' }, { timeoutMs: 1500 }).catch(String);
  assert.match(String(late), /^DEADLINE_EXCEEDED: .*; the last attempt: STORE_UNAVAILABLE: /);
});

test('an option may be undefined', async () => {
  const none = undefined;
  const tls = { ca: none, cert: none, key: none, serverName: none };
  connect({ addresses: 'a:1', tls, token: none, tokenFile: none, timeoutMs: none, insecure: none, onCall: none }).close();
  const request = { sequence: 'orders', idCount: none, requestId: none, texts: none };
  const range = await client.allocateRange(request, { signal: none, timeoutMs: none });
  assert.equal(range.idCount, 1n);
  const sizes = { totalIdCount: 1, chunkIdCount: none };
  await collect(client.streamRanges({ sequence: 'orders', texts: none, ...sizes }));
  await collect(client.streamDocIds({ ...sizes, offset: none, increment: none }));
  await client.generateUuids({ idCount: none, version: none });
  await client.pool('orders', { maxRangeSize: none, clock: none }).next({ timeoutMs: none, signal: none });
});

test('connect refuses options that contradict each other', () => {
  const token = 't';
  const wrong: [ConnectOptions, RegExp][] = [
    [{ addresses: [] }, /must not be empty/],
    [{ addresses: 'localhost' }, /HOST:PORT/],
    [{ addresses: 'http://localhost:50051' }, /without a scheme/],
    [{ addresses: 'dns:///idalloc' }, /HOST:PORT/],
    [{ addresses: '10.0.0.1:1,b' }, /HOST:PORT/],
    [{ addresses: 'idalloc.example:50051', token }, /unencrypted/],
    [{ addresses: ['127.0.0.1:1', '10.0.0.1:1'], token }, /unencrypted/],
    [{ addresses: 'dns://127.0.0.1/idalloc.example:50051', tokenFile: 'f' }, /unencrypted/],
    [{ addresses: 'localhost:1', token, tokenFile: 'f' }, /one of them/],
    [{ addresses: 'localhost:1', token: 'a b' }, /ASCII/],
    [{ addresses: 'localhost:1', tls: { cert: 'f' } }, /together/],
    [{ addresses: 'localhost:1', timeoutMs: -1 }, /timeoutMs/],
  ];
  for (const [options, message] of wrong) {
    assert.throws(() => connect(options), (error) => error instanceof TypeError && message.test(error.message));
  }
  for (const target of ['localhost:1', '127.9.9.9:1', '[::1]:1', 'unix:/run/a', 'dns:///localhost:1', 'ipv4:127.0.0.1:1']) {
    assert.ok(addressesOf(target).every(isLocal), target);
  }
  connect({ addresses: ['[::1]:1', '[::2]:1'] }).close();
  connect({ addresses: 'idalloc.example:50051', token, tls: true }).close();
  connect({ addresses: 'idalloc.example:50051', token, insecure: true }).close();
});

test('a pool outlives a rolling restart in which all addresses change', async () => {
  assert.ok(lookup === dns.promises.lookup);
  const [, port] = server.address.split(':');
  let addresses = ['127.0.0.1', '127.0.0.9']; // no server is at the last one
  mock.method(dns.promises, 'lookup', async (name: string) => {
    assert.equal(name, 'idalloc.example');
    return addresses.map((address) => ({ address, family: 4 }));
  });
  const named = connect({ addresses: `idalloc.example:${port}` });
  const pool = named.pool('orders', { maxRangeSize: 100 });
  const ids = new Set<bigint>();
  const take = async (count: number) => {
    for (let left = count; left > 0; left--) ids.add(await pool.next());
  };
  await take(1000);
  const servers = [server];
  for (const address of ['127.0.0.2', '127.0.0.3']) {
    const next = await FakeServer.start(Number(port), address);
    next.nextId = BigInt(servers.length) * 1_000_000n;
    addresses = [address, '127.0.0.9'];
    servers.at(-1)!.stop();
    servers.push(next);
    await take(1000);
  }
  pool.close();
  named.close();
  servers.at(-1)!.stop();
  assert.equal(ids.size, 3000);
  assert.ok(servers.every((each) => each.sizes.length > 5));
});

test('asyncDispose closes client, pool and stream', async () => {
  const [pool, stream] = [client.pool('orders'), client.allocateStream()];
  await Promise.all([pool.next(), stream.generateDocIds()]);
  for (const each of [pool, stream, client]) await each[Symbol.asyncDispose]();
  await assert.rejects(pool.next(), hasReason('CLOSED'));
  await assert.rejects(stream.generateDocIds(), hasReason('CLOSED'));
  await assert.rejects(client.generateDocIds(), hasReason('CLOSED'));
});

test('a pool is an async iterator', async () => {
  const pool = client.pool('orders');
  const ids: bigint[] = [];
  for await (const id of pool) {
    ids.push(id);
    if (ids.length === 100) break;
  }
  assert.deepEqual(ids, counting(1n, 100));
  assert.equal(await pool.next(), 101n);
  pool.close();
  assert.deepEqual(await collect(pool), []);
});
