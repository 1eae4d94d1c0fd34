// Gets ids from an idalloc server in six ways. README.md describes the options.

import { randomUUID } from 'node:crypto';
import { parseArgs } from 'node:util';
import {
  type AllocatedRange,
  type AllocateStream,
  type Client,
  connect,
  type ConnectOptions,
  IdallocError,
  Pool,
  type RangeRequest,
} from '@idalloc/client';
import { IssuedLog } from './issued-log.js';
import { retry } from './retry.js';

const USAGE =
  'usage: npm start -- [--server HOST:PORT] [--ca FILE] [--token-file FILE] [--sequence NAME] [--total N] ' +
  '[--log FILE.jsonl]';

const RANGE_SIZE = 100n;
const TOO_MANY_IDS = 2 ** 31; // more than any server allows in a call

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
  const options: ConnectOptions = { addresses: server };
  if (ca !== undefined) options.tls = { ca };
  if (tokenFile !== undefined) options.tokenFile = tokenFile;
  return { options, sequence, total: BigInt(total), logFile: log };
}

interface Options {
  signal?: AbortSignal;
  isRepeated?: boolean;
  from?: Client | AllocateStream;
}

/** The program's connection, its log, and when the running request was sent. */
class Program {
  readonly client: Client;
  private asked = 0n;

  constructor(
    options: ConnectOptions,
    readonly sequence: string,
    readonly total: bigint,
    private readonly log: IssuedLog | undefined,
  ) {
    // After a break a stream is opened again: its next ids are of a request that is sent later.
    this.client = connect({ ...options, onCall: () => this.start() });
  }

  /** Remembers when a request is sent. */
  start(): void {
    this.asked = this.log?.now() ?? 0n;
  }

  /** Allocates one range, and records it in the log unless `isRepeated`: then its ids were recorded before. */
  async allocateRange(request: RangeRequest, options: Options = {}): Promise<AllocatedRange> {
    const { signal, isRepeated = false, from = this.client } = options;
    const asked = this.log?.now() ?? 0n;
    const range = await from.allocateRange(request, { signal });
    if (!isRepeated) this.log?.range(request.sequence, range, asked, request.requestId);
    return range;
  }

  async usePool(): Promise<void> {
    const { sequence } = this;
    // Without a log it is client.pool(sequence).
    const pool = new Pool((idCount, signal) => this.allocateRange({ sequence, idCount }, { signal }));
    const tally = new Tally<bigint>();
    try {
      for (let left = this.total; left > 0n; left--) tally.add(pool.tryNext() ?? (await retry(() => pool.next())));
    } finally {
      pool.close();
    }
    tally.print('pool');
  }

  async useUnary(): Promise<void> {
    const tally = new Tally<bigint>();
    const range = await retry(() => this.allocateRange({ sequence: this.sequence, idCount: RANGE_SIZE }));
    tally.add(range.firstId, range.lastId, range.idCount);
    tally.print('unary');
  }

  /** Several calls over one stream. One fails, and the others get their ids. */
  async useAllocateStream(): Promise<void> {
    const { sequence } = this;
    const stream = this.client.allocateStream();
    const rangeOf = (request: RangeRequest) => retry(() => this.allocateRange(request, { from: stream }));
    const docIdsOf = async (idCount: number) => {
      const asked = this.log?.now() ?? 0n;
      const docIds = await retry(() => stream.generateDocIds({ idCount }));
      this.log?.docIds(docIds, asked);
      return docIds;
    };
    const results = await Promise.allSettled([
      rangeOf({ sequence, idCount: 2 }),
      rangeOf({ sequence: `${sequence}-lines`, idCount: 5 }),
      rangeOf({ sequence, idCount: TOO_MANY_IDS }),
      docIdsOf(3),
    ]);
    stream.close();
    const tally = new Tally<bigint | string>();
    for (const [index, result] of results.entries()) {
      if (result.status === 'fulfilled') for (const id of result.value) tally.add(id);
      else if (!isInvalid(result.reason)) throw result.reason;
      else console.log(`allocate-stream: request ${index + 1} failed: ${result.reason}`);
    }
    tally.print('allocate-stream');
  }

  /** The same call twice, as after a lost reply: the server repeats the ids. */
  async useRequestId(): Promise<void> {
    const request = { sequence: this.sequence, idCount: RANGE_SIZE, requestId: randomUUID() };
    const tally = new Tally<bigint>();
    const range = await retry(() => this.allocateRange(request));
    const repeated = await retry(() => this.allocateRange(request, { isRepeated: true }));
    if (repeated.firstId !== range.firstId || repeated.lastId !== range.lastId || repeated.step !== range.step) {
      const [first, second] = [range, repeated].map(({ firstId, lastId }) => `${firstId}..${lastId}`);
      throw new IdallocError('INVALID_REPLY', `the repeated request_id got ${second} instead of ${first}`);
    }
    tally.add(range.firstId, range.lastId, range.idCount);
    tally.print('request-id');
  }

  async useStream(): Promise<void> {
    const tally = new Tally<bigint>();
    this.start();
    for await (const range of this.client.streamRanges({ sequence: this.sequence, totalIdCount: this.total })) {
      this.log?.range(this.sequence, range, this.asked);
      tally.add(range.firstId, range.lastId, range.idCount);
    }
    tally.print('stream');
  }

  async useDocIds(): Promise<void> {
    const tally = new Tally<string>();
    this.start();
    for await (const batch of this.client.streamDocIds({ totalIdCount: this.total })) {
      this.log?.docIds(batch, this.asked);
      for (const docId of batch) tally.add(docId);
    }
    tally.print('doc-ids');
  }
}

function isInvalid(error: unknown): boolean {
  return error instanceof IdallocError && error.reason === 'INVALID_REQUEST';
}

async function run(): Promise<void> {
  const { options, sequence, total, logFile } = parse();
  const log = logFile === undefined ? undefined : new IssuedLog(logFile);
  const program = new Program(options, sequence, total, log);
  try {
    await program.usePool();
    await program.useUnary();
    await program.useAllocateStream();
    await program.useRequestId();
    await program.useStream();
    await program.useDocIds();
  } finally {
    program.client.close();
  }
}

// grpc-js sends an IP address as the name of a TLS server, and Node prints a deprecation. The certificate is verified.
process.noDeprecation = true;

try {
  await run();
} catch (error) {
  const isUsage = error instanceof UsageError || error instanceof TypeError;
  const text = isUsage ? `${error.message}; ${USAGE}` : String(error);
  console.error(text.replace(/\s+/g, ' ').trim());
  process.exitCode = isUsage ? 2 : 1;
}
