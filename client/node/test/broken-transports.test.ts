// A proxy breaks connections as the table says that the tests of all clients read.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, describe, test } from 'node:test';
import { type Client, connect, type IdallocError } from '../src/index.js';
import { FakeServer } from './fake-server.js';
import { type Broken, Wire } from './wire.js';

const file = new URL('../../../../tests/support/broken_transports.json', import.meta.url);
const orders = { sequence: 'orders' };
const patient = { timeoutMs: 60_000 };
const server = await FakeServer.start();
after(() => server.stop());

async function streamed(client: Client): Promise<bigint[]> {
  const ids: bigint[] = [];
  for await (const range of client.streamRanges({ ...orders, totalIdCount: 6, chunkIdCount: 2 }, patient)) ids.push(...range);
  return ids;
}

/** Makes each kind of call over a proxy; returns what came of each. */
async function outcomes(broken: Broken, breaks: number, timeoutMs: number): Promise<PromiseSettledResult<bigint[]>[]> {
  const wire = await Wire.start(server.address, broken, breaks);
  const client = connect({ addresses: wire.address });
  const found = await Promise.allSettled([
    client.allocateRange(orders, patient).then((range) => [...range]),
    streamed(client),
    client.allocateStream().allocateRange(orders, patient).then((range) => [...range]),
    client.pool('orders').next({ timeoutMs }).then((id) => [id]),
  ]);
  client.close();
  wire.stop();
  assert.ok(wire.connections < 60, `${wire.connections} connections`);
  return found;
}

async function reasons(broken: Broken, timeoutMs: number): Promise<IdallocError[]> {
  return (await outcomes(broken, Infinity, timeoutMs)).map((each) => each.status === 'rejected' && each.reason);
}

describe('broken transports', { concurrency: true, timeout: 120_000 }, () => {
  for (const broken of JSON.parse(readFileSync(file, 'utf8')) as Broken[]) {
    test(`${broken.name} is SERVER_UNREACHABLE`, async () => {
      // On a busy machine the time of the pool may be over before a connection breaks.
      let failed = await reasons(broken, 3000);
      if (failed.some((each) => each?.reason === 'DEADLINE_EXCEEDED')) failed = await reasons(broken, 60_000);
      assert.deepEqual(failed.map((each) => each && [each.reason, each.code]), Array(4).fill(['SERVER_UNREACHABLE', 14]));
      // Calls outlast two of these connections.
      const ids = (await outcomes(broken, 2, 60_000)).flatMap((each) => (each.status === 'fulfilled' ? each.value : []));
      assert.equal(new Set(ids).size, 9);
    });
  }
});
