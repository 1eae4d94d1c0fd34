// Measures the pool without a server, in CPU time, as other processes do not change it: `npm run bench`.
// Arguments are other modules with a Pool, which are measured in the same run.

import { pathToFileURL } from 'node:url';
import { Pool } from './src/index.js';

const COUNT = 1_000_000;
const CALLERS = 64;
const TURNS = 5;

interface Takes {
  next(): Promise<bigint>;
  tryNext(): bigint | undefined;
  close(): void;
}

let nextId = 1n;
async function allocate(idCount: bigint) {
  const firstId = nextId;
  nextId += idCount;
  return { firstId, lastId: nextId - 1n, step: 1n, idCount, ttlMs: 180_000, period: '' };
}

let sink: bigint; // keeps the loops from being removed

async function take(pool: Takes, count: number): Promise<void> {
  for (let left = count; left > 0; left--) sink = await pool.next();
}

const ways: Record<string, (pool: Takes) => Promise<unknown>> = {
  'one caller, await pool.next()': (pool) => take(pool, COUNT),
  [`${CALLERS} callers, await pool.next()`]: (pool) =>
    Promise.all(Array.from({ length: CALLERS }, () => take(pool, COUNT / CALLERS))),
  'one caller, pool.tryNext() ?? (await pool.next())': async (pool) => {
    for (let left = COUNT; left > 0; left--) sink = pool.tryNext() ?? (await pool.next());
  },
};

const pools = new Map<string, Takes>([['@idalloc/client', new Pool(allocate)]]);
for (const file of process.argv.slice(2)) {
  const other = (await import(pathToFileURL(file).href)) as { Pool: new (take: typeof allocate) => Takes };
  pools.set(file, new other.Pool(allocate));
}
const figures = new Map<string, number[]>();
for (let turn = 0; turn <= TURNS; turn++) {
  for (const [name, pool] of pools) {
    for (const [way, run] of Object.entries(ways)) {
      const before = process.cpuUsage();
      await run(pool);
      const { user, system } = process.cpuUsage(before);
      // The first turn compiles.
      if (turn > 0) figures.set(`${name}: ${way}`, [...(figures.get(`${name}: ${way}`) ?? []), (user + system) / 1e3]);
    }
  }
}
for (const [way, all] of figures) {
  const median = all.sort((a, b) => a - b)[Math.floor(TURNS / 2)]!;
  const nanoseconds = (median * 1e6) / COUNT;
  console.log(`${way}: ${nanoseconds.toFixed(0)} ns of CPU time an id, ${(1e3 / nanoseconds).toFixed(1)} million a second`);
}
for (const pool of pools.values()) pool.close();
void sink!;
