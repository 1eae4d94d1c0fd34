import assert from 'node:assert/strict';
import { afterEach, beforeEach, mock, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { setFlagsFromString } from 'node:v8';
import { runInNewContext } from 'node:vm';
import { status } from '@grpc/grpc-js';
import { type AllocateStream, type CallReport, Client, connect } from '../src/index.js';
import { failure, FakeServer, hasReason, settle } from './fake-server.js';

let server: FakeServer;
let client: Client;
let stream: AllocateStream;

beforeEach(async () => {
  server = await FakeServer.start();
  client = connect({ addresses: server.address });
  stream = client.allocateStream();
});
afterEach(() => {
  stream.close();
  client.close();
  server.stop();
  mock.timers.reset();
});

const orders = { sequence: 'orders' };
const patient = { timeoutMs: 60_000 };

async function ids(count: number): Promise<bigint[]> {
  const ranges = await Promise.all(Array.from({ length: count }, () => stream.allocateRange(orders, patient)));
  return ranges.flatMap((range) => [...range]);
}

test('many calls share one stream, also more than may be in flight', async () => {
  assert.equal(new Set(await ids(700)).size, 700);
  assert.equal([...(await stream.generateDocIds({ idCount: 2 }))].length, 2);
  const { texts } = await stream.allocateRange({ ...orders, idCount: 2, texts: true });
  assert.equal(texts.length, 2);
  assert.equal(server.streams, 1);
});

test('at most 1,000 requests have no answer: one more would end the stream', async () => {
  server.isSilent = true;
  const all = Promise.allSettled(Array.from({ length: 1500 }, () => stream.allocateRange(orders, patient)));
  while (server.received < 500) await sleep(1);
  await client.allocateRange(orders); // it arrives after all that was sent before
  assert.equal(server.received, 500);
  stream.close();
  await all;
});

test('a broken stream is opened again, and the requests without an answer are sent again', async () => {
  server.breaks.push(10, 0, 5);
  assert.equal(new Set(await ids(100)).size, 100);
  assert.equal(server.streams, 4);
});

test('a lasting error fails all calls; the next one opens another stream', async () => {
  server.endings.push(failure(status.UNAUTHENTICATED, 'UNAUTHENTICATED'));
  server.breaks.push(0);
  const all = await Promise.allSettled([1, 2].map(() => stream.allocateRange(orders)));
  assert.ok(all.every((each) => each.status === 'rejected' && hasReason('UNAUTHENTICATED')(each.reason)));
  assert.equal((await ids(2)).length, 2);
});

test('an answer with a wrong number fails all calls; the next one opens another stream', async () => {
  server.skew = 1n;
  const all = await Promise.allSettled([1, 2].map(() => stream.allocateRange(orders)));
  assert.ok(all.every((each) => each.status === 'rejected' && hasReason('INVALID_REPLY')(each.reason)));
  server.skew = 0n;
  assert.equal((await ids(2)).length, 2);
  assert.equal(server.streams, 2);
});

test('an error belongs to its request; one that may end by itself is asked again', async () => {
  server.failures.push(failure(status.NOT_FOUND, 'SEQUENCE_NOT_FOUND'));
  server.failures.push(failure(status.UNAVAILABLE, 'STORE_UNAVAILABLE'));
  const [missing, retried, other] = await Promise.allSettled([1, 2, 3].map(() => stream.allocateRange(orders)));
  assert.ok(missing?.status === 'rejected' && hasReason('SEQUENCE_NOT_FOUND')(missing.reason));
  assert.equal(retried?.status, 'fulfilled');
  assert.equal(other?.status, 'fulfilled');
});

test('a request that the stream has no room for is sent again in time; other limits last', async () => {
  const exceeded = (subject: string, retryDelayMs = 1) =>
    failure(status.RESOURCE_EXHAUSTED, 'QUOTA_EXCEEDED', { metadata: { subject }, retryDelayMs });
  server.failures.push(...Array.from({ length: 10 }, () => exceeded('stream')));
  assert.equal((await ids(1)).length, 1);
  server.failures.push(exceeded('billing'));
  await assert.rejects(stream.allocateRange(orders), hasReason('QUOTA_EXCEEDED'));
  server.failures.push(exceeded('stream', 4000));
  await assert.rejects(stream.allocateRange(orders, { timeoutMs: 2000 }), hasReason('QUOTA_EXCEEDED'));
  const unavailable = failure(status.UNAVAILABLE, 'STORE_UNAVAILABLE', { retryDelayMs: 1 });
  server.failures.push(...Array.from({ length: 5 }, () => unavailable));
  await assert.rejects(stream.allocateRange(orders), hasReason('STORE_UNAVAILABLE'));
  assert.equal(server.failures.length, 0);
});

test('close fails also a call that waits to be sent again', async () => {
  server.failures.push(failure(status.UNAVAILABLE, 'STORE_UNAVAILABLE', { retryDelayMs: 2000 }));
  server.failures.push(failure(status.NOT_FOUND, 'SEQUENCE_NOT_FOUND'));
  const waiting = stream.allocateRange(orders);
  await assert.rejects(stream.allocateRange(orders), hasReason('SEQUENCE_NOT_FOUND'));
  stream.close();
  await assert.rejects(waiting, hasReason('CLOSED'));
});

test('a call that is late has the error of its last attempt', async () => {
  await ids(1);
  server.stop();
  const late = await stream.allocateRange(orders, { timeoutMs: 1500 }).catch(String);
  assert.match(String(late), /^DEADLINE_EXCEEDED: no answer within 1500 ms; the last attempt: SERVER_UNREACHABLE: /);
});

test('a call ends at its deadline, by its signal or by close; the others get their answers', async () => {
  server.isSilent = true;
  const abort = new AbortController();
  const reason = new Error('of the caller');
  const late = stream.allocateRange(orders, { timeoutMs: 50 });
  const aborted = stream.allocateRange(orders, { signal: abort.signal });
  abort.abort(reason);
  await assert.rejects(aborted, reason);
  await assert.rejects(late, hasReason('DEADLINE_EXCEEDED'));
  const waiting = stream.allocateRange(orders);
  stream.close();
  await assert.rejects(waiting, hasReason('CLOSED'));
  await assert.rejects(stream.allocateRange(orders), hasReason('CLOSED'));
});

test('each request is one call for the hook', async () => {
  const calls: CallReport[] = [];
  const observed = connect({ addresses: server.address, onCall: (call) => calls.push(call) });
  server.failures.push(failure(status.NOT_FOUND, 'SEQUENCE_NOT_FOUND'));
  const over = observed.allocateStream();
  await Promise.allSettled([over.allocateRange(orders), over.allocateRange(orders), over.generateDocIds()]);
  observed.close();
  assert.deepEqual(
    calls.map(({ method, error }) => [method, error?.reason]),
    ['SEQUENCE_NOT_FOUND', undefined, undefined].map((reason) => ['AllocateStream', reason]),
  );
});

test('the requests of callers that left are forgotten', async () => {
  setFlagsFromString('--expose_gc');
  const gc = runInNewContext('gc') as () => void;
  const used = () => {
    gc();
    return process.memoryUsage().heapUsed;
  };
  server.isSilent = true;
  const first = Promise.allSettled(Array.from({ length: 500 }, () => stream.allocateRange(orders, patient)));
  while (server.received < 500) await sleep(1);
  const before = used();
  for (let round = 0; round < 20; round++) {
    const abort = new AbortController();
    const calls = Array.from({ length: 1000 }, (_, index) => {
      const sequence = `${round} ${index} `.padEnd(1000, 'x').slice(1);
      return stream.allocateRange({ sequence }, { signal: abort.signal, ...patient });
    });
    abort.abort();
    await Promise.allSettled(calls);
  }
  const kept = used() - before;
  assert.ok(kept < 5e6, `${kept} bytes`); // of 20 million
  stream.close();
  await first;
});

test('a stream without an answer for a minute is opened again', async () => {
  await ids(1);
  stream.close();
  stream = client.allocateStream();
  mock.timers.enable({ apis: ['setTimeout', 'Date'], now: Date.now() });
  server.isSilent = true;
  const late = stream.allocateRange(orders, { timeoutMs: 60_050 }).catch(String);
  const waiting = stream.allocateRange(orders, { timeoutMs: 300_000 });
  while (server.received < 3) await settle();
  server.isSilent = false;
  mock.timers.tick(60_000);
  await settle();
  mock.timers.tick(50);
  assert.match(String(await late), /last attempt: SERVER_UNREACHABLE: 127.0.0.1:[0-9]+: the stream broke: no answer/);
  await settle();
  mock.timers.tick(1000);
  assert.equal((await waiting).firstId, 2n);
  assert.equal(server.streams, 3);
});

test('so is one whose requests are all past their deadline', async () => {
  await ids(1);
  stream.close();
  stream = client.allocateStream();
  mock.timers.enable({ apis: ['setTimeout', 'Date'], now: Date.now() });
  server.isSilent = true;
  const late = stream.allocateRange(orders, { timeoutMs: 1000 });
  while (server.received < 2) await settle();
  server.isSilent = false;
  mock.timers.tick(1000);
  await assert.rejects(late, hasReason('DEADLINE_EXCEEDED'));
  mock.timers.tick(1000);
  await settle();
  assert.equal((await stream.allocateRange(orders)).firstId, 2n);
  assert.equal(server.streams, 3);
});
