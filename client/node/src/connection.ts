// The calls to the servers: with deadlines, retries, typed errors and reports.

import { Client as GrpcClient, type Metadata, type MethodDefinition, type ServiceError, status } from '@grpc/grpc-js';
import { abortOf, type Ending, TIMED_OUT, within } from './abort.js';
import { closed, errorOf, IdallocError, late, TLS_CAUSES, unreachable } from './errors.js';
import { addressesOf, channelOptions, checkOptions, checkTimeout } from './options.js';
import type { CallReport, ConnectOptions } from './options.js';
import { isRetryable, MAX_STALL_MS, REFILL, Retries, STREAM } from './retries.js';
import { Secrets } from './secrets.js';
import { type Server, Servers } from './servers.js';

const DEFAULT_TIMEOUT_MS = 5000;
const MIN_PATIENCE_MS = 500;
const PROBE_MS = 250;
const CANCELLED = { code: status.CANCELLED };
const SUSPICIOUS = new Set(['SERVER_UNREACHABLE', 'SERVER_DRAINING']);

/** Limits of one call. */
export interface CallOptions {
  /** Ends the call; it then throws the reason of the signal. */
  signal?: AbortSignal | undefined;
  /** The deadline in milliseconds; by default that of the client, and none for streams. */
  timeoutMs?: number | undefined;
}

/** @internal The server of an attempt, and its metadata. */
export interface Open {
  readonly server: Server;
  readonly rpc: GrpcClient;
  readonly metadata: Metadata;
}

/** A unary call, which may need several attempts. */
interface Call<Request, Reply> {
  readonly method: MethodDefinition<Request, Reply>;
  readonly request: Request;
  readonly deadline: number;
  readonly signal: AbortSignal | undefined;
  /** For the refill of a pool: returns how many ids a late answer brings. */
  readonly lateIds: ((reply: Reply) => bigint) | undefined;
}

/** @internal A stream of requests. */
export interface Duplex<Request> {
  write(request: Request): void;
  /** Ends the stream with an error, unless it has ended. */
  end(error: IdallocError): void;
}

/** @internal */
export class Connection {
  readonly timeoutMs: number;
  /** The addresses, for errors. */
  readonly name: string;
  readonly #options: ConnectOptions;
  readonly #secrets: Secrets;
  readonly #servers: Servers;
  // They are called by `close`.
  readonly #endings = new Set<(reason: unknown) => void>();
  #latencyMs = 0; // smoothed
  #isClosed = false;

  constructor(options: ConnectOptions) {
    const addresses = addressesOf(options.addresses);
    checkOptions(addresses, options);
    this.name = [options.addresses].flat().join(', ');
    this.#options = options;
    this.#secrets = new Secrets(options);
    this.#servers = new Servers(addresses, (address) => {
      return new GrpcClient(address.target, this.#secrets.credentials, channelOptions(address, options));
    });
    this.timeoutMs = options.timeoutMs ?? DEFAULT_TIMEOUT_MS;
  }

  /** The ending by `close`. */
  readonly closing: Ending = (listener) => {
    if (this.#isClosed) queueMicrotask(() => listener(closed('client')));
    this.#endings.add(listener);
    return () => this.#endings.delete(listener);
  };

  /** Makes a unary call, with its retries. With `lateIds` it is one round of a pool's refill. */
  async unary<Request, Reply>(
    method: MethodDefinition<Request, Reply>,
    request: Request,
    { signal, timeoutMs = this.timeoutMs }: CallOptions,
    lateIds?: (reply: Reply) => bigint,
  ): Promise<Reply> {
    const deadline = Date.now() + checkTimeout(timeoutMs);
    return this.reported(method, () => this.#repeat({ method, request, deadline, signal, lateIds }));
  }

  /** Makes a call, and reports it to the hook. */
  async reported<Reply>(method: { readonly path: string }, call: () => Promise<Reply>): Promise<Reply> {
    const started = performance.now();
    try {
      const reply = await call();
      this.#report(method, started);
      return reply;
    } catch (error) {
      this.#report(method, started, error);
      throw error;
    }
  }

  /** Yields the messages of a stream of the server. */
  async *stream<Request, Reply>(
    method: MethodDefinition<Request, Reply>,
    request: Request,
    open: Open,
    deadline: number,
    signal: AbortSignal | undefined,
  ): AsyncGenerator<Reply, void, undefined> {
    const started = performance.now();
    const { rpc, metadata } = open;
    const { path, requestSerialize, responseDeserialize } = method;
    const call = rpc.makeServerStreamRequest(path, requestSerialize, responseDeserialize, request, metadata, {
      deadline,
    });
    const forget = this.#track(call, signal);
    call.on('error', () => {}); // after the last message that anyone reads
    const messages = (call as AsyncIterable<Reply>)[Symbol.asyncIterator]();
    let failure: unknown;
    try {
      for (;;) {
        // The time in which the caller uses a message does not count.
        const message = await within(messages.next(), MAX_STALL_MS);
        if (message === TIMED_OUT) throw late(`no message arrived within ${MAX_STALL_MS} ms`);
        if (message.done) return;
        this.#servers.hasAnswered = true;
        yield message.value;
      }
    } catch (error) {
      failure = this.#failure(error, open, signal);
      throw failure;
    } finally {
      forget();
      call.cancel(); // where the caller stopped early
      this.#report(method, started, failure);
    }
  }

  /** Opens a stream of requests. `onEnd` is called once, with the error that ended it. */
  duplex<Request, Reply>(
    { path, requestSerialize, responseDeserialize }: MethodDefinition<Request, Reply>,
    open: Open,
    onReply: (reply: Reply) => void,
    onEnd: (error: unknown) => void,
  ): Duplex<Request> {
    const call = open.rpc.makeBidiStreamRequest(path, requestSerialize, responseDeserialize, open.metadata);
    const forget = this.#track(call, undefined);
    let hasEnded = false;
    const end = (error: unknown) => {
      if (hasEnded) return;
      hasEnded = true;
      forget();
      call.cancel();
      onEnd(this.#failure(error, open, undefined));
    };
    call.on('data', (reply: Reply) => {
      if (hasEnded) return;
      this.#servers.hasAnswered = true;
      onReply(reply);
    });
    call.on('error', end);
    const ended = unreachable('the server ended the stream');
    call.on('end', () => setImmediate(end, ended));
    return { write: (request) => call.write(request), end };
  }

  /** Ends all calls and waits with CLOSED. */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    for (const end of [...this.#endings]) end(closed('client'));
    this.#servers.close();
  }

  /** The attempts of a stream. */
  streamRetries(deadline?: number): Retries {
    return new Retries(this.#servers, deadline, STREAM);
  }

  /** Returns the server of the next attempt, and the token. */
  open(retries: Retries, signal?: AbortSignal): Open {
    signal?.throwIfAborted();
    if (this.#isClosed) throw closed('client');
    if (this.#secrets.refresh()) this.#servers.renew();
    return this.#openWith(this.#servers.pick(retries.asked));
  }

  #openWith(server: Server): Open {
    return { server, rpc: server.rpc, metadata: this.#secrets.metadata };
  }

  /** Returns the wait before the next attempt; none with another token. Throws an error that no attempt helps. */
  delayMs(error: unknown, { metadata }: Open, retries: Retries): number {
    const isRejected = error instanceof IdallocError && error.code === status.UNAUTHENTICATED;
    if (!isRejected || retries.hasNewToken || !this.#secrets.hasChanged(metadata)) return retries.delayMs(error);
    retries.hasNewToken = true;
    return 0;
  }

  /** Waits before a retry. */
  async wait(ms: number, signal: AbortSignal | undefined): Promise<void> {
    await within(new Promise<never>(() => {}), ms, abortOf(signal), this.closing);
  }

  async #repeat<Request, Reply>(call: Call<Request, Reply>): Promise<Reply> {
    const { deadline, signal, lateIds } = call;
    const retries = new Retries(this.#servers, deadline, lateIds && REFILL);
    for (;;) {
      const open = this.open(retries, signal);
      const started = performance.now();
      try {
        const reply = await this.#attempt(call, open, retries);
        this.#latencyMs += 0.2 * (performance.now() - started - this.#latencyMs);
        return reply;
      } catch (error) {
        await this.wait(this.delayMs(error, open, retries), signal);
      }
    }
  }

  /** Makes an attempt. Without an answer it sends a probe, and if need be the second attempt. */
  async #attempt<Request, Reply>(call: Call<Request, Reply>, open: Open, retries: Retries): Promise<Reply> {
    const started = performance.now();
    const { server, rpc } = open;
    const first = this.#send(call, open);
    const early = await within(first, Math.max(MIN_PATIENCE_MS, 4 * this.#latencyMs));
    if (early !== TIMED_OUT) return early;
    const isAnswered = first.then(() => true);
    if ((await within(Promise.race([isAnswered, server.probe()]), PROBE_MS)) === true) {
      this.#latencyMs = Math.max(this.#latencyMs, performance.now() - started);
      return first;
    }
    this.#servers.suspect(server, rpc);
    if (retries.hasSecond || !(call.lateIds || isRepeatable(call.method, call.request))) return first;
    retries.hasSecond = true;
    const second = this.#send(call, this.#openWith(this.#servers.second(server, rpc, retries.asked)));
    let answer: Reply | undefined;
    const drop = (reply: Reply) => {
      if (reply !== answer && call.lateIds) this.#report(call.method, started, undefined, call.lateIds(reply));
    };
    try {
      answer = await firstAnswer([first, second]);
      return answer;
    } finally {
      for (const attempt of [first, second]) attempt.then(drop, () => {});
    }
  }

  #send<Request, Reply>({ method, request, deadline, signal }: Call<Request, Reply>, open: Open): Promise<Reply> {
    const { rpc, metadata } = open;
    const { path, requestSerialize, responseDeserialize } = method;
    return new Promise((resolve, reject) => {
      const done = (error: ServiceError | null, reply?: Reply) => {
        forget();
        if (error) {
          reject(this.#failure(error, open, signal));
          return;
        }
        this.#servers.hasAnswered = true;
        resolve(reply!);
      };
      const options = { deadline };
      const call = rpc.makeUnaryRequest(path, requestSerialize, responseDeserialize, request, metadata, options, done);
      const forget = this.#track(call, signal);
    });
  }

  /** Lets `close` and the signal end a call; returns a function that ends this. */
  #track(call: { cancel(): void }, signal: AbortSignal | undefined): () => void {
    const cancel = () => call.cancel();
    const forgets = [this.closing(cancel), abortOf(signal)(cancel)];
    return () => {
      for (const forget of forgets) forget();
    };
  }

  /** Returns the error that ended an attempt. It may make the server suspect. */
  #failure(error: unknown, { server, rpc }: Open, signal: AbortSignal | undefined): unknown {
    if (signal?.aborted) return signal.reason;
    if (this.#isClosed) return closed('client');
    const failure = errorOf(error);
    if (!(failure instanceof IdallocError) || !SUSPICIOUS.has(failure.reason)) return failure;
    this.#servers.suspect(server, rpc);
    const { reason, message, details, cause } = failure;
    if (reason !== 'SERVER_UNREACHABLE') return failure;
    const tls = TLS_CAUSES.find(({ pattern }) => pattern.test(message));
    const text = `${this.name}: ${tls ? `${tls.text} (${message})` : message}`;
    return new IdallocError(reason, text, tls ? { ...details, metadata: { tls: tls.kind } } : details, { cause });
  }

  /** Reports a call to the hook, or the ids of a late answer. */
  #report({ path }: { readonly path: string }, started: number, failure?: unknown, dropped?: bigint): void {
    const { onCall } = this.#options;
    if (onCall === undefined) return;
    const aborted = () => new IdallocError('CANCELLED', 'the caller aborted the call', CANCELLED, { cause: failure });
    const report: CallReport = {
      method: path.slice(path.lastIndexOf('/') + 1),
      durationMs: performance.now() - started,
      ...(failure !== undefined && { error: failure instanceof IdallocError ? failure : aborted() }),
      ...(dropped !== undefined && { dropped }),
    };
    // The call is not to fail if the hook throws, as its ids would be lost.
    queueMicrotask(() => onCall(report));
  }
}

/** Whether a second attempt does no harm: the call reads, or has a request id. */
function isRepeatable({ path }: { readonly path: string }, request: unknown): boolean {
  return /\/(Get|List|Parse)[^/]*$/.test(path) || Boolean((request as { requestId?: string }).requestId);
}

/** Returns the first reply or lasting error; after a retryable error, that of the other attempt. */
function firstAnswer<Reply>(attempts: Promise<Reply>[]): Promise<Reply> {
  return Promise.race(attempts).catch((error: unknown) => {
    if (!isRetryable(error)) throw error;
    return Promise.any(attempts).catch(({ errors }: AggregateError) => {
      throw errors.find((each) => !isRetryable(each)) ?? error;
    });
  });
}
