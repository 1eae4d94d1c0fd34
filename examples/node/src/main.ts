// Gets ids from an idalloc server in six ways. README.md describes the options.

import { randomUUID } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { parseArgs } from 'node:util';
import { status } from '@grpc/grpc-js';
import { AllocateRangeRequest, DocIdView, GenerateDocIdRequest } from '../gen/idalloc/v1/id_allocator.js';
import { Backoff, Client } from './client.js';
import { expand } from './doc-ids.js';
import { fromStatus, IdallocError } from './errors.js';
import { IssuedLog } from './issued-log.js';
import { Pool } from './pool.js';

const USAGE =
  'usage: npm start -- [--server HOST:PORT] [--ca FILE] [--token-file FILE] [--sequence NAME] [--total N] ' +
  '[--log FILE.jsonl]';

const RANGE_SIZE = 100n;

class UsageError extends Error {}

/** Counts ids, and remembers the first and the last one. */
class Tally<Id> {
  private count = 0n;
  private first: Id | undefined;
  private last: Id | undefined;

  add(first: Id, last: Id = first, count = 1n): void {
    this.first ??= first;
    this.last = last;
    this.count += count;
  }

  print(way: string): void {
    console.log(`${way}: ${this.count} ids, ${this.first}..${this.last}`);
  }
}

function parse() {
  let values;
  try {
    ({ values } = parseArgs({
      options: {
        server: { type: 'string', default: '127.0.0.1:50051' },
        ca: { type: 'string' },
        'token-file': { type: 'string' },
        sequence: { type: 'string', default: 'orders' },
        total: { type: 'string', default: '100000' },
        log: { type: 'string' },
      },
    }));
  } catch (error) {
    throw new UsageError((error as Error).message);
  }
  const { server, ca, 'token-file': tokenFile, sequence, total, log } = values;
  if (!/^[1-9][0-9]{0,17}$/.test(total)) throw new UsageError(`--total must be a positive integer, not ${total}`);
  if (log !== undefined && !log.endsWith('.jsonl')) throw new UsageError(`--log must end in .jsonl: ${log}`);
  const isLocal = /^(127\.[0-9.]+|localhost|\[::1\]):[0-9]+$|^unix:/.test(server);
  if (tokenFile !== undefined && ca === undefined && !isLocal) {
    throw new UsageError(`the token would be sent unencrypted to ${server}: use TLS (--ca)`);
  }
  return { server, ca, tokenFile, sequence, total: BigInt(total), log };
}

async function run(): Promise<void> {
  const { server, ca, tokenFile, sequence, total, log: logFile } = parse();
  const token = tokenFile === undefined ? undefined : readFileSync(tokenFile, 'utf8').trim();
  const log = logFile === undefined ? undefined : new IssuedLog(logFile);
  const client = new Client({ server, ca, token, log });
  try {
    const backoff = new Backoff();
    await usePool(client, sequence, total, backoff);
    await useUnary(client, sequence, backoff);
    await useAllocateStream(client, sequence, backoff);
    await useRequestId(client, sequence, backoff);
    await useStream(client, sequence, total, backoff);
    await useDocIds(client, total, backoff);
  } finally {
    client.close();
  }
}

async function usePool(client: Client, sequence: string, total: bigint, backoff: Backoff): Promise<void> {
  const pool = new Pool((idCount, signal) => client.allocateRange({ sequence, idCount }, { signal }));
  const tally = new Tally<bigint>();
  try {
    for (let left = total; left > 0n; left--) {
      const id = pool.tryNext() ?? (await backoff.retry(() => pool.next()));
      tally.add(id);
    }
  } finally {
    pool.close();
  }
  tally.print('pool');
}

async function useUnary(client: Client, sequence: string, backoff: Backoff): Promise<void> {
  const tally = new Tally<bigint>();
  const range = await backoff.retry(() => client.allocateRange({ sequence, idCount: RANGE_SIZE }));
  tally.add(range.firstId, range.lastId, range.idCount);
  tally.print('unary');
}

/** Several requests over one stream. One fails, and the others get their ids. */
async function useAllocateStream(client: Client, sequence: string, backoff: Backoff): Promise<void> {
  const rangeOf = (sequence: string, idCount: bigint) => ({
    allocateRange: AllocateRangeRequest.create({ sequence, idCount }),
  });
  const answers = await backoff.retry(async () => {
    const answers = await client.allocateStream([
      rangeOf(sequence, 2n),
      rangeOf(`${sequence}-lines`, 5n),
      rangeOf(sequence, 2n ** 31n), // fails: more than any server allows
      { generateDocId: GenerateDocIdRequest.create({ idCount: 3n, view: DocIdView.DOC_ID_VIEW_COMPACT }) },
    ]);
    const unavailable = answers.find(({ error }) => error?.code === status.UNAVAILABLE)?.error;
    if (unavailable) throw fromStatus(unavailable); // to send all of them again
    return answers;
  });
  const tally = new Tally<bigint | string>();
  for (const { number, allocateRange, generateDocId, error } of answers) {
    const range = allocateRange?.range;
    if (range) tally.add(range.firstId, range.lastId, range.idCount);
    for (const run of generateDocId?.runs ?? []) for (const docId of expand(run)) tally.add(docId);
    if (error) console.log(`allocate-stream: request ${number} failed: ${fromStatus(error)}`);
  }
  tally.print('allocate-stream');
}

/** The same call twice, as after a lost reply: the server repeats the ids. */
async function useRequestId(client: Client, sequence: string, backoff: Backoff): Promise<void> {
  const request = { sequence, idCount: RANGE_SIZE, requestId: randomUUID() };
  const tally = new Tally<bigint>();
  const range = await backoff.retry(() => client.allocateRange(request));
  const repeated = await backoff.retry(() => client.allocateRange(request, { isRepeated: true }));
  if (repeated.firstId !== range.firstId || repeated.lastId !== range.lastId || repeated.step !== range.step) {
    const [first, second] = [range, repeated].map(({ firstId, lastId }) => `${firstId}..${lastId}`);
    throw new IdallocError('INVALID_REPLY', `the repeated request_id got ${second} instead of ${first}`);
  }
  tally.add(range.firstId, range.lastId, range.idCount);
  tally.print('request-id');
}

async function useStream(client: Client, sequence: string, total: bigint, backoff: Backoff): Promise<void> {
  const tally = new Tally<bigint>();
  for await (const range of client.streamRanges(sequence, total, backoff)) {
    tally.add(range.firstId, range.lastId, range.idCount);
  }
  tally.print('stream');
}

async function useDocIds(client: Client, total: bigint, backoff: Backoff): Promise<void> {
  const tally = new Tally<string>();
  for await (const runs of client.streamDocIds(total, backoff)) {
    for (const run of runs) {
      for (const docId of expand(run)) tally.add(docId);
    }
  }
  tally.print('doc-ids');
}

// grpc-js sends an IP address as the name of a TLS server, and Node prints a deprecation. The certificate is verified.
process.noDeprecation = true;

try {
  await run();
} catch (error) {
  const text = error instanceof UsageError ? `${error.message}; ${USAGE}` : String(error);
  console.error(text.replace(/\s+/g, ' ').trim());
  process.exitCode = error instanceof UsageError ? 2 : 1;
}
