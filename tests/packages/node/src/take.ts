// Takes ids of `orders` until it has TOTAL of them and its input ends: take.js SERVERS CA TOKEN_FILE TOTAL FILE.
// Most callers share a pool, and some a stream. It writes the ids as int64, and prints the errors that it got.

import { openSync, writeSync } from 'node:fs';
import { connect, IdallocError } from '@idalloc/client';

const [servers, ca, tokenFile, total, file] = process.argv.slice(2) as [string, string, string, string, string];
const [POOL_CALLERS, STREAM_CALLERS] = [64, 8];
const client = connect({ addresses: servers.split(','), tls: { ca }, tokenFile });
const pool = client.pool('orders', { maxRangeSize: 1000 });
const stream = client.allocateStream();
const output = openSync(file, 'w');
const errors: string[] = [];
let count = 0;
let isLast = false;
process.stdin.on('end', () => (isLast = true)).resume();

async function take(next: () => Promise<Iterable<bigint>>): Promise<void> {
  const buffer = Buffer.alloc(8 * 1_000);
  let used = 0;
  while (!isLast || count < Number(total)) {
    try {
      for (const id of await next()) {
        buffer.writeBigInt64LE(id, used);
        count++;
        used += 8;
      }
    } catch (error) {
      if (!(error instanceof IdallocError)) throw error;
      errors.push(error.reason);
    }
    if (used === buffer.length || (isLast && count >= Number(total))) {
      writeSync(output, buffer, 0, used);
      used = 0;
      await new Promise(setImmediate); // so that input is read
    }
  }
  writeSync(output, buffer, 0, used);
}

await Promise.all([
  ...Array.from({ length: POOL_CALLERS }, () => take(async () => [await pool.next()])),
  ...Array.from({ length: STREAM_CALLERS }, () => take(() => stream.allocateRange({ sequence: 'orders', idCount: 10 }))),
]);
pool.close();
stream.close();
client.close();
console.log(JSON.stringify({ count, errors }));
