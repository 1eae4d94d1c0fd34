// The options of a connection, and what grpc-js needs for them.

import { readFile } from 'node:fs/promises';
import { BlockList, isIP, isIPv4, isIPv6 } from 'node:net';
import { type ChannelCredentials, type ChannelOptions, credentials, Metadata } from '@grpc/grpc-js';
import { within } from './abort.js';
import { type IdallocError, invalidConfig } from './errors.js';
import { VERSION } from './gen/constants.js';
import { onlyKnown } from './requests.js';

// A token file is read again after this time, and after UNAUTHENTICATED.
const TOKEN_MAX_AGE_MS = 10_000;
// How long a call waits for another token, while it has the one from before.
const MAX_READING_MS = 1000;

const LOOPBACK = new BlockList();
LOOPBACK.addSubnet('127.0.0.0', 8, 'ipv4');
LOOPBACK.addAddress('::1', 'ipv6');

/**
 * TLS by files in PEM, which the first call reads. Without `ca` the client trusts the CAs of Node, and those of
 * NODE_EXTRA_CA_CERTS.
 */
export interface TlsOptions {
  /** The file of the CA certificates to trust. */
  ca?: string | undefined;
  /** The file of the client's certificate chain, with `key`. */
  cert?: string | undefined;
  /** The file of the client's private key, without a passphrase. */
  key?: string | undefined;
  /** The name in the server's certificate, if it is not the name in `addresses`. */
  serverName?: string | undefined;
}

/** A call that ended, for metrics. */
export interface CallReport {
  /**
   * The name of the RPC, such as `AllocateRange`; `AllocateStream` for each request over such a stream. A unary call is
   * reported once, with its retries. Each attempt of `streamRanges` and `streamDocIds` is one call.
   */
  readonly method: string;
  readonly durationMs: number;
  /** Why it failed. */
  readonly error?: IdallocError;
}

export interface ConnectOptions {
  /**
   * `HOST:PORT`, a gRPC target such as `dns:///idalloc.example:50051` or `unix:/run/idalloc.sock`, or a list of IP
   * addresses with ports. The client stays with the first server that answers, and moves on when it stops. It looks a
   * name up again whenever it has to reconnect.
   */
  addresses: string | readonly string[];
  /** Whether and how to use TLS. The default is a connection without TLS. */
  tls?: boolean | TlsOptions | undefined;
  /** The bearer token of access control. */
  token?: string | undefined;
  /** The file of the token. The client reads it again within 10 s, so a rotated token takes effect. */
  tokenFile?: string | undefined;
  /** Sends the token to another machine without TLS, where something else encrypts. */
  insecure?: boolean | undefined;
  /** The deadline of each unary call with its retries, in milliseconds; default 5,000. */
  timeoutMs?: number | undefined;
  /** Is called after each call, for metrics. What it throws becomes an uncaught exception. */
  onCall?: ((call: CallReport) => void) | undefined;
}

/** @internal Returns gRPC's target for the addresses. */
export function targetOf(addresses: string | readonly string[]): string {
  const list = typeof addresses === 'string' ? [addresses] : [...addresses];
  const [first] = list;
  if (first === undefined) throw new TypeError('addresses: must not be empty');
  if (list.length === 1) return checkTarget(first);
  const hosts = list.map((address) => hostOf(address));
  if (hosts.every((host) => isIPv4(host))) return `ipv4:${list.join(',')}`;
  if (hosts.every((host) => isIPv6(host))) return `ipv6:${list.join(',')}`;
  throw new TypeError(
    `addresses: several must be IP addresses with ports, all IPv4 or all IPv6, not ${list.join(', ')}; ` +
      'use one DNS name that has several addresses',
  );
}

function checkTarget(target: string): string {
  if (/^(http|grpc)s?:\/\//.test(target)) {
    throw new TypeError(`addresses: must be HOST:PORT, without a scheme such as http://, not ${target}`);
  }
  const [, scheme, rest] = /^(dns|ipv4|ipv6|unix|unix-abstract|[a-z-]+(?=:\/)):(.*)$/.exec(target) ?? [];
  if (scheme === undefined || rest === undefined) hostOf(target);
  else if (scheme === 'dns') hostOf(rest.slice(rest.lastIndexOf('/') + 1));
  else if (scheme === 'ipv4' || scheme === 'ipv6') for (const each of rest.split(',')) hostOf(each);
  return target;
}

/** Returns the host of `HOST:PORT`. Without a port gRPC would use 443. */
function hostOf(address: string): string {
  const [, ipv6, name, port] = /^(?:\[([^\]]+)\]|([^\][:/]+)):([0-9]{1,5})$/.exec(address) ?? [];
  const host = ipv6 ?? name;
  if (host === undefined || Number(port) < 1 || Number(port) > 65_535) {
    throw new TypeError(`addresses: must be HOST:PORT, such as localhost:50051 or [::1]:50051, not ${address}`);
  }
  return host;
}

/** @internal Whether a target is on this machine: a Unix socket or a loopback address. */
export function isLocal(target: string): boolean {
  const [, scheme, rest] = /^(dns|ipv4|ipv6|unix|unix-abstract):(.*)$/.exec(target) ?? [];
  if (scheme?.startsWith('unix')) return true;
  // A dns target that names a DNS server has another /, and is on another machine.
  const list = (rest ?? target).replace(/^\/\/\//, '').split(',');
  return list.every((address) => {
    const [, ipv6, name] = /^(?:\[([^\]]+)\]|([^\][:/]+)):[0-9]+$/.exec(address) ?? [];
    const host = ipv6 ?? name ?? '';
    const version = isIP(host);
    return version ? LOOPBACK.check(host, version === 4 ? 'ipv4' : 'ipv6') : host.toLowerCase() === 'localhost';
  });
}

/** @internal Checks the options that need no I/O. */
export function checkOptions(target: string, options: ConnectOptions): void {
  onlyKnown(options, 'addresses', 'tls', 'token', 'tokenFile', 'insecure', 'timeoutMs', 'onCall');
  const { tls, token, tokenFile, insecure, timeoutMs } = options;
  if (token !== undefined && tokenFile !== undefined) throw new TypeError('token and tokenFile: set one of them');
  if (token !== undefined) checkToken(token, (problem) => new TypeError(`token: ${problem}`));
  if ((token ?? tokenFile) !== undefined && !tls && !insecure && !isLocal(target)) {
    throw new TypeError(`the token would be sent unencrypted to ${target}: use tls, or allow it (insecure)`);
  }
  if (typeof tls === 'object' && (tls.cert === undefined) !== (tls.key === undefined)) {
    throw new TypeError('tls: cert and key must be given together');
  }
  if (timeoutMs !== undefined) checkTimeout(timeoutMs);
}

/** @internal Checks a deadline in milliseconds. */
export function checkTimeout(timeoutMs: number): number {
  if (!(timeoutMs > 0 && timeoutMs <= 2 ** 31 - 1)) {
    throw new TypeError(`timeoutMs: must be more than 0 and less than 2^31, not ${timeoutMs}`);
  }
  return timeoutMs;
}

function checkToken(token: string, failure: (problem: string) => Error): string {
  // grpc-js would print a value that it refuses.
  if (!/^[!-~]+$/.test(token)) throw failure('must be ASCII characters without spaces, line breaks or Bearer');
  return token;
}

/** @internal Returns grpc-js's options of a channel. */
export function channelOptions(target: string, { tls, token, tokenFile }: ConnectOptions): ChannelOptions {
  const serverName = typeof tls === 'object' ? tls.serverName : undefined;
  return {
    // The client itself retries: gRPC's policy waits as long as the server requests, loses the error of the last attempt at
    // the deadline, and continues no stream. A DNS record must not bring a policy.
    'grpc.service_config_disable_resolution': 1,
    // Clients do not share connections: each server process accepts its own.
    'grpc.use_local_subchannel_pool': 1,
    // The defaults are 1 s and 120 s: after a restart the server would stay out of reach for too long.
    'grpc.initial_reconnect_backoff_ms': 100,
    'grpc.max_reconnect_backoff_ms': 2000,
    // The default is 30 s: servers that come back with other addresses would stay out of reach for so long.
    'grpc.dns_min_time_between_resolutions_ms': 1000,
    // A stream has no deadline, and must also notice that its server vanished: after 40 s. The server allows a ping each
    // 20 s.
    'grpc.keepalive_time_ms': 30_000,
    'grpc.keepalive_timeout_ms': 10_000,
    'grpc.primary_user_agent': `idalloc-node/${VERSION}`,
    // grpc-js would use http_proxy even for this machine.
    ...((token ?? tokenFile) !== undefined && !tls && isLocal(target) ? { 'grpc.enable_http_proxy': 0 } : {}),
    ...(serverName === undefined
      ? {}
      : { 'grpc.ssl_target_name_override': serverName, 'grpc.default_authority': serverName }),
  };
}

/** @internal Reads the files of TLS. */
export async function readCredentials(tls: boolean | TlsOptions | undefined): Promise<ChannelCredentials> {
  if (!tls) return credentials.createInsecure();
  const { ca, cert, key } = tls === true ? {} : tls;
  const read = async (name: string, file: string | undefined) => (file === undefined ? null : readConfig(name, file));
  const files = [await read('tls.ca', ca), await read('tls.key', key), await read('tls.cert', cert)] as const;
  try {
    return credentials.createSsl(...files);
  } catch (error) {
    const problem = `tls: ${[ca, cert, key].filter(Boolean).join(', ')}: ${(error as Error).message}`;
    throw invalidConfig(problem, { cause: error });
  }
}

async function readConfig(name: string, file: string): Promise<Buffer> {
  try {
    return await readFile(file);
  } catch (error) {
    const { code } = error as NodeJS.ErrnoException;
    // A secret in place of its file must not get into a log; the cause has it in its path.
    const isSecret = file.startsWith('idalloc_') || file.includes('-----BEGIN ');
    if (isSecret) throw invalidConfig(`${name}: must be a file, not the secret itself`);
    throw invalidConfig(`${name}: cannot read ${file}: ${code}`, { cause: error });
  }
}

/** @internal The metadata with the token, which a file may change. */
export class Token {
  #metadata: Metadata | undefined;
  // When the last reading began.
  #readAt = -Infinity;
  #reading: Promise<void> | undefined;
  readonly #file: string | undefined;

  constructor({ token, tokenFile }: ConnectOptions) {
    this.#file = tokenFile;
    if (tokenFile === undefined) this.#set(token);
  }

  /** The metadata of a call; undefined if the file must be read first. */
  get metadata(): Metadata | undefined {
    return this.#file === undefined || performance.now() - this.#readAt < TOKEN_MAX_AGE_MS ? this.#metadata : undefined;
  }

  /** Reads the file, once for all calls that wait. If that fails or takes too long, the token from before stays. */
  async read(): Promise<Metadata> {
    this.#reading ??= this.#read().finally(() => (this.#reading = undefined));
    await (this.#metadata === undefined ? this.#reading : within(this.#reading, MAX_READING_MS));
    return this.#metadata!;
  }

  async #read(): Promise<void> {
    this.#readAt = performance.now();
    const file = this.#file!;
    try {
      const text = (await readConfig('tokenFile', file)).toString().trim();
      this.#set(checkToken(text, () => invalidConfig(`tokenFile: ${file} must have one token`)));
    } catch (error) {
      if (this.#metadata === undefined) throw error;
    }
  }

  /** Whether the token is another one than that of a call that the server rejected. It may read the file for that. */
  async hasChanged(sent: Metadata): Promise<boolean> {
    if (this.#file === undefined) return false;
    // Twice, as a reading that is under way may have begun before the file changed.
    for (let left = 2; left > 0 && this.#isSent(sent); left--) await this.read();
    return !this.#isSent(sent);
  }

  #isSent(sent: Metadata): boolean {
    return sent.get('authorization')[0] === this.#metadata?.get('authorization')[0];
  }

  #set(token: string | undefined): void {
    const metadata = new Metadata();
    if (token !== undefined) metadata.set('authorization', `Bearer ${token}`);
    this.#metadata = metadata;
  }
}
