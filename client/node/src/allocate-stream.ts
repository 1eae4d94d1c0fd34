// Many calls over one stream: AllocateStream.

import { type ClientDuplexStream, status } from '@grpc/grpc-js';
import { onAbort } from './abort.js';
import type { CallOptions, Connection } from './connection.js';
import { fromStatus, IdallocError, invalidReply } from './errors.js';
import { checkTimeout } from './options.js';
import { type AllocatedRange, type DocIds, toAllocatedRange, toDocIds } from './ranges.js';
import { type DocIdsRequest, docIdsRequest, type RangeRequest, rangeRequest } from './requests.js';
import { Retries } from './retries.js';
import {
  type AllocateStreamRequest,
  type AllocateStreamResponse,
  IdAllocatorServiceService as rpcs,
} from './gen/idalloc/v1/id_allocator.js';

// The most requests without an answer; the server's limit is 1,000.
const MAX_IN_FLIGHT = 500;
// How often a request is sent whose answer is an error that may end by itself, as gRPC's retry policy does.
const MAX_ATTEMPTS = 5;
const RETRY_DELAY_MS = 100;

type Call = ClientDuplexStream<AllocateStreamRequest, AllocateStreamResponse>;

/** A request of a caller, until the caller has its reply, an error, or no time left. */
interface Pending {
  readonly request: Pick<AllocateStreamRequest, 'allocateRange' | 'generateDocId'>;
  /** In milliseconds since 1970. */
  readonly deadline: number;
  number: bigint;
  failures: number;
  /** Whether nobody waits any more; then an answer is dropped. */
  isDone: boolean;
  succeed(answer: AllocateStreamResponse): void;
  fail(error: unknown): void;
}

/**
 * Calls that share one stream. Any number of async functions may use it; the server answers in the order of the
 * requests. If the stream breaks, the client opens another one and sends the requests without an answer again: their
 * lost ids are a gap, unless a request has a `requestId`. Make it with `Client.allocateStream`, and close it.
 */
export class AllocateStream implements AsyncDisposable {
  readonly #connection: Connection;
  readonly #retries = new Retries();
  // The requests to send, and those that were sent, in order.
  #queue: Pending[] = [];
  #sent: Pending[] = [];
  #number = 0n;
  #call: Call | undefined;
  // While a stream is opened, or the next attempt waits.
  #isOpening = false;
  #isClosed = false;

  private constructor(connection: Connection) {
    this.#connection = connection;
  }

  /** @internal */
  static over(connection: Connection): AllocateStream {
    return new AllocateStream(connection);
  }

  /** As `Client.allocateRange`. */
  allocateRange(request: RangeRequest, options: CallOptions = {}): Promise<AllocatedRange> {
    return this.#ask(
      () => ({ allocateRange: rangeRequest(request) }),
      ({ allocateRange: reply }, count) =>
        reply && toAllocatedRange(reply, { least: count, most: count, texts: request.texts ?? false }),
      options,
    );
  }

  /** As `Client.generateDocIds`. */
  generateDocIds(request: DocIdsRequest = {}, options: CallOptions = {}): Promise<DocIds> {
    return this.#ask(
      () => ({ generateDocId: docIdsRequest(request) }),
      ({ generateDocId: reply }, count) => reply && toDocIds(reply, { least: count, most: count }),
      options,
    );
  }

  /** Ends the stream. Calls that wait for an answer fail with CANCELLED. */
  close(): void {
    this.#isClosed = true;
    this.#call?.cancel();
    this.#failAll(closed());
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
  }

  async #ask<Result>(
    build: () => Pending['request'],
    convert: (answer: AllocateStreamResponse, count: bigint) => Result | undefined,
    { signal, timeoutMs = this.#connection.timeoutMs }: CallOptions,
  ): Promise<Result> {
    const request = build();
    const count = (request.allocateRange ?? request.generateDocId)!.idCount;
    checkTimeout(timeoutMs);
    signal?.throwIfAborted();
    if (this.#isClosed) throw closed();
    const answer = await new Promise<AllocateStreamResponse>((resolve, reject) => {
      const finish = (settle: () => void) => {
        pending.isDone = true;
        clearTimeout(timer);
        forget();
        settle();
      };
      const pending: Pending = {
        request,
        deadline: Date.now() + timeoutMs,
        number: 0n,
        failures: 0,
        isDone: false,
        succeed: (value) => finish(() => resolve(value)),
        fail: (error) => finish(() => reject(error)),
      };
      const timer = setTimeout(() => pending.fail(late(timeoutMs)), timeoutMs);
      const forget = onAbort(signal, (reason) => pending.fail(reason));
      this.#queue.push(pending);
      this.#send();
    });
    const result = convert(answer, count);
    if (result === undefined) throw invalidReply('the answer is of another kind than its request');
    return result;
  }

  /** Sends what waits, if the stream is open and the server may get more. */
  #send(): void {
    if (this.#queue.length === 0) return;
    if (this.#call === undefined) {
      if (!this.#isOpening) void this.#open();
      return;
    }
    while (this.#sent.length < MAX_IN_FLIGHT) {
      const pending = this.#queue.shift();
      if (pending === undefined) return;
      if (pending.isDone) continue;
      pending.number = ++this.#number;
      this.#sent.push(pending);
      const nanos = Math.max(1, pending.deadline - Date.now()) * 1e6;
      const timeout = { seconds: BigInt(Math.floor(nanos / 1e9)), nanos: Math.floor(nanos % 1e9) };
      this.#call.write({ number: pending.number, timeout, ...pending.request });
    }
  }

  async #open(): Promise<void> {
    this.#isOpening = true;
    try {
      const call: Call = await this.#connection.duplex(
        rpcs.allocateStream,
        (answer: AllocateStreamResponse) => this.#receive(answer),
        (error) => this.#broken(error),
      );
      this.#isOpening = false;
      if (this.#isClosed) call.cancel();
      this.#call = call;
      this.#send();
    } catch (error) {
      this.#broken(error);
    }
  }

  #receive(answer: AllocateStreamResponse): void {
    const pending = this.#sent[0];
    if (pending === undefined || pending.number !== answer.number) {
      const expected = pending === undefined ? 'none' : pending.number;
      this.#failAll(invalidReply(`the answer has number ${answer.number}; expected ${expected}`));
      this.#call?.cancel();
      return;
    }
    this.#sent.shift();
    this.#retries.progressed();
    if (!pending.isDone) this.#settle(pending, answer);
    this.#send();
  }

  #settle(pending: Pending, answer: AllocateStreamResponse): void {
    if (answer.error === undefined) {
      pending.succeed(answer);
      return;
    }
    const error = fromStatus(answer.error);
    const delay = error.retryDelayMs ?? RETRY_DELAY_MS;
    pending.failures++;
    const canRetry = error.code === status.UNAVAILABLE && pending.failures < MAX_ATTEMPTS;
    if (!canRetry || Date.now() + delay >= pending.deadline) {
      pending.fail(error);
      return;
    }
    setTimeout(() => {
      this.#queue.push(pending);
      this.#send();
    }, delay);
  }

  /** Opens another stream for the requests without an answer, unless a retry cannot help. */
  #broken(error: unknown): void {
    this.#call = undefined;
    this.#queue = [...this.#sent, ...this.#queue].filter((pending) => !pending.isDone);
    this.#sent = [];
    this.#isOpening = false;
    if (this.#isClosed || this.#queue.length === 0) return;
    try {
      const delay = this.#retries.delayMs(error);
      this.#isOpening = true;
      setTimeout(() => {
        this.#isOpening = false;
        this.#send();
      }, delay);
    } catch (lasting) {
      this.#failAll(lasting);
    }
  }

  #failAll(error: unknown): void {
    const all = [...this.#sent, ...this.#queue];
    this.#sent = [];
    this.#queue = [];
    for (const pending of all) if (!pending.isDone) pending.fail(error);
  }
}

function closed(): IdallocError {
  return new IdallocError('CANCELLED', 'the stream is closed');
}

function late(timeoutMs: number): IdallocError {
  const details = { code: status.DEADLINE_EXCEEDED };
  return new IdallocError('DEADLINE_EXCEEDED', `no answer within ${timeoutMs} ms`, details);
}
