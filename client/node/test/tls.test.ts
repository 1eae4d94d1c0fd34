// Files of TLS and tokens that cannot be used or change, and the five causes of a failed connection.

import assert from 'node:assert/strict';
import { execFileSync } from 'node:child_process';
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { after, test } from 'node:test';
import { setTimeout as sleep } from 'node:timers/promises';
import { ServerCredentials } from '@grpc/grpc-js';
import { connect, type ConnectOptions, IdallocError } from '../src/index.js';
import { FakeServer } from './fake-server.js';

const folder = mkdtempSync(join(tmpdir(), 'idalloc-tls-'));
after(() => rmSync(folder, { recursive: true }));

function at(name: string): string {
  return join(folder, name);
}

function openssl(...command: string[]): void {
  execFileSync('openssl', command, { cwd: folder, stdio: 'pipe' });
}

/** Makes NAME.key, and NAME.pem signed by the CA. */
function certify(name: string, days = '30', host = 'localhost'): void {
  writeFileSync(at('ext'), `subjectAltName = DNS:${host}`);
  openssl('req', ...RSA, '-keyout', `${name}.key`, '-subj', `/CN=${name}`, '-out', 'csr');
  const signer = ['-CA', 'ca.pem', '-CAkey', 'ca.key', '-CAcreateserial', '-extfile', 'ext', '-days', days];
  openssl('x509', '-req', '-in', 'csr', ...signer, '-out', `${name}.pem`);
}

const RSA = ['-newkey', 'rsa:2048', '-nodes'];
openssl('req', '-x509', ...RSA, '-keyout', 'ca.key', '-subj', '/CN=CA', '-out', 'ca.pem');
certify('server');
certify('client');
certify('expired', '-1');
certify('elsewhere', '30', 'elsewhere.example');
openssl('pkey', '-in', 'client.key', '-aes256', '-passout', 'pass:secret', '-out', 'encrypted.key');
writeFileSync(at('empty'), '\n');
writeFileSync(at('lines'), 'one\ntwo\n');
writeFileSync(at('damaged.pem'), readFileSync(at('ca.pem'), 'utf8').replace(/M[A-Za-z]{3}/, 'AAAA'));

function credentials(name: string, ca: string | null = null): ServerCredentials {
  const pair = { cert_chain: readFileSync(at(`${name}.pem`)), private_key: readFileSync(at(`${name}.key`)) };
  return ServerCredentials.createSsl(ca ? readFileSync(at(`${ca}.pem`)) : null, [pair], ca !== null);
}

test('a bad file is INVALID_CONFIG, with the next step', () => {
  const pair = (cert: string, key: string) => ({ tls: { cert: at(cert), key: at(key) } });
  const bad: [Omit<ConnectOptions, 'addresses'>, RegExp][] = [
    [{ tls: { ca: at('none') } }, /tls\.ca: cannot read .*none: ENOENT; check/],
    [{ tls: { ca: folder } }, /tls\.ca: cannot read .*: EISDIR; check/],
    [{ tls: { ca: at('lines') } }, /tls\.ca: .*lines has no certificate; it must/],
    [{ tls: { ca: at('ca.key') } }, /tls\.ca: .*ca\.key has no certificate; it must/],
    [{ tls: { ca: at('damaged.pem') } }, /tls\.ca: .*damaged\.pem has a damaged certificate; copy/],
    [pair('client.key', 'client.key'), /tls\.cert: .*client\.key has no certificate; it must/],
    [pair('client.pem', 'client.pem'), /tls\.key: .*client\.pem has no private key; it must/],
    [pair('client.pem', 'encrypted.key'), /tls\.key: .*encrypted\.key is encrypted; remove/],
    [pair('client.pem', 'server.key'), /tls\.key: .*server\.key does not match .*client\.pem; use/],
    [{ tokenFile: at('none') }, /tokenFile: cannot read .*none: ENOENT; check/],
    [{ tokenFile: at('empty') }, /tokenFile: .*empty is empty; write/],
    [{ tokenFile: at('lines') }, /tokenFile: .*lines has several lines; write/],
  ];
  for (const [options, message] of bad) {
    assert.throws(() => connect({ addresses: 'localhost:1', ...options }), { reason: 'INVALID_CONFIG', message });
  }
});

for (const [kind, server, ca] of [
  ['untrusted', () => credentials('server'), 'client.pem'],
  ['expired', () => credentials('expired'), 'ca.pem'],
  ['name', () => credentials('elsewhere'), 'ca.pem'],
  ['plaintext', () => ServerCredentials.createInsecure(), 'ca.pem'],
  ['closed', () => credentials('server'), undefined],
  ['closed', () => credentials('server', 'ca'), 'ca.pem'],
] as const) {
  test(`a connection that fails for TLS says ${kind}, ${ca ? 'with' : 'without'} TLS`, async () => {
    const fake = await FakeServer.start(0, 'localhost', server());
    const client = connect({ addresses: fake.address, tls: ca && { ca: at(ca) } });
    const error = await client.allocateRange({ sequence: 'orders' }).catch((failed: IdallocError) => failed);
    assert.ok(error instanceof IdallocError && error.reason === 'SERVER_UNREACHABLE', String(error));
    assert.deepEqual(error.details.metadata, { tls: kind }, String(error));
    assert.match(error.message, /^localhost:[0-9]+: the server('s certificate)? /);
    client.close();
    fake.stop();
  });
}

test('changed files have effect, and open calls go on', async () => {
  const fake = await FakeServer.start(0, 'localhost', credentials('server', 'ca'));
  const change = (file: string, content: string | Buffer) => writeFileSync(at(file), content);
  for (const kind of ['pem', 'key']) change(`used.${kind}`, readFileSync(at(`client.${kind}`)));
  change('token', 'first');
  const tls = { ca: at('ca.pem'), cert: at('used.pem'), key: at('used.key') };
  const client = connect({ addresses: fake.address, tls, tokenFile: at('token') });
  const stream = client.streamRanges({ sequence: 'orders', totalIdCount: 20_000, chunkIdCount: 1 });
  await stream.next();
  const seen = async () => {
    await sleep(1100);
    await client.allocateRange({ sequence: 'orders' });
    return [fake.names.at(-1), fake.tokens.at(-1)];
  };
  change('used.key', readFileSync(at('server.key'))); // it does not match for a moment
  assert.deepEqual(await seen(), ['client', 'Bearer first']);
  change('used.pem', readFileSync(at('server.pem')));
  change('token', 'second');
  assert.deepEqual(await seen(), ['server', 'Bearer second']);
  let count = 1;
  for await (const { idCount } of stream) count += Number(idCount);
  assert.deepEqual([count, fake.streams], [20_000, 1]);
  client.close();
  fake.stop();
});
