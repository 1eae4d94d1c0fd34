// A server sends the wrong replies that the tests of all clients read.

import assert from 'node:assert/strict';
import { readFileSync } from 'node:fs';
import { after, before, test } from 'node:test';
import { Server, ServerCredentials, type ServerWritableStream } from '@grpc/grpc-js';
import { type Client, connect, IdallocError } from '../src/index.js';
import { IdAllocatorServiceService as rpcs } from '../src/v1.js';

interface Wrong {
  name: string;
  rpc: string;
  texts: boolean;
  error: string;
  validIds: number;
  replies: string[];
}

const file = new URL('../../../../tests/support/wrong_replies.json', import.meta.url);
const table: Wrong[] = JSON.parse(readFileSync(file, 'utf8'));

const server = new Server();
let client: Client;
let replies: string[];

before(async () => {
  const types = { requestStream: false, responseStream: true, responseSerialize: (reply: Buffer) => reply };
  const service = Object.entries(rpcs).map(([name, method]) => [name, { ...method, ...types }] as const);
  const send = (call: ServerWritableStream<unknown, Buffer>) => {
    for (const reply of replies) call.write(Buffer.from(reply, 'base64'));
    call.end();
  };
  server.addService(Object.fromEntries(service), Object.fromEntries(service.map(([name]) => [name, send])));
  const port = await new Promise<number>((resolve, reject) => {
    const insecure = ServerCredentials.createInsecure();
    server.bindAsync('127.0.0.1:0', insecure, (error, found) => (error ? reject(error) : resolve(found)));
  });
  client = connect({ addresses: `127.0.0.1:${port}` });
});
after(() => {
  client.close();
  server.forceShutdown();
});

/** Makes a call; `got` counts the ids that arrive. */
async function call({ rpc, texts }: Wrong, got: (ids: bigint) => void): Promise<void> {
  const request = { sequence: 'orders', idCount: 5 };
  if (rpc === 'AllocateRange') await client.allocateRange({ ...request, texts });
  if (rpc === 'BatchAllocateRanges') await client.batchAllocateRanges([request, request]);
  if (rpc === 'GenerateDocId') await client.generateDocIds({ idCount: 5 });
  const sizes = { totalIdCount: 10, chunkIdCount: 5 };
  if (rpc === 'StreamRanges') {
    for await (const { idCount } of client.streamRanges({ sequence: 'orders', ...sizes })) got(idCount);
  }
  if (rpc === 'StreamDocIds') for await (const { idCount } of client.streamDocIds(sizes)) got(idCount);
}

for (const wrong of table) {
  test(`${wrong.name} is an error`, async () => {
    replies = wrong.replies;
    let ids = 0n;
    await assert.rejects(
      call(wrong, (more) => (ids += more)),
      (error) => {
        assert.ok(error instanceof IdallocError && error.reason === 'INVALID_REPLY', String(error));
        assert.match(error.message, new RegExp(wrong.error));
        return true;
      },
    );
    assert.equal(ids, BigInt(wrong.validIds));
  });
}
