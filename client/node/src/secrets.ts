// The token and the credentials of TLS, whose files may change.

import { createPrivateKey, X509Certificate } from 'node:crypto';
import { readFileSync } from 'node:fs';
import { type ChannelCredentials, credentials, Metadata } from '@grpc/grpc-js';
import { invalidConfig } from './errors.js';
import { checkToken, type ConnectOptions } from './options.js';

const MAX_AGE_MS = 1000;

/** @internal */
export class Secrets {
  /** The metadata of a call. */
  metadata = new Metadata();
  /** The credentials of a new connection. */
  credentials: ChannelCredentials = credentials.createInsecure();
  readonly #options: ConnectOptions;
  #tlsFiles = ''; // of `credentials`
  #readAt = performance.now();

  /** @throws IdallocError INVALID_CONFIG for a file that cannot be used */
  constructor(options: ConnectOptions) {
    this.#options = options;
    this.#readToken();
    this.#readTls();
  }

  /** Reads the files again after a second. Returns whether new connections have other credentials. */
  refresh(): boolean {
    if (performance.now() - this.#readAt < MAX_AGE_MS) return false;
    this.#readAt = performance.now();
    attempt(() => this.#readToken());
    return attempt(() => this.#readTls()) ?? false;
  }

  /** Reads the token again. Returns whether it is another one than that of a call. */
  hasChanged(sent: Metadata): boolean {
    attempt(() => this.#readToken());
    return sent.get('authorization')[0] !== this.metadata.get('authorization')[0];
  }

  #readToken(): void {
    const { token, tokenFile: file } = this.#options;
    const text = file === undefined ? token : read('tokenFile', file).toString().trim();
    if (text === undefined) return;
    const problem = text === '' ? 'is empty' : /[\r\n]/.test(text) ? 'has several lines' : 'has other characters';
    checkToken(text, () => invalidConfig(`tokenFile: ${file} ${problem}; write one token into it`));
    this.metadata = new Metadata();
    this.metadata.set('authorization', `Bearer ${text}`);
  }

  #readTls(): boolean {
    const { tls } = this.#options;
    if (!tls) return false;
    const { ca, cert, key } = tls === true ? {} : tls;
    const load = (name: string, file?: string) => (file === undefined ? null : read(`tls.${name}`, file));
    const [roots, privateKey, chain] = [load('ca', ca), load('key', key), load('cert', cert)] as const;
    const files = [roots, privateKey, chain].join();
    if (files === this.#tlsFiles) return false;
    if (roots) parse(`tls.ca: ${ca}`, roots, 'CERTIFICATE', (pem) => new X509Certificate(pem));
    if (privateKey && chain) {
      const certificate = parse(`tls.cert: ${cert}`, chain, 'CERTIFICATE', (pem) => new X509Certificate(pem));
      if (!certificate.checkPrivateKey(parse(`tls.key: ${key}`, privateKey, 'PRIVATE KEY', createPrivateKey))) {
        throw invalidConfig(`tls.key: ${key} does not match the certificate in ${cert}; use the key of that one`);
      }
    }
    try {
      this.credentials = credentials.createSsl(roots, privateKey, chain);
    } catch (error) {
      const problem = `${(error as Error).message}; create other files`;
      throw invalidConfig(`tls: ${[ca, cert, key].filter(Boolean).join(', ')}: ${problem}`, { cause: error });
    }
    this.#tlsFiles = files;
    return true;
  }
}

/** A file that is half written has no effect: what was read before stays. */
function attempt<T>(step: () => T): T | undefined {
  try {
    return step();
  } catch {
    return undefined;
  }
}

function read(name: string, file: string): Buffer {
  try {
    return readFileSync(file);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    // A secret in place of its file must not get into a log; the cause has it in its path.
    const isSecret = file.startsWith('idalloc_') || file.includes('-----BEGIN ');
    if (isSecret) throw invalidConfig(`${name}: must be a file, not the secret itself`);
    throw invalidConfig(`${name}: cannot read ${file}: ${code}; check the path and its permissions`, { cause: error });
  }
}

/** Parses all PEM blocks of a kind, and returns the first one. */
function parse<T>(file: string, text: Buffer, kind: string, parser: (pem: string) => T): T {
  const block = new RegExp(`-----BEGIN [A-Z ]*${kind}-----[^]*?-----END [A-Z ]*${kind}-----`, 'g');
  const pems = text.toString().match(block) ?? [];
  const name = kind.toLowerCase();
  const [first] = pems;
  if (first === undefined) throw invalidConfig(`${file} has no ${name}; it must be a PEM file with BEGIN ${kind}`);
  if (first.includes('ENCRYPTED')) throw invalidConfig(`${file} is encrypted; remove its passphrase with openssl pkey`);
  try {
    return pems.map((pem) => parser(pem))[0]!;
  } catch (error) {
    throw invalidConfig(`${file} has a damaged ${name}; copy the file again`, { cause: error });
  }
}
