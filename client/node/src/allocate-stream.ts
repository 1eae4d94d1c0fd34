// Many calls over one stream: AllocateStream.

import { type ClientDuplexStream, status } from '@grpc/grpc-js';
import { onAbort } from './abort.js';
import type { CallOptions, Connection } from './connection.js';
import { fromStatus, IdallocError, invalidReply } from './errors.js';
import { checkTimeout } from './options.js';
import { type AllocatedRange, type DocIds, toAllocatedRange, toDocIds } from './ranges.js';
import { type DocIdRequest, docIdRequest, type RangeRequest, rangeRequest } from './requests.js';
import { Retries } from './retries.js';
import {
  type AllocateStreamRequest,
  type AllocateStreamResponse,
  IdAllocatorServiceService as rpcs,
} from './gen/idalloc/v1/id_allocator.js';

// The most requests without an answer; the server's limit is 1,000.
const MAX_IN_FLIGHT = 500;
// The attempts of a request whose answers are errors that may end by themselves, and the longest delay before the next
// one: those of a unary call by gRPC's retry policy.
const MAX_ATTEMPTS = 5;
const MAX_RETRY_DELAY_MS = 5000;
const RETRY_DELAY_MS = 100;
// grpc-js's message if a stream was reset, as a proxy does with one that was silent for long.
const RESET = 'RST_STREAM';

type Call = ClientDuplexStream<AllocateStreamRequest, AllocateStreamResponse>;

/** A request of a caller, until the caller has its reply, an error, or no time left. */
interface Pending {
  readonly request: Pick<AllocateStreamRequest, 'allocateRange' | 'generateDocId'>;
  /** In milliseconds since 1970. */
  readonly deadline: number;
  number: bigint;
  failures: number;
  /** The error of the last attempt. */
  failure?: unknown;
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
  #retries = new Retries();
  // The requests whose callers wait; an answer to another one is dropped.
  readonly #waiting = new Set<Pending>();
  // The requests to send: from the end of `next`, then `added` in order. Thus it costs the same for any number of them.
  #next: Pending[] = [];
  #added: Pending[] = [];
  // The requests that were sent and have no answer, in order.
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
  generateDocIds(request: DocIdRequest = {}, options: CallOptions = {}): Promise<DocIds> {
    return this.#ask(
      () => ({ generateDocId: docIdRequest(request) }),
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
        this.#waiting.delete(pending);
        clearTimeout(timer);
        forget();
        settle();
      };
      const pending: Pending = {
        request,
        deadline: Date.now() + timeoutMs,
        number: 0n,
        failures: 0,
        succeed: (value) => finish(() => resolve(value)),
        fail: (error) => finish(() => reject(error)),
      };
      const timer = setTimeout(() => pending.fail(late(timeoutMs, pending.failure)), timeoutMs);
      const forget = onAbort(signal, (reason) => pending.fail(reason));
      this.#waiting.add(pending);
      this.#added.push(pending);
      this.#send();
    });
    const result = convert(answer, count);
    if (result === undefined) throw invalidReply('the answer is of another kind than its request');
    return result;
  }

  /** Sends what is to be sent, if the stream is open and the server may get more. */
  #send(): void {
    if (this.#call === undefined) {
      if (!this.#isOpening && this.#waiting.size > 0) void this.#open();
      return;
    }
    while (this.#sent.length < MAX_IN_FLIGHT) {
      const pending = this.#takeNext();
      if (pending === undefined) return;
      pending.number = ++this.#number;
      this.#sent.push(pending);
      const nanos = Math.max(1, pending.deadline - Date.now()) * 1e6;
      const timeout = { seconds: BigInt(Math.floor(nanos / 1e9)), nanos: Math.floor(nanos % 1e9) };
      this.#call.write({ number: pending.number, timeout, ...pending.request });
    }
  }

  #takeNext(): Pending | undefined {
    for (;;) {
      if (this.#next.length === 0) {
        this.#next = this.#added.reverse();
        this.#added = [];
      }
      const pending = this.#next.pop();
      if (pending === undefined || this.#waiting.has(pending)) return pending;
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
      if (this.#isClosed) {
        call.cancel();
        return;
      }
      this.#call = call;
      this.#send();
    } catch (error) {
      this.#broken(error);
    }
  }

  #receive(answer: AllocateStreamResponse): void {
    if (this.#call === undefined) return; // this stream had a wrong answer
    const pending = this.#sent[0];
    if (pending === undefined || pending.number !== answer.number) {
      const expected = pending === undefined ? 'none' : pending.number;
      this.#failAll(invalidReply(`the answer has number ${answer.number}; expected ${expected}`));
      this.#call?.cancel();
      this.#call = undefined;
      this.#isOpening = true; // until this stream has ended
      return;
    }
    this.#sent.shift();
    this.#retries.progressed();
    if (this.#waiting.has(pending)) this.#settle(pending, answer);
    this.#send();
  }

  #settle(pending: Pending, answer: AllocateStreamResponse): void {
    if (answer.error === undefined) {
      pending.succeed(answer);
      return;
    }
    const error = fromStatus(answer.error);
    const delay = error.retryDelayMs ?? RETRY_DELAY_MS;
    // The stream's limit of ids without an answer is no attempt: other calls use it up.
    const isFull = error.details.metadata?.subject === 'stream';
    if (!isFull) pending.failures++;
    pending.failure = error;
    const mayEnd = isFull || error.code === status.UNAVAILABLE;
    const isLate = delay > Math.min(pending.deadline - Date.now(), MAX_RETRY_DELAY_MS);
    if (!mayEnd || pending.failures >= MAX_ATTEMPTS || isLate) {
      pending.fail(error);
      return;
    }
    // The caller has a timer of its own, which keeps the process running.
    setTimeout(() => {
      this.#added.push(pending);
      this.#send();
    }, delay).unref();
  }

  /** Opens another stream for the requests without an answer, unless a retry cannot help. */
  #broken(cause: unknown): void {
    this.#call = undefined;
    this.#isOpening = false;
    this.#next.push(...this.#sent.reverse());
    this.#sent = [];
    if (this.#isClosed || this.#waiting.size === 0) return;
    const error = hasNoStatus(cause) ? broke(cause) : cause;
    for (const pending of this.#waiting) pending.failure = error === cause ? error : (pending.failure ?? error);
    try {
      const delay = this.#retries.delayMs(error);
      this.#isOpening = true;
      setTimeout(() => {
        this.#isOpening = false;
        this.#send();
      }, delay).unref();
    } catch (lasting) {
      this.#failAll(lasting);
    }
  }

  /** Fails all requests. The next one begins anew. */
  #failAll(error: unknown): void {
    this.#retries = new Retries();
    this.#next = [];
    this.#added = [];
    this.#sent = [];
    for (const pending of [...this.#waiting]) pending.fail(error);
  }
}

/** Whether a stream ended without a status of its server. The next one shows why. */
function hasNoStatus(error: unknown): error is IdallocError {
  return error instanceof IdallocError && (error.code === status.CANCELLED || error.message.includes(RESET));
}

function broke(cause: IdallocError): IdallocError {
  return new IdallocError('UNAVAILABLE', 'the stream broke', { code: status.UNAVAILABLE }, { cause });
}

function closed(): IdallocError {
  return new IdallocError('CANCELLED', 'the stream is closed');
}

function late(timeoutMs: number, failure: unknown): IdallocError {
  const text = `no answer within ${timeoutMs} ms`;
  const details = { code: status.DEADLINE_EXCEEDED };
  if (failure === undefined) return new IdallocError('DEADLINE_EXCEEDED', text, details);
  return new IdallocError('DEADLINE_EXCEEDED', `${text}; the last attempt: ${failure}`, details, { cause: failure });
}
