// Measures the pool without a server: `npm run bench`. Figures are of CPU time, as other processes do not change it.

import { type AllocatedRange, Pool } from './pool.js';

const COUNT = 1_000_000;
const TURNS = 5;

let nextId = 1n;
async function allocate(idCount: bigint): Promise<AllocatedRange> {
  const firstId = nextId;
  nextId += idCount;
  return { firstId, lastId: nextId - 1n, step: 1n, idCount, ttlMs: 180_000, period: '' };
}

const pool = new Pool(allocate);
let sink: bigint; // keeps the loops from being removed

const ways: Record<string, () => Promise<void>> = {
  'await pool.next()': async () => {
    for (let left = COUNT; left > 0; left--) sink = await pool.next();
  },
  'pool.tryNext() ?? (await pool.next())': async () => {
    for (let left = COUNT; left > 0; left--) sink = pool.tryNext() ?? (await pool.next());
  },
  'await Promise.resolve(1n)': async () => {
    for (let left = COUNT; left > 0; left--) sink = await Promise.resolve(1n);
  },
};

const figures = new Map<string, number[]>();
for (let turn = 0; turn <= TURNS; turn++) {
  for (const [way, run] of Object.entries(ways)) {
    const before = process.cpuUsage();
    await run();
    const { user, system } = process.cpuUsage(before);
    // The first turn compiles.
    if (turn > 0) figures.set(way, [...(figures.get(way) ?? []), ((user + system) * 1000) / COUNT]);
  }
}
for (const [way, all] of figures) {
  const median = all.sort((a, b) => a - b)[Math.floor(TURNS / 2)]!;
  console.log(`${way}: ${median.toFixed(0)} ns of CPU time an id`);
}
pool.close();
void sink!;
