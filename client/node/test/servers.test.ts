// Servers that hang or fail, in the shapes of docs/explanation/client-calls.md.

import assert from 'node:assert/strict';
import dns from 'node:dns';
import { afterEach, beforeEach, mock, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { status } from '@grpc/grpc-js';
import { type CallReport, type Client, connect } from '../src/index.js';
import { GetSequenceRequest, SequenceServiceService } from '../src/v1.js';
import { failure, FakeServer } from './fake-server.js';
import { Wire } from './wire.js';

const orders = { sequence: 'orders' };
// No test may use these proxies.
for (const name of ['http_proxy', 'https_proxy', 'grpc_proxy', 'all_proxy']) process.env[name] = 'http://127.0.0.1:9';
let servers: FakeServer[];
let wires: Wire[];
let client: Client;
let reports: CallReport[];

beforeEach(async () => {
  servers = await Promise.all(['', '', ''].map(() => FakeServer.start()));
  servers.forEach((server, index) => (server.nextId = BigInt(index) * 1_000_000n + 1n));
  wires = await Promise.all(servers.map(({ address }) => Wire.start(address)));
});
afterEach(() => {
  client.close();
  for (const each of [...wires, ...servers]) each.stop();
  mock.restoreAll();
});

function open(addresses: string | string[] = addressesOf(wires)): void {
  const mine: CallReport[] = [];
  reports = mine;
  client = connect({ addresses, onCall: (report) => mine.push(report) });
}

/** Calls for a while, one after the other; returns the longest time in milliseconds. */
async function longest(forMs: number, call: () => Promise<unknown>): Promise<number> {
  let most = 0;
  for (const end = performance.now() + forMs; performance.now() < end; await sleep(1)) {
    const before = performance.now();
    await call();
    most = Math.max(most, performance.now() - before);
  }
  return most;
}

const addressesOf = (some: Wire[]) => some.map(({ address }) => address);
const shapes: Record<string, () => Promise<string | string[]>> = {
  'of two addresses': async () => addressesOf(wires.slice(0, 2)),
  'of three addresses': async () => addressesOf(wires).join(),
  'of two addresses of a name': async () => {
    const port = wires[0]!.address.split(':')[1];
    const other = await FakeServer.start(Number(port), '127.0.0.2');
    other.nextId = 3_000_001n;
    servers.push(other);
    const found = ['127.0.0.1', '127.0.0.2'].map((address) => ({ address, family: 4 }));
    mock.method(dns.promises, 'lookup', async () => found);
    return `dns:///idalloc.example:${port}`;
  },
  'of two behind one address': async () => {
    const balancer = await Wire.start(addressesOf(wires.slice(0, 2)));
    wires.push(balancer);
    return balancer.address;
  },
};

for (const [shape, addresses] of Object.entries(shapes)) {
  test(`a server ${shape} hangs: no gap of 2 s`, async () => {
    open(await addresses());
    const pool = client.pool('orders', { maxRangeSize: 10 });
    const ids: bigint[] = [];
    const next = async () => void ids.push(await pool.next());
    const call = () => client.allocateRange({ ...orders, requestId: crypto.randomUUID() });
    const read = () => client.call(SequenceServiceService.getSequence, GetSequenceRequest.fromPartial({ name: 'orders' }));
    const longestOfAll = (ms: number) => Promise.all([next, call, read].map((each) => longest(ms, each)));
    await longestOfAll(200);
    wires[0]!.isHung = true;
    const gaps = await longestOfAll(2500);
    wires[0]!.isHung = false;
    await longestOfAll(500);
    assert.ok(gaps.every((gap) => gap < 2000), String(gaps));
    assert.deepEqual(reports.filter(({ error }) => error), []);
    assert.equal(new Set(ids).size, ids.length);
  });
}

test('slow servers get each call once, and probes', async () => {
  open();
  for (const server of servers) server.delayMs = 1500;
  const pool = client.pool('orders');
  await Promise.all([pool.next(), client.allocateRange(orders), client.allocateRange({ ...orders, requestId: 'a' })]);
  pool.close();
  const sent = servers.flatMap(({ requests }) => requests).length;
  assert.ok(sent <= 4, `${sent} requests for 3 calls and a prefetch`);
});

test('the ids of a late refill are dropped and reported', async () => {
  open();
  wires[0]!.isHung = true;
  const id = await client.pool('orders', { maxRangeSize: 1 }).next();
  wires[0]!.isHung = false;
  while (!reports.some(({ dropped }) => dropped)) await sleep(10);
  const late = reports.filter(({ dropped }) => dropped).map(({ method, dropped }) => [method, dropped]);
  assert.deepEqual([id, late], [1_000_001n, [['AllocateRange', 1n]]]);
});

test('a hung server gets a call without a request id once', async () => {
  open();
  wires[0]!.isHung = true;
  await assert.rejects(client.allocateRange(orders, { timeoutMs: 1500 }), { reason: 'DEADLINE_EXCEEDED' });
  for (let left = 4; left > 0; left--) await client.allocateRange(orders);
  assert.deepEqual(servers.map(({ requests }) => requests.length), [0, 2, 2]);
});

test('a round asks each usable server, not one that stopped', async () => {
  open();
  for (const { failures } of servers.slice(0, 2)) failures.push(failure(status.UNAVAILABLE, 'STORE_UNAVAILABLE'));
  const counts = async () => {
    for (let left = 4; left > 0; left--) await client.allocateRange(orders);
    return servers.map(({ requests }) => requests.length);
  };
  assert.deepEqual(await counts(), [1, 1, 2]);
  wires[0]!.stop();
  assert.deepEqual(await counts(), [1, 3, 4]);
});

test('each caller of a pool waits for its own time', async () => {
  for (const wire of wires) wire.isHung = true;
  open();
  const pool = client.pool('orders');
  const late = Array.from({ length: 8 }, () => assert.rejects(pool.next({ timeoutMs: 1000 }), { reason: 'DEADLINE_EXCEEDED' }));
  const patient = pool.next({ timeoutMs: 60_000 });
  const before = performance.now();
  await Promise.all(late);
  assert.ok(performance.now() - before < 5000, 'one after the other');
  for (const wire of wires) wire.isHung = false;
  await patient;
});
