// Many calls over one stream: AllocateStream.

import { abortOf } from './abort.js';
import type { CallOptions, Connection, Duplex, Open } from './connection.js';
import { closed, fromStatus, type IdallocError, invalidReply, late, unreachable } from './errors.js';
import { checkTimeout } from './options.js';
import { type AllocatedRange, type DocIds, toAllocatedRange, toDocIds } from './ranges.js';
import { type DocIdRequest, docIdRequest, type RangeRequest, rangeRequest } from './requests.js';
import { isStreamFull, MAX_STALL_MS, requestDelayMs, type Retries } from './retries.js';
import {
  type AllocateStreamRequest,
  type AllocateStreamResponse,
  IdAllocatorServiceService as rpcs,
} from './gen/idalloc/v1/id_allocator.js';

// The most requests without an answer; the server's limit is 1,000.
const MAX_IN_FLIGHT = 500;
// How long after its deadline a request's answer may arrive: the server answers at the deadline, too.
const GRACE_MS = 1000;

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
  readonly #retries: Retries;
  // The requests whose callers wait; an answer to another one is dropped.
  readonly #waiting = new Set<Pending>();
  // The requests to send: from the end of `next`, then `added` in order. Thus it costs the same for any number of them.
  #next: Pending[] = [];
  #added: Pending[] = [];
  // How many requests ended since those whose callers left were dropped.
  #ended = 0;
  // The requests that were sent and have no answer, in order.
  #sent: Pending[] = [];
  // The latest deadline of these; when the last answer came or the first of them was sent.
  #latestDeadline = 0;
  #progressedAt = 0;
  #watch: NodeJS.Timeout | undefined;
  #number = 0n;
  #stream: Duplex<AllocateStreamRequest> | undefined;
  // While the next attempt waits.
  #isWaiting = false;
  #isClosed = false;
  readonly #forgetClose: () => void;

  private constructor(connection: Connection) {
    this.#connection = connection;
    this.#retries = connection.streamRetries();
    this.#forgetClose = connection.closing((reason) => this.#close(reason as IdallocError));
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

  /** Ends the stream. Calls that wait for an answer fail with CLOSED. */
  close(): void {
    this.#close(closed('stream'));
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
  }

  #close(error: IdallocError): void {
    this.#isClosed = true;
    this.#forgetClose();
    this.#stream?.end(error);
    this.#failAll(error);
  }

  async #ask<Result>(
    build: () => Pending['request'],
    convert: (answer: AllocateStreamResponse, count: bigint) => Result | undefined,
    { signal, timeoutMs = this.#connection.timeoutMs }: CallOptions,
  ): Promise<Result> {
    const request = build();
    const count = (request.allocateRange ?? request.generateDocId)!.idCount;
    checkTimeout(timeoutMs);
    return this.#connection.reported(rpcs.allocateStream, async () => {
      const result = convert(await this.#exchange(request, timeoutMs, signal), count);
      if (result === undefined) throw invalidReply('the answer is of another kind than its request');
      return result;
    });
  }

  /** Sends a request until it has its answer, a lasting error, or no time left. */
  async #exchange(
    request: Pending['request'],
    timeoutMs: number,
    signal: AbortSignal | undefined,
  ): Promise<AllocateStreamResponse> {
    signal?.throwIfAborted();
    if (this.#isClosed) throw closed('stream');
    return new Promise((resolve, reject) => {
      const finish = (settle: () => void) => {
        this.#waiting.delete(pending);
        clearTimeout(timer);
        forget();
        this.#dropEnded();
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
      const end = () => pending.fail(late(`no answer within ${timeoutMs} ms`, pending.failure));
      const timer = setTimeout(end, timeoutMs);
      const forget = abortOf(signal)((reason) => pending.fail(reason));
      this.#waiting.add(pending);
      this.#added.push(pending);
      this.#send();
    });
  }

  /** Forgets the requests that are not sent and whose callers left, now and then, as it looks at all of them. */
  #dropEnded(): void {
    if (++this.#ended < Math.max(1000, this.#waiting.size)) return;
    this.#ended = 0;
    this.#next = this.#next.filter((pending) => this.#waiting.has(pending));
    this.#added = this.#added.filter((pending) => this.#waiting.has(pending));
  }

  /** Opens the stream if need be, and sends what is to be sent, if the server may get more. */
  #send(): void {
    if (this.#stream === undefined) {
      if (this.#isWaiting || this.#waiting.size === 0) return;
      const open = this.#connection.open(this.#retries);
      const receive = (answer: AllocateStreamResponse) => this.#receive(answer);
      this.#stream = this.#connection.duplex(rpcs.allocateStream, open, receive, (error) => this.#broken(error, open));
    }
    while (this.#sent.length < MAX_IN_FLIGHT) {
      const pending = this.#takeNext();
      if (pending === undefined) break;
      const now = Date.now();
      if (this.#sent.length === 0) {
        this.#progressedAt = now;
        this.#latestDeadline = 0;
      }
      this.#latestDeadline = Math.max(this.#latestDeadline, pending.deadline);
      pending.number = ++this.#number;
      this.#sent.push(pending);
      const nanos = Math.max(1, pending.deadline - now) * 1e6;
      const timeout = { seconds: BigInt(Math.floor(nanos / 1e9)), nanos: Math.floor(nanos % 1e9) };
      this.#stream.write({ number: pending.number, timeout, ...pending.request });
    }
    this.#watchAnswers();
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

  /** Ends a stream without an answer for long, or when no caller waits for those that it owes. */
  #watchAnswers(): void {
    if (this.#sent.length === 0) {
      clearTimeout(this.#watch);
      this.#watch = undefined;
    } else {
      this.#watch ??= setTimeout(() => {
        this.#watch = undefined;
        const now = Date.now();
        const text = `the stream broke: no answer for ${now - this.#progressedAt} ms`;
        if (now >= this.#endOfPatience()) this.#stream?.end(unreachable(text));
        else this.#watchAnswers();
      }, this.#endOfPatience() - Date.now()).unref();
    }
  }

  #endOfPatience(): number {
    return Math.min(this.#progressedAt + MAX_STALL_MS, this.#latestDeadline + GRACE_MS);
  }

  #receive(answer: AllocateStreamResponse): void {
    const pending = this.#sent[0];
    if (pending === undefined || pending.number !== answer.number) {
      const expected = pending === undefined ? 'none' : pending.number;
      this.#stream?.end(invalidReply(`the answer has number ${answer.number}; expected ${expected}`));
      return;
    }
    this.#sent.shift();
    this.#progressedAt = Date.now();
    this.#retries.reset();
    if (this.#waiting.has(pending)) this.#settle(pending, answer);
    this.#send();
  }

  #settle(pending: Pending, answer: AllocateStreamResponse): void {
    if (answer.error === undefined) {
      pending.succeed(answer);
      return;
    }
    const error = fromStatus(answer.error);
    pending.failure = error;
    if (!isStreamFull(error)) pending.failures++; // other calls use up the stream's limit
    const delay = requestDelayMs(error, pending.failures, pending.deadline);
    if (delay === undefined) {
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
  #broken(error: unknown, open: Open): void {
    this.#stream = undefined;
    this.#next.push(...this.#sent.reverse());
    this.#sent = [];
    this.#watchAnswers();
    if (this.#isClosed || this.#waiting.size === 0) return;
    for (const pending of this.#waiting) pending.failure = error;
    let delay: number;
    try {
      delay = this.#connection.delayMs(error, open, this.#retries);
    } catch (lasting) {
      this.#failAll(lasting);
      return;
    }
    this.#isWaiting = true;
    setTimeout(() => {
      this.#isWaiting = false;
      if (this.#waiting.size === 0) this.#retries.reset();
      this.#send();
    }, delay).unref();
  }

  /** Fails all requests. The next one begins anew. */
  #failAll(error: unknown): void {
    this.#retries.reset();
    this.#next = [];
    this.#added = [];
    this.#sent = [];
    this.#watchAnswers();
    for (const pending of [...this.#waiting]) pending.fail(error);
  }
}
