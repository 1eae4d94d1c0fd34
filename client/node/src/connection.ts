// A channel to the servers: opened by the first call, with deadlines, typed errors and reports of calls.

import {
  Client as GrpcClient,
  type ClientDuplexStream,
  type Metadata,
  type MethodDefinition,
  type ServiceError,
  status,
} from '@grpc/grpc-js';
import { onAbort } from './abort.js';
import { fromGrpc, IdallocError } from './errors.js';
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

const DEFAULT_TIMEOUT_MS = 5000;
// As in gRPC's retry policy, which does not retry all ends of a connection.
const MAX_ATTEMPTS = 5;

/** Limits of one call. */
export interface CallOptions {
  /** Ends the call; it then throws the reason of the signal. */
  signal?: AbortSignal | undefined;
  /** The deadline in milliseconds; by default that of the client, and none for streams. */
  timeoutMs?: number | undefined;
}

interface Cancellable {
  cancel(): void;
}

interface Open {
  readonly rpc: GrpcClient;
  readonly metadata: Metadata;
}

/** @internal */
export class Connection {
  readonly timeoutMs: number;
  readonly #options: ConnectOptions;
  readonly #target: string;
  readonly #token: Token;
  readonly #running = new Set<Cancellable>();
  #rpc: Promise<GrpcClient> | undefined;
  #isClosed = false;

  constructor(options: ConnectOptions) {
    this.#target = targetOf(options.addresses);
    checkOptions(this.#target, options);
    this.#options = options;
    this.#token = new Token(options);
    this.timeoutMs = options.timeoutMs ?? DEFAULT_TIMEOUT_MS;
  }

  /** Makes a unary call. gRPC's policy retries it within the deadline. */
  async unary<Request, Reply>(
    method: MethodDefinition<Request, Reply>,
    request: Request,
    { signal, timeoutMs = this.timeoutMs }: CallOptions,
  ): Promise<Reply> {
    const deadline = Date.now() + checkTimeout(timeoutMs);
    for (let attempt = 1; ; attempt++) {
      const started = performance.now();
      try {
        const reply = await this.#unary(method, request, deadline, signal);
        this.#report(method.path, started);
        return reply;
      } catch (error) {
        this.#report(method.path, started, error);
        if (attempt >= MAX_ATTEMPTS || !(await this.#canRepeat(error, attempt))) throw error;
      }
    }
  }

  /** Yields the messages of a stream of the server. */
  async *stream<Request, Reply>(
    method: MethodDefinition<Request, Reply>,
    request: Request,
    deadline: number,
    signal: AbortSignal | undefined,
  ): AsyncGenerator<Reply, void, undefined> {
    const started = performance.now();
    const { rpc, metadata } = await this.#open(signal);
    const { path, requestSerialize, responseDeserialize } = method;
    const call = rpc.makeServerStreamRequest(path, requestSerialize, responseDeserialize, request, metadata, {
      deadline,
    });
    const forget = this.#track(call, signal);
    call.on('error', () => {}); // after the last message that anyone reads
    let failure: unknown;
    try {
      yield* call as AsyncIterable<Reply>;
    } catch (error) {
      failure = this.#failure(error, signal);
      throw failure;
    } finally {
      forget();
      call.cancel(); // where the caller stopped early
      this.#report(path, started, failure);
    }
  }

  /** Opens a stream of requests. `onEnd` is called once, with the error that ended it. */
  async duplex<Request, Reply>(
    method: MethodDefinition<Request, Reply>,
    onReply: (reply: Reply) => void,
    onEnd: (error: unknown) => void,
  ): Promise<ClientDuplexStream<Request, Reply>> {
    const started = performance.now();
    const { rpc, metadata } = await this.#open(undefined);
    const { path, requestSerialize, responseDeserialize } = method;
    const call = rpc.makeBidiStreamRequest(path, requestSerialize, responseDeserialize, metadata);
    const forget = this.#track(call, undefined);
    let hasEnded = false;
    const end = (error: unknown) => {
      if (hasEnded) return;
      hasEnded = true;
      forget();
      const failure = this.#failure(error, undefined);
      this.#report(path, started, failure);
      onEnd(failure);
    };
    call.on('data', onReply);
    call.on('error', end);
    const details = { code: status.UNAVAILABLE };
    call.on('end', () => setImmediate(end, new IdallocError('UNAVAILABLE', 'the server ended the stream', details)));
    return call;
  }

  /** Ends all calls with CANCELLED. */
  close(): void {
    this.#isClosed = true;
    for (const call of this.#running) call.cancel();
    void this.#rpc?.then((rpc) => rpc.close()).catch(() => {});
  }

  async #open(signal: AbortSignal | undefined): Promise<Open> {
    this.#rpc ??= this.#connect();
    let rpc: GrpcClient;
    try {
      rpc = await this.#rpc;
    } catch (error) {
      this.#rpc = undefined; // the next call reads the files again
      throw error;
    }
    const metadata = this.#token.metadata ?? (await this.#token.read());
    signal?.throwIfAborted();
    if (this.#isClosed) throw this.#closed();
    return { rpc, metadata };
  }

  async #connect(): Promise<GrpcClient> {
    if (this.#isClosed) throw this.#closed();
    const credentials = await readCredentials(this.#options.tls);
    return new GrpcClient(this.#target, credentials, channelOptions(this.#target, this.#options));
  }

  async #unary<Request, Reply>(
    { path, requestSerialize, responseDeserialize }: MethodDefinition<Request, Reply>,
    request: Request,
    deadline: number,
    signal: AbortSignal | undefined,
  ): Promise<Reply> {
    const { rpc, metadata } = await this.#open(signal);
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

  /** Whether to repeat a call at once: gRPC's policy does not know all errors after which a retry helps. */
  async #canRepeat(error: unknown, attempt: number): Promise<boolean> {
    if (!(error instanceof IdallocError) || this.#isClosed) return false;
    // The server closed the connection with an error code, as one does that stops.
    const cause = error.cause as Partial<ServiceError> | undefined;
    if (error.code === status.UNAVAILABLE && cause?.code === status.INTERNAL) return true;
    return error.code === status.UNAUTHENTICATED && attempt === 1 && (await this.#token.hasChanged());
  }

  /** Lets `close` and the signal end a call; returns a function that ends this. */
  #track(call: Cancellable, signal: AbortSignal | undefined): () => void {
    this.#running.add(call);
    const forget = onAbort(signal, () => call.cancel());
    return () => {
      this.#running.delete(call);
      forget();
    };
  }

  #failure(error: unknown, signal: AbortSignal | undefined): unknown {
    if (signal?.aborted) return signal.reason;
    return this.#isClosed ? this.#closed() : fromGrpc(error);
  }

  #closed(): IdallocError {
    return new IdallocError('CANCELLED', 'the client is closed');
  }

  #report(path: string, started: number, error?: unknown): void {
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
