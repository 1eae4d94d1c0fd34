// Makes every call of the package against a server with TLS and a token: every-call.js SERVER CA TOKEN_FILE.
// The sequence `invoices` has a format. It prints what it got as JSON.

import { randomUUID } from 'node:crypto';
import { type AllocatedRange, connect, IdallocError } from '@idalloc/client';
import { ErrorReason, GetSequenceRequest, SequenceServiceService } from '@idalloc/client/v1';

const [addresses, ca, tokenFile] = process.argv.slice(2) as [string, string, string];
const methods: string[] = [];
const client = connect({ addresses, tls: { ca }, tokenFile, onCall: ({ method }) => methods.push(method) });

async function idsOf(ranges: AsyncIterable<Iterable<unknown>>): Promise<string[]> {
  const ids: string[] = [];
  for await (const range of ranges) for (const id of range) ids.push(String(id));
  return ids;
}

/** Makes a call that has no method of the client. */
async function getSequence(name: string): Promise<bigint> {
  const request = GetSequenceRequest.fromPartial({ name });
  const { sequence } = await client.call(SequenceServiceService.getSequence, request);
  return sequence?.lastValue ?? 0n;
}

async function failure(call: Promise<unknown>): Promise<unknown> {
  const error: unknown = await call.catch((each: unknown) => each);
  if (!(error instanceof IdallocError)) throw new Error('the call did not fail as it should', { cause: error });
  const { reason, code, retryDelayMs = null, details } = error;
  return { reason, code, retryDelayMs, field: details.field ?? null, metadata: details.metadata ?? null };
}

/** An older server does not have the call. */
function reason(error: unknown): string {
  if (error instanceof IdallocError && error.reason === 'UNIMPLEMENTED') return error.reason;
  throw error;
}

const requestId = randomUUID();
const range = (result: AllocatedRange) => [...result].map(String);
const batch = await client.batchAllocateRanges([{ sequence: 'orders', idCount: 2 }, { sequence: '' }]);
const stream = client.allocateStream();
const pool = client.pool('orders');
const found = {
  range: range(await client.allocateRange({ sequence: 'orders', idCount: 3 })),
  batch: batch.map((each) => (each instanceof IdallocError ? each.reason : range(each))),
  first: range(await client.allocateRange({ sequence: 'orders', requestId })),
  repeated: range(await client.allocateRange({ sequence: 'orders', requestId })),
  texts: (await client.allocateRange({ sequence: 'invoices', texts: true })).texts,
  parsed: String((await client.parseId('invoices', 'INV-000001')).value),
  streamed: await idsOf(client.streamRanges({ sequence: 'orders', totalIdCount: 25, chunkIdCount: 10 })),
  docIds: [...(await client.generateDocIds({ idCount: 2 }))],
  streamedDocIds: await idsOf(client.streamDocIds({ totalIdCount: 25, chunkIdCount: 10 })),
  uuids: [...(await client.generateUuids({ idCount: 2 })), ...(await client.generateUuids({ version: 4 }))],
  overStream: await stream.allocateRange({ sequence: 'orders', idCount: 2 }).then(range, reason),
  docIdsOverStream: await stream.generateDocIds().then((ids) => [...ids], reason),
  pooled: [String(await pool.next()), String(await pool.next())],
  lastValue: String(await getSequence('orders')),
  errors: [
    await failure(client.allocateRange({ sequence: 'orders', idCount: 2_000_000 })),
    await failure(client.parseId('nowhere', '1')),
    await failure(stream.allocateRange({ sequence: '' })),
    await failure(connect({ addresses, tls: { ca }, token: 'wrong' }).generateUuids()),
    await failure(connect({ addresses: '127.0.0.1:1', token: 'any' }).generateUuids()),
  ],
  reasons: ErrorReason.ERROR_REASON_SEQUENCE_EXHAUSTED,
  methods: [...new Set(methods)].sort(),
};
for (const each of [pool, stream, client]) await each[Symbol.asyncDispose]();
console.log(JSON.stringify(found));
