// The options of a connection, and what grpc-js needs for them.

import { BlockList, isIP } from 'node:net';
import type { ChannelOptions } from '@grpc/grpc-js';
import type { IdallocError } from './errors.js';
import { VERSION } from './gen/constants.js';
import { onlyKnown } from './requests.js';

const LOOPBACK = new BlockList();
LOOPBACK.addSubnet('127.0.0.0', 8, 'ipv4');
LOOPBACK.addAddress('::1', 'ipv6');

/**
 * TLS by files in PEM. The client reads them again within a second after they change: new calls
 * get another connection, and open calls end on the former one. Without `ca` the client trusts the
 * CAs of Node, and those of NODE_EXTRA_CA_CERTS.
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

/** A call that ended, or ids that were dropped, for metrics. */
export interface CallReport {
  /**
   * The name of the RPC, such as `AllocateRange`; `AllocateStream` for each request over such a
   * stream. A unary call is reported once, with its retries. Each round of a pool's refill and each
   * attempt of `streamRanges` and `streamDocIds` is one call.
   */
  readonly method: string;
  readonly durationMs: number;
  /** Why it failed. */
  readonly error?: IdallocError;
  /** In a report of its own: how many ids of a pool's refill came after another server's answer. */
  readonly dropped?: bigint;
}

export interface ConnectOptions {
  /**
   * The servers of one store, as a list or with commas between them: `HOST:PORT`, or a gRPC target
   * such as `dns:///HOST:PORT` and `unix:/run/idalloc.sock`. A name with several addresses of one
   * family is several servers. Calls use them in turn, without those that are away or hang. The
   * client does not use the proxies of the environment.
   */
  addresses: string | readonly string[];
  /** Whether and how to use TLS. The default is a connection without TLS. */
  tls?: boolean | TlsOptions | undefined;
  /** The bearer token of access control. */
  token?: string | undefined;
  /** The file of the token. The client reads it again within a second after it changes. */
  tokenFile?: string | undefined;
  /** Sends the token to another machine without TLS, where something else encrypts. */
  insecure?: boolean | undefined;
  /** The deadline of each unary call with its retries, in milliseconds; default 5,000. */
  timeoutMs?: number | undefined;
  /** Is called after each call, for metrics. What it throws becomes an uncaught exception. */
  onCall?: ((call: CallReport) => void) | undefined;
}

/** @internal The address of a server, or a name that may have several. */
export interface Address {
  /** gRPC's target. */
  readonly target: string;
  /** The IP address or the name, unless only gRPC can read the target. */
  readonly host?: string;
  /** The name, also of an address that was looked up. */
  readonly name?: string;
  readonly port?: string;
}

/** @internal Returns the addresses of a list. */
export function addressesOf(addresses: string | readonly string[]): Address[] {
  const list = [addresses].flat().flatMap((each) => each.replace(/^ipv[46]:/, '').split(','));
  if (list.length === 0) throw new TypeError('addresses: must not be empty');
  return list.map((each) => addressOf(each.trim()));
}

function addressOf(target: string): Address {
  if (/^(http|grpc)s?:\/\//.test(target)) {
    throw new TypeError(`addresses: must be HOST:PORT, without a scheme such as http://, not ${target}`);
  }
  const plain = target.replace(/^dns:(\/\/\/)?(?!\/)/, '');
  if (/^(unix|unix-abstract|[a-z-]+(?=:\/)):/.test(plain)) {
    if (plain.startsWith('dns:')) hostOf(plain.slice(plain.lastIndexOf('/') + 1)); // of another DNS server
    return { target };
  }
  const { host, port } = hostOf(plain);
  return isIP(host) ? { target: plain, host, port } : { target: plain, host, name: host, port };
}

/** Returns the parts of `HOST:PORT`. Without a port gRPC would use 443. */
function hostOf(address: string): { host: string; port: string } {
  const [, ipv6, name, port = ''] = /^(?:\[([^\]]+)\]|([^\][:/]+)):([0-9]{1,5})$/.exec(address) ?? [];
  const host = ipv6 ?? name;
  if (host === undefined || Number(port) < 1 || Number(port) > 65_535) {
    throw new TypeError(`addresses: must be HOST:PORT, such as localhost:50051 or [::1]:50051, not ${address}`);
  }
  return { host, port };
}

/** @internal Whether an address is on this machine: a Unix socket or a loopback address. */
export function isLocal({ target, host = '' }: Address): boolean {
  const version = isIP(host);
  if (version) return LOOPBACK.check(host, version === 4 ? 'ipv4' : 'ipv6');
  return target.startsWith('unix') || host.toLowerCase() === 'localhost';
}

/** @internal Checks the options that need no I/O. */
export function checkOptions(addresses: readonly Address[], options: ConnectOptions): void {
  onlyKnown(options, 'addresses', 'tls', 'token', 'tokenFile', 'insecure', 'timeoutMs', 'onCall');
  const { tls, token, tokenFile, insecure, timeoutMs } = options;
  if (token !== undefined && tokenFile !== undefined) throw new TypeError('token and tokenFile: set one of them');
  if (token !== undefined) checkToken(token, (problem) => new TypeError(`token: ${problem}`));
  const remote = addresses.find((each) => !isLocal(each))?.target;
  if ((token ?? tokenFile) !== undefined && !tls && !insecure && remote !== undefined) {
    throw new TypeError(`the token would be sent unencrypted to ${remote}: use tls, or allow it (insecure)`);
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

/** @internal Refuses a token with characters that a header cannot have: grpc-js would print it. */
export function checkToken(token: string, failure: (problem: string) => Error): void {
  if (!/^[!-~]+$/.test(token)) throw failure('must be ASCII characters without spaces, line breaks or Bearer');
}

/** @internal Returns grpc-js's options of a channel. */
export function channelOptions(address: Address, { tls }: ConnectOptions): ChannelOptions {
  const serverName = typeof tls === 'object' ? tls.serverName : undefined;
  const name = serverName ?? address.name;
  return {
    // The client itself retries. A DNS record must not bring a policy.
    'grpc.enable_retries': 0,
    'grpc.service_config_disable_resolution': 1,
    // Clients and servers do not share connections: each server process accepts its own.
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
    'grpc.enable_http_proxy': 0,
    ...(name !== undefined && {
      'grpc.ssl_target_name_override': name,
      'grpc.default_authority': serverName ?? `${name}:${address.port}`,
    }),
  };
}
