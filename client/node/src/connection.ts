// A channel to the servers: opened by the first call, with deadlines, retries, typed errors and reports of calls.

import { Client as GrpcClient, type Metadata, type MethodDefinition, type ServiceError, status } from '@grpc/grpc-js';
import { abortOf, type Ending, TIMED_OUT, within } from './abort.js';
import { closed, errorOf, IdallocError, late } from './errors.js';
import {
  type CallReport,
  channelOptions,
  checkOptions,
  checkTimeout,
  type ConnectOptions,
  readCredentials,
  targetOf,
  Token,
} from './options.js';
import { MAX_STALL_MS, retryDelayMs } from './retries.js';

const DEFAULT_TIMEOUT_MS = 5000;

/** Limits of one call. */
export interface CallOptions {
  /** Ends the call; it then throws the reason of the signal. */
  signal?: AbortSignal | undefined;
  /** The deadline in milliseconds; by default that of the client, and none for streams. */
  timeoutMs?: number | undefined;
}

/** @internal The channel, and the metadata of a call. */
export interface Open {
  readonly rpc: GrpcClient;
  readonly metadata: Metadata;
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
  readonly #target: string;
  readonly #token: Token;
  // They are called by `close`.
  readonly #endings = new Set<(reason: unknown) => void>();
  #connecting: Promise<GrpcClient> | undefined;
  #rpc: GrpcClient | undefined;
  #hasAnswered = false;
  #isClosed = false;

  constructor(options: ConnectOptions) {
    this.#target = targetOf(options.addresses);
    checkOptions(this.#target, options);
    this.name = [options.addresses].flat().join(', ');
    this.#options = options;
    this.#token = new Token(options);
    this.timeoutMs = options.timeoutMs ?? DEFAULT_TIMEOUT_MS;
  }

  /** Whether a server has ever answered. */
  get hasAnswered(): boolean {
    return this.#hasAnswered;
  }

  /** The ending by `close`. */
  readonly closing: Ending = (listener) => {
    if (this.#isClosed) queueMicrotask(() => listener(closed('client')));
    this.#endings.add(listener);
    return () => this.#endings.delete(listener);
  };

  /** Makes a unary call, with its retries. */
  async unary<Request, Reply>(
    method: MethodDefinition<Request, Reply>,
    request: Request,
    { signal, timeoutMs = this.timeoutMs }: CallOptions,
  ): Promise<Reply> {
    const deadline = Date.now() + checkTimeout(timeoutMs);
    const started = performance.now();
    try {
      const reply = await this.#retry(method, request, deadline, signal);
      this.report(method, started);
      return reply;
    } catch (error) {
      this.report(method, started, error);
      throw error;
    }
  }

  /** Yields the messages of a stream of the server. */
  async *stream<Request, Reply>(
    method: MethodDefinition<Request, Reply>,
    request: Request,
    { rpc, metadata }: Open,
    deadline: number,
    signal: AbortSignal | undefined,
  ): AsyncGenerator<Reply, void, undefined> {
    const started = performance.now();
    const { path, requestSerialize, responseDeserialize } = method;
    const call = rpc.makeServerStreamRequest(path, requestSerialize, responseDeserialize, request, metadata, {
      deadline,
    });
    const forget = this.#track(call, signal);
    call.on('error', () => {}); // after the last message that anyone reads
    const messages = (call as AsyncIterable<Reply>)[Symbol.asyncIterator]();
    let failure: unknown;
    let isStalled = false;
    const stall = () => {
      isStalled = true;
      call.cancel();
    };
    try {
      for (;;) {
        // The time in which the caller uses a message does not count.
        const timer = setTimeout(stall, MAX_STALL_MS);
        const { value, done } = await messages.next().finally(() => clearTimeout(timer));
        if (done) return;
        this.#hasAnswered = true;
        yield value;
      }
    } catch (error) {
      failure = isStalled ? late(`no message arrived within ${MAX_STALL_MS} ms`) : this.#failure(error, signal);
      throw failure;
    } finally {
      forget();
      call.cancel(); // where the caller stopped early
      this.report(method, started, failure);
    }
  }

  /** Opens a stream of requests. `onEnd` is called once, with the error that ended it. */
  duplex<Request, Reply>(
    { path, requestSerialize, responseDeserialize }: MethodDefinition<Request, Reply>,
    { rpc, metadata }: Open,
    onReply: (reply: Reply) => void,
    onEnd: (error: unknown) => void,
  ): Duplex<Request> {
    const call = rpc.makeBidiStreamRequest(path, requestSerialize, responseDeserialize, metadata);
    const forget = this.#track(call, undefined);
    let hasEnded = false;
    const end = (error: unknown) => {
      if (hasEnded) return;
      hasEnded = true;
      forget();
      call.cancel();
      onEnd(this.#failure(error, undefined));
    };
    call.on('data', (reply: Reply) => {
      if (hasEnded) return;
      this.#hasAnswered = true;
      onReply(reply);
    });
    call.on('error', end);
    const details = { code: status.UNAVAILABLE };
    const ended = new IdallocError('SERVER_UNREACHABLE', 'the server ended the stream', details);
    call.on('end', () => setImmediate(end, ended));
    return { write: (request) => call.write(request), end };
  }

  /** Ends all calls and waits with CLOSED. */
  close(): void {
    if (this.#isClosed) return;
    this.#isClosed = true;
    for (const end of [...this.#endings]) end(closed('client'));
    void this.#connecting?.then((rpc) => rpc.close()).catch(() => {});
  }

  /** Returns the channel and the token. It reads their files within the limits of a call. */
  async open(deadline: number, signal: AbortSignal | undefined): Promise<Open> {
    signal?.throwIfAborted();
    if (this.#isClosed) throw closed('client');
    const metadata = this.#token.metadata;
    if (this.#rpc !== undefined && metadata !== undefined) return { rpc: this.#rpc, metadata };
    const opened = await this.#within(this.#read(), deadline, signal);
    if (opened === TIMED_OUT) throw late('the files of TLS and of the token could not be read in time');
    return opened;
  }

  /** Whether a call that failed has another token now. */
  async hasNewToken(error: unknown, { metadata }: Open, deadline: number, signal?: AbortSignal): Promise<boolean> {
    if (!(error instanceof IdallocError) || error.code !== status.UNAUTHENTICATED) return false;
    return (await this.#within(this.#token.hasChanged(metadata), deadline, signal)) === true;
  }

  /** Waits before a retry. */
  async wait(ms: number, signal: AbortSignal | undefined): Promise<void> {
    await within(new Promise<never>(() => {}), ms, abortOf(signal), this.closing);
  }

  #within<T>(promise: Promise<T>, deadline: number, signal: AbortSignal | undefined): Promise<T | typeof TIMED_OUT> {
    return within(promise, deadline - Date.now(), abortOf(signal), this.closing);
  }

  async #read(): Promise<Open> {
    this.#connecting ??= this.#connect();
    try {
      this.#rpc = await this.#connecting;
    } catch (error) {
      this.#connecting = undefined; // the next call reads the files again
      throw error;
    }
    return { rpc: this.#rpc, metadata: this.#token.metadata ?? (await this.#token.read()) };
  }

  async #connect(): Promise<GrpcClient> {
    const credentials = await readCredentials(this.#options.tls);
    return new GrpcClient(this.#target, credentials, channelOptions(this.#target, this.#options));
  }

  async #retry<Request, Reply>(
    method: MethodDefinition<Request, Reply>,
    request: Request,
    deadline: number,
    signal: AbortSignal | undefined,
  ): Promise<Reply> {
    let isRejected = false; // for its token
    let failure: unknown;
    for (let failures = 0; ; ) {
      const open = await this.open(deadline, signal);
      try {
        const reply = await this.#unary(method, request, open, deadline, signal);
        this.#hasAnswered = true;
        return reply;
      } catch (error) {
        if (!isRejected && (await this.hasNewToken(error, open, deadline, signal))) {
          isRejected = true;
          continue;
        }
        const delay = retryDelayMs(error, ++failures, deadline);
        if (delay === undefined) throw isLate(error) && failure !== undefined ? late(error.message, failure) : error;
        failure = error;
        await this.wait(delay, signal);
      }
    }
  }

  #unary<Request, Reply>(
    { path, requestSerialize, responseDeserialize }: MethodDefinition<Request, Reply>,
    request: Request,
    { rpc, metadata }: Open,
    deadline: number,
    signal: AbortSignal | undefined,
  ): Promise<Reply> {
    return new Promise((resolve, reject) => {
      const done = (error: ServiceError | null, reply?: Reply) => {
        forget();
        if (error) reject(this.#failure(error, signal));
        else resolve(reply!);
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

  #failure(error: unknown, signal: AbortSignal | undefined): unknown {
    if (signal?.aborted) return signal.reason;
    if (this.#isClosed) return closed('client');
    const failure = errorOf(error);
    if (!(failure instanceof IdallocError) || failure.reason !== 'SERVER_UNREACHABLE') return failure;
    const { reason, message, details, cause } = failure;
    return new IdallocError(reason, `${this.name}: ${message}`, details, { cause });
  }

  /** Reports a call to the hook. */
  report({ path }: { readonly path: string }, started: number, error?: unknown): void {
    if (this.#options.onCall === undefined) return;
    const failed = error === undefined ? {} : { error: error instanceof IdallocError ? error : aborted(error) };
    const report: CallReport = {
      method: path.slice(path.lastIndexOf('/') + 1),
      durationMs: performance.now() - started,
      ...failed,
    };
    try {
      this.#options.onCall(report);
    } catch (failure) {
      // The call is not to fail for it, as its ids would be lost.
      queueMicrotask(() => {
        throw failure;
      });
    }
  }
}

function aborted(reason: unknown): IdallocError {
  return new IdallocError('CANCELLED', 'the caller aborted the call', { code: status.CANCELLED }, { cause: reason });
}

/** Whether grpc-js ended a call at its deadline. */
function isLate(error: unknown): error is IdallocError {
  return error instanceof IdallocError && error.reason === 'DEADLINE_EXCEEDED';
}
