import assert from 'node:assert/strict';
import { afterEach, beforeEach, test } from 'node:test';
import { status } from '@grpc/grpc-js';
import { type AllocateStream, Client, connect, IdallocError } from '../src/index.js';
import { failure, FakeServer } from './fake-server.js';

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
});

function hasReason(reason: string): (error: unknown) => boolean {
  return (error) => error instanceof IdallocError && error.reason === reason;
}

const orders = { sequence: 'orders' };

async function ids(count: number): Promise<bigint[]> {
  const ranges = await Promise.all(Array.from({ length: count }, () => stream.allocateRange(orders, { timeoutMs: 60_000 })));
  return ranges.flatMap((range) => [...range]);
}

test('many calls share one stream, also more than may be in flight', async () => {
  assert.equal(new Set(await ids(700)).size, 700);
  assert.equal([...(await stream.generateDocIds({ idCount: 2 }))].length, 2);
  const { texts } = await stream.allocateRange({ ...orders, idCount: 2, texts: true });
  assert.equal(texts.length, 2);
  assert.equal(server.streams, 1);
});

test('a broken stream is opened again, and the requests without an answer are sent again', async () => {
  server.breaks.push(10, 0, 5);
  assert.equal(new Set(await ids(100)).size, 100);
  assert.equal(server.streams, 4);
});

test('an error belongs to its request; one that may end by itself is asked again', async () => {
  server.failures.push(failure(status.NOT_FOUND, '', {}, 'SEQUENCE_NOT_FOUND'));
  server.failures.push(failure(status.UNAVAILABLE, '', {}, 'STORE_UNAVAILABLE'));
  const [missing, retried, other] = await Promise.allSettled([1, 2, 3].map(() => stream.allocateRange(orders)));
  assert.ok(missing?.status === 'rejected' && hasReason('SEQUENCE_NOT_FOUND')(missing.reason));
  assert.equal(retried?.status, 'fulfilled');
  assert.equal(other?.status, 'fulfilled');
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
  await assert.rejects(waiting, hasReason('CANCELLED'));
  await assert.rejects(stream.allocateRange(orders), hasReason('CANCELLED'));
});

test('without a server it fails after a few seconds at most', async () => {
  server.stop();
  await assert.rejects(stream.allocateRange(orders, { timeoutMs: 20_000 }), hasReason('UNAVAILABLE'));
});
