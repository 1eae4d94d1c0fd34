// Measures the pool without a server, in CPU time, as other processes do not change it: `npm run bench`.

import { Pool } from './src/index.js';

const COUNT = 1_000_000;
const CALLERS = 64;
const TURNS = 5;

let nextId = 1n;
const pool = new Pool(async (idCount) => {
  const firstId = nextId;
  nextId += idCount;
  return { firstId, lastId: nextId - 1n, step: 1n, idCount, ttlMs: 180_000, period: '' };
});
let sink: bigint; // keeps the loops from being removed

async function take(count: number): Promise<void> {
  for (let left = count; left > 0; left--) sink = await pool.next();
}

const ways: Record<string, () => Promise<unknown>> = {
  'one caller, await pool.next()': () => take(COUNT),
  [`${CALLERS} callers, await pool.next()`]: () =>
    Promise.all(Array.from({ length: CALLERS }, () => take(COUNT / CALLERS))),
  'one caller, pool.tryNext() ?? (await pool.next())': async () => {
    for (let left = COUNT; left > 0; left--) sink = pool.tryNext() ?? (await pool.next());
  },
  // What the language itself costs.
  'one caller, await Promise.resolve(1n)': async () => {
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
  console.log(`${way}: ${median.toFixed(0)} ns of CPU time an id, ${(1e3 / median).toFixed(1)} million a second`);
}
pool.close();
void sink!;
