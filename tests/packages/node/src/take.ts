// Takes ids of `orders` from a pool until it has TOTAL of them and its input ends: take.js SERVERS CA TOKEN_FILE TOTAL FILE.
// It writes the ids as int64, and prints the errors that it got.

import { openSync, writeSync } from 'node:fs';
import { connect, IdallocError } from '@idalloc/client';

const [servers, ca, tokenFile, total, file] = process.argv.slice(2) as [string, string, string, string, string];
const CALLERS = 64;
const client = connect({ addresses: servers.split(','), tls: { ca }, tokenFile });
const pool = client.pool('orders', { maxRangeSize: 1000 });
const output = openSync(file, 'w');
const errors: string[] = [];
let count = 0;
let isLast = false;
process.stdin.on('end', () => (isLast = true)).resume();

async function take(): Promise<void> {
  let buffer = Buffer.alloc(8 * 10_000);
  let used = 0;
  while (!isLast || count < Number(total)) {
    try {
      buffer.writeBigInt64LE(await pool.next(), used);
      count++;
      used += 8;
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

await Promise.all(Array.from({ length: CALLERS }, take));
pool.close();
client.close();
console.log(JSON.stringify({ count, errors }));
