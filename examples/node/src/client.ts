// Calls of idalloc.v1.IdAllocatorService with promises, deadlines, and streams that continue after a break.

import { readFileSync } from 'node:fs';
import { setTimeout as sleep } from 'node:timers/promises';
import { type ClientReadableStream, credentials, Metadata, status } from '@grpc/grpc-js';
import {
  AllocateRangeRequest,
  AllocateRangeResponse,
  AllocateStreamRequest,
  type AllocateStreamResponse,
  DocIdView,
  IdAllocatorServiceClient,
  type IdRange,
  StreamDocIdsRequest,
  StreamDocIdsResponse,
  StreamRangesRequest,
  StreamRangesResponse,
} from '../gen/idalloc/v1/id_allocator.js';
import { checkRuns } from './doc-ids.js';
import { fromGrpc, IdallocError, toMs } from './errors.js';
import type { IssuedLog } from './issued-log.js';
import { type AllocatedRange, checkRange } from './pool.js';

/** The deadline of a unary call, its retries included. */
const TIMEOUT_MS = 5000;
/** A stream that sends nothing for so long is cancelled and continued: its connection may be dead. */
const STALL_MS = 20_000;
/** How long to go on without progress. */
const GIVE_UP_MS = 60_000;
const INITIAL_BACKOFF_MS = 100;
const MAX_BACKOFF_MS = 2000;
/** The default of chunk_id_count: a message of a stream has no more ids. */
const MAX_CHUNK = 10_000n;

export interface ClientOptions {
  /** Host and port. */
  server: string;
  /** The file of the CA's certificates; without it the connection is not encrypted. */
  ca?: string | undefined;
  token?: string | undefined;
  log?: IssuedLog | undefined;
}

export class Client {
  private readonly rpc: IdAllocatorServiceClient;
  private readonly metadata = new Metadata();
  private readonly log: IssuedLog | undefined;

  constructor({ server, ca, token, log }: ClientOptions) {
    const serviceConfig = new URL('../../../../protos/idalloc/v1/service_config.json', import.meta.url);
    this.rpc = new IdAllocatorServiceClient(
      server,
      ca === undefined ? credentials.createInsecure() : credentials.createSsl(readFileSync(ca)),
      {
        'grpc.service_config': readFileSync(serviceConfig, 'utf8'), // with the retry policy of unary calls
        // The defaults are 1 s and 120 s: after a restart the server would stay out of reach for too long.
        'grpc.initial_reconnect_backoff_ms': INITIAL_BACKOFF_MS,
        'grpc.max_reconnect_backoff_ms': MAX_BACKOFF_MS,
      },
    );
    // Metadata instead of call credentials, which grpc-js refuses on a connection without TLS.
    if (token !== undefined) this.metadata.set('authorization', `Bearer ${token}`);
    this.log = log;
  }

  /** Allocates one range, and records it in the log unless `isRepeated`: then its ids were recorded before. */
  async allocateRange(
    fields: Partial<AllocateRangeRequest>,
    { signal, isRepeated = false }: { signal?: AbortSignal; isRepeated?: boolean } = {},
  ): Promise<AllocatedRange> {
    const request = AllocateRangeRequest.create(fields);
    const asked = this.log?.now();
    const reply = await this.unary(request, signal);
    const range = toAllocatedRange(reply);
    checkRange(range, request.idCount || 1n);
    if (asked !== undefined && !isRepeated) {
      this.log?.range(request.sequence, range, reply, asked, request.requestId);
    }
    return range;
  }

  /** Allocates `total` ids in ranges. After a break it continues with what is left. */
  streamRanges(sequence: string, total: bigint, backoff: Backoff): AsyncGenerator<AllocatedRange> {
    return this.resume(
      total,
      backoff,
      (missing) =>
        this.rpc.streamRanges(StreamRangesRequest.create({ sequence, totalIdCount: missing }), this.metadata),
      (reply: StreamRangesResponse, missing, asked) => {
        const range = toAllocatedRange(reply);
        const most = missing < MAX_CHUNK ? missing : MAX_CHUNK;
        checkRange(range, range.idCount >= 1n && range.idCount <= most ? range.idCount : most);
        this.log?.range(sequence, range, reply, asked);
        return [range, range.idCount];
      },
    );
  }

  /** Generates `total` document ids in runs. After a break it continues with what is left. */
  streamDocIds(total: bigint, backoff: Backoff): AsyncGenerator<StreamDocIdsResponse['runs']> {
    const view = DocIdView.DOC_ID_VIEW_COMPACT; // the default view is the slowest
    return this.resume(
      total,
      backoff,
      (missing) => this.rpc.streamDocIds(StreamDocIdsRequest.create({ totalIdCount: missing, view }), this.metadata),
      ({ runs }: StreamDocIdsResponse, missing, asked) => {
        const count = checkRuns(runs, missing < MAX_CHUNK ? missing : MAX_CHUNK);
        this.log?.docIds(runs, asked);
        return [runs, count];
      },
    );
  }

  /**
   * Sends several requests over one stream, and returns the answer to each: ids, or an error.
   *
   * If the stream breaks, it throws: send all of them again, since gRPC does not resume a stream. It writes all requests
   * at once; with more than 1,000 wait for answers meanwhile.
   */
  async allocateStream(requests: Partial<AllocateStreamRequest>[]): Promise<AllocateStreamResponse[]> {
    const asked = this.log?.now() ?? 0n;
    const call = this.rpc.allocateStream(this.metadata, { deadline: Date.now() + TIMEOUT_MS });
    const sent = requests.map((fields, i) => AllocateStreamRequest.create({ ...fields, number: BigInt(i + 1) }));
    for (const request of sent) call.write(request);
    call.end(); // the server ends the stream after the last answer
    const answers: AllocateStreamResponse[] = [];
    try {
      for await (const message of call) {
        const answer = message as AllocateStreamResponse;
        this.receive(sent[answers.length], answer, asked);
        answers.push(answer);
      }
    } catch (error) {
      throw fromGrpc(error);
    }
    if (answers.length === sent.length) return answers;
    throw new IdallocError('INVALID_REPLY', `the stream ended after ${answers.length} of ${sent.length} answers`);
  }

  close(): void {
    this.rpc.close();
  }

  /** Checks an answer of `allocateStream`, and records its ids. */
  private receive(request: AllocateStreamRequest | undefined, answer: AllocateStreamResponse, asked: bigint): void {
    const { allocateRange, generateDocId } = answer;
    if (request?.number !== answer.number) {
      throw new IdallocError('INVALID_REPLY', `number is ${answer.number}; expected ${request?.number}`);
    }
    if (request.allocateRange && allocateRange) {
      const { sequence, idCount, requestId } = request.allocateRange;
      const range = toAllocatedRange(allocateRange);
      checkRange(range, idCount || 1n);
      this.log?.range(sequence, range, allocateRange, asked, requestId);
    } else if (request.generateDocId && generateDocId) {
      checkRuns(generateDocId.runs, request.generateDocId.idCount || 1n);
      this.log?.docIds(generateDocId.runs, asked);
    } else if (answer.error === undefined) {
      throw new IdallocError('INVALID_REPLY', `the answer to request ${answer.number} has no ids and no error`);
    }
  }

  private unary(request: AllocateRangeRequest, signal: AbortSignal | undefined): Promise<AllocateRangeResponse> {
    return new Promise((resolve, reject) => {
      const abort = () => call.cancel();
      const call = this.rpc.allocateRange(
        request,
        this.metadata,
        { deadline: Date.now() + TIMEOUT_MS },
        (error, reply) => {
          signal?.removeEventListener('abort', abort);
          if (error) reject(fromGrpc(error));
          else resolve(reply);
        },
      );
      if (signal?.aborted) abort();
      signal?.addEventListener('abort', abort);
    });
  }

  /**
   * Yields the messages of a stream, and opens it again for the missing ids when it breaks: gRPC's own retries end with
   * the first message.
   *
   * @param open - opens the stream for this many ids
   * @param receive - checks and records a message; returns what to yield, and how many ids it has
   */
  private async *resume<Message, Result>(
    total: bigint,
    backoff: Backoff,
    open: (missing: bigint) => ClientReadableStream<Message>,
    receive: (message: Message, missing: bigint, asked: bigint) => [Result, bigint],
  ): AsyncGenerator<Result> {
    let missing = total;
    while (missing > 0n) {
      const asked = this.log?.now() ?? 0n;
      const call = open(missing);
      const stall = setTimeout(() => call.cancel(), STALL_MS);
      try {
        for await (const message of call) {
          const [result, count] = receive(message as Message, missing, asked);
          missing -= count;
          backoff.reset();
          yield result;
          stall.refresh(); // after the yield, as the caller may be slow
        }
        if (missing > 0n) throw new IdallocError('INVALID_REPLY', `the stream ended with ${missing} ids missing`);
      } catch (error) {
        // If all ids arrived, the status of the stream does not matter.
        if (missing > 0n) await backoff.wait(fromGrpc(error));
      } finally {
        clearTimeout(stall);
        call.cancel(); // where the caller stopped early
      }
    }
  }
}

/** Decides whether and when to try again after an error. */
export class Backoff {
  private failures = 0;
  private since: number | undefined; // the first error without progress
  private hasAnswered = false;

  /** Records progress. */
  reset(): void {
    this.failures = 0;
    this.since = undefined;
    this.hasAnswered = true;
  }

  /** Calls until it succeeds. */
  async retry<T>(call: () => Promise<T>): Promise<T> {
    for (;;) {
      try {
        const result = await call();
        this.reset();
        return result;
      } catch (error) {
        await this.wait(error);
      }
    }
  }

  /** Waits before the next attempt. Throws the error if a retry cannot help, or after a minute without progress. */
  async wait(error: unknown): Promise<void> {
    if (!(error instanceof IdallocError)) throw error;
    const { code, retryDelayMs } = error.details;
    const isRetryable = code === status.UNAVAILABLE || code === status.DEADLINE_EXCEEDED || code === status.CANCELLED;
    // Without an ErrorInfo the reason is the name of the code: nobody answered. At first, the address may be wrong.
    const noAnswer = code !== undefined && error.reason === status[code];
    if (!isRetryable || (noAnswer && !this.hasAnswered)) throw error;
    const now = performance.now();
    this.since ??= now;
    const backoff = Math.min(MAX_BACKOFF_MS, INITIAL_BACKOFF_MS * 2 ** this.failures++);
    // Jitter, so that clients of one server do not retry at the same moment.
    const delay = (retryDelayMs ?? backoff) * (1 + 0.2 * Math.random());
    if (now + delay - this.since > GIVE_UP_MS) throw error;
    await sleep(delay);
  }
}

function toAllocatedRange({ range, ttl, period }: AllocateRangeResponse | StreamRangesResponse): AllocatedRange {
  if (range === undefined) throw new IdallocError('INVALID_REPLY', 'the reply has no range');
  // The range is exact whatever its ttl; without a ttl it must not be kept.
  return { ...(range satisfies IdRange), ttlMs: ttl === undefined ? 0 : toMs(ttl), period };
}
