import assert from 'node:assert/strict';
import cluster from 'node:cluster';
import { once } from 'node:events';
import { test } from 'node:test';
import { fileURLToPath } from 'node:url';
import { Worker } from 'node:worker_threads';
import { Pool } from '../src/index.js';

const CHILD = fileURLToPath(new URL('copies.child.js', import.meta.url));

/** A pool with ids at hand. */
async function warmPool(): Promise<Pool> {
  let nextId = 1n;
  const pool = new Pool(async (idCount) => {
    const firstId = nextId;
    nextId += idCount;
    return { firstId, lastId: nextId - 1n, step: 1n, idCount, ttlMs: 180_000, period: '' };
  });
  for (let left = 100; left > 0; left--) await pool.next();
  assert.notEqual(pool.tryNext(), undefined);
  return pool;
}

test('a structured clone of a pool has nothing of it', async () => {
  const copy = structuredClone(await warmPool()) as object;
  assert.deepEqual(Reflect.ownKeys(copy), []);
  assert.ok(!(copy instanceof Pool));
});

test('a worker thread gets nothing of a pool', async () => {
  const worker = new Worker(CHILD, { workerData: await warmPool() });
  const [found] = (await once(worker, 'message')) as [unknown];
  assert.deepEqual(found, { keys: [], next: 'undefined' });
});

for (const serialization of ['json', 'advanced'] as const) {
  test(`a worker of cluster gets nothing of a pool (${serialization})`, async () => {
    cluster.setupPrimary({ exec: CHILD, serialization });
    const worker = cluster.fork();
    await once(worker, 'message'); // it listens
    const answer = once(worker, 'message');
    worker.send((await warmPool()) as unknown as object);
    const [found] = (await answer) as [unknown];
    assert.deepEqual(found, { keys: [], next: 'undefined' });
  });
}
