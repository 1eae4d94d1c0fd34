// The servers of a client, in the words of docs/explanation/client-calls.md.

import { promises as dns } from 'node:dns';
import { setTimeout as sleep } from 'node:timers/promises';
import { Client as GrpcClient, type ClientUnaryCall, status } from '@grpc/grpc-js';
import { errorOf, type IdallocError } from './errors.js';
import type { Address } from './options.js';
import { backoffMs } from './retries.js';

// Then a probe gets another connection: grpc-js waits for a handshake without limit.
const RECONNECT_MS = 10_000;
const HEALTH_CHECK = '/grpc.health.v1.Health/Check';
const MIN_RESOLUTION_MS = 2000;
const NO_ANSWER = [status.UNAVAILABLE, status.CANCELLED, status.DEADLINE_EXCEEDED];

/** @internal One server, with a connection of its own. */
export class Server {
  rpc: GrpcClient;
  isSuspect = false;
  #probe: Promise<boolean> | undefined;
  #check: ClientUnaryCall | undefined;
  #failures = 0; // of probes
  #isClosed = false;

  constructor(
    readonly address: Address,
    private readonly connect: (address: Address) => GrpcClient,
  ) {
    this.rpc = connect(address);
  }

  /** Returns the probe under way, or sends one. It resolves to true when the server answers. */
  probe(): Promise<boolean> {
    return (this.#probe ??= this.#sendProbe());
  }

  /** Opens another connection for new calls; open calls end on the former one. */
  renew(isSuspect = false): void {
    if (this.#isClosed) return;
    this.isSuspect = isSuspect;
    this.#probe = undefined;
    this.#check?.cancel();
    this.rpc.close();
    this.rpc = this.connect(this.address);
  }

  /** Ends the probes, and the connection when its open calls have ended. */
  close(): void {
    this.#isClosed = true;
    this.#check?.cancel();
    this.rpc.close();
  }

  async #sendProbe(): Promise<boolean> {
    const { rpc } = this;
    const isAnswered = !this.#isClosed && (await this.#checkHealth());
    if (!isAnswered) await sleep(backoffMs(++this.#failures), undefined, { ref: false });
    if (this.rpc !== rpc || this.#isClosed) return false;
    this.#probe = undefined;
    this.isSuspect &&= !isAnswered;
    if (isAnswered) this.#failures = 0;
    else this.renew(this.isSuspect); // grpc-js keeps one that began with GOAWAY, and fails each call on it
    return isAnswered;
  }

  #checkHealth(): Promise<boolean> {
    const none = () => Buffer.alloc(0);
    const options = { deadline: Date.now() + RECONNECT_MS };
    return new Promise((resolve) => {
      this.#check = this.rpc.makeUnaryRequest(HEALTH_CHECK, none, none, null, options, (error) => {
        resolve(!NO_ANSWER.includes((errorOf(error) as IdallocError | null)?.code ?? status.OK));
      });
    });
  }
}

/** @internal Picks the server of each attempt. */
export class Servers {
  /** Whether one has ever answered. */
  hasAnswered = false;
  #servers: Server[];
  #turn = 0;
  #resolvedAt = -Infinity;
  #isClosed = false;

  constructor(
    private readonly addresses: readonly Address[],
    private readonly connect: (address: Address) => GrpcClient,
  ) {
    this.#servers = addresses.map((address) => new Server(address, connect));
  }

  /** Whether a server is usable that a round has not asked. */
  hasUsable(asked: ReadonlySet<Server>): boolean {
    return this.#servers.some((server) => !server.isSuspect && !asked.has(server));
  }

  /** Returns the next of these, in turn; if there is none, the next of all in a new round. */
  pick(asked: Set<Server>): Server {
    if (this.#resolvedAt === -Infinity) void this.#resolve();
    for (const server of this.#servers) if (server.isSuspect) void server.probe();
    if (!this.hasUsable(asked)) asked.clear();
    const hasUsable = this.hasUsable(asked);
    for (;;) {
      const server = this.#servers[this.#turn++ % this.#servers.length]!;
      if (hasUsable && (server.isSuspect || asked.has(server))) continue;
      asked.add(server);
      return server;
    }
  }

  /** Returns another server, or a lone one with another connection. The round ends with it. */
  second(silent: Server, rpc: GrpcClient, asked: Set<Server>): Server {
    const other = this.hasUsable(asked) ? this.pick(asked) : this.#servers.find((server) => server !== silent);
    if (other === undefined && silent.rpc === rpc) silent.renew(); // else another call has done so
    for (const server of this.#servers) asked.add(server);
    return other ?? silent;
  }

  /** Opens other connections for new calls. */
  renew(): void {
    for (const server of this.#servers) server.renew();
  }

  /** Makes a server suspect, unless it has another connection than the one that failed. Looks it up again. */
  suspect(server: Server, rpc: GrpcClient): void {
    if (server.rpc === rpc) {
      server.isSuspect = true;
      void server.probe();
    }
    if (performance.now() - this.#resolvedAt >= MIN_RESOLUTION_MS) void this.#resolve();
  }

  close(): void {
    this.#isClosed = true;
    for (const server of this.#servers) server.close();
  }

  async #resolve(): Promise<void> {
    this.#resolvedAt = performance.now();
    const found = await Promise.all(this.addresses.map(lookUp)).catch(() => undefined);
    if (found === undefined || this.#isClosed) return; // the former servers may still be there
    const former = this.#servers;
    const targets = new Map(found.flat().map((address) => [address.target, address])).values();
    this.#servers = [...targets].map((address) => {
      return former.find((server) => server.address.target === address.target) ?? new Server(address, this.connect);
    });
    for (const server of former) if (!this.#servers.includes(server)) server.close();
  }
}

/** Returns the addresses of a name that has several of one family. gRPC looks up any other name. */
async function lookUp(address: Address): Promise<Address[]> {
  if (address.name === undefined) return [address];
  const found = await dns.lookup(address.name, { all: true });
  const families = [4, 6].map((family) => found.filter((each) => each.family === family));
  const several = families.find(({ length }) => length > 1)?.map((each) => each.address);
  const hosts = several?.map((ip) => (ip.includes(':') ? `[${ip}]` : ip));
  return hosts?.map((host) => ({ ...address, target: `${host}:${address.port}` })) ?? [address];
}
