// An idalloc server in this process: it counts up, and a test may replace any answer.

import { BinaryWriter } from '@bufbuild/protobuf/wire';
import {
  Metadata,
  type sendUnaryData,
  Server,
  ServerCredentials,
  type ServerDuplexStream,
  type ServerUnaryCall,
  type ServerWritableStream,
  type status,
} from '@grpc/grpc-js';
import { type ErrorDetails, IdallocError } from '../src/errors.js';
import { Duration } from '../src/gen/google/protobuf/duration.js';
import { Status } from '../src/gen/google/rpc/status.js';
import * as v1 from '../src/v1.js';

const SHARED = '00006b034dfe';
const DETAILS = 'grpc-status-details-bin';

/** Returns a google.rpc.Status as the server makes it. */
export function statusOf(code: status, reason: string, message = 'of the test', details: ErrorDetails = {}): Status {
  const { metadata = {}, field, quotaSubject, retryDelayMs } = details;
  const entries = Object.entries(metadata).map(([key, value]) => [3, encode([1, key], [2, value])] as const);
  const any = (type: string, ...fields: Field[]) => ({
    typeUrl: `type.googleapis.com/google.rpc.${type}`,
    value: Buffer.from(encode(...fields)),
  });
  const anys = [any('ErrorInfo', [1, reason], [2, 'idalloc'], ...entries)];
  if (field !== undefined) anys.push(any('BadRequest', [1, encode([1, field], [2, message])]));
  if (quotaSubject !== undefined) anys.push(any('QuotaFailure', [1, encode([1, quotaSubject], [2, message])]));
  if (retryDelayMs !== undefined) {
    const delay = { seconds: BigInt(Math.floor(retryDelayMs / 1000)), nanos: (retryDelayMs % 1000) * 1e6 };
    anys.push(any('RetryInfo', [1, Duration.encode(delay).finish()]));
  }
  return { code, message, details: anys };
}

/** Lets all promises settle that need no timer. */
export function settle(): Promise<void> {
  return new Promise((resolve) => setImmediate(resolve));
}

/** Returns a check of an error for assert. */
export function hasReason(reason: string): (error: unknown) => boolean {
  return (error) => error instanceof IdallocError && error.reason === reason;
}

type Field = readonly [number, string | Uint8Array];

export function encode(...fields: Field[]): Uint8Array {
  const writer = new BinaryWriter();
  for (const [field, value] of fields) writer.uint32((field << 3) | 2).bytes(Buffer.from(value));
  return writer.finish();
}

/** Returns the error of a handler. */
export function failure(code: status, reason: string, details: ErrorDetails = {}, message = 'of the test') {
  const metadata = new Metadata();
  const bytes = Status.encode(statusOf(code, reason, message, details)).finish();
  metadata.set(DETAILS, Buffer.from(bytes));
  if (details.retryDelayMs !== undefined) metadata.set('grpc-retry-pushback-ms', String(details.retryDelayMs));
  return Object.assign(new Error(message), { code, details: message, metadata });
}

type Failure = ReturnType<typeof failure>;
type Changed<Reply> = Reply | Failure | undefined;

export class FakeServer {
  address = '';
  nextId = 1n;
  /** The sizes of ranges, in order. */
  readonly sizes: bigint[] = [];
  /** The tokens of calls. */
  readonly tokens: string[] = [];
  /** The names in the certificates of callers. */
  readonly names: (string | undefined)[] = [];
  /** The token that calls must have. */
  token: string | undefined;
  /** The requests of ranges. */
  readonly requests: v1.AllocateRangeRequest[] = [];
  /** Replaces the next answers of AllocateRange. */
  readonly failures: Failure[] = [];
  /** After how many messages a stream ends with UNAVAILABLE; each stream takes the next one. */
  readonly breaks: number[] = [];
  change: (reply: v1.AllocateRangeResponse) => Changed<v1.AllocateRangeResponse> = (reply) => reply;
  /** Replaces the errors of these ends. */
  readonly endings: Failure[] = [];
  /** While true, an AllocateStream that is opened never gives an answer. */
  isSilent = false;
  /** After how many messages a stream has no more, but does not end. */
  silentAfter = Infinity;
  /** How many requests of AllocateStream arrived. */
  received = 0;
  /** Added to the numbers of answers in AllocateStream. */
  skew = 0n;
  streams = 0;
  /** The latency of unary calls. */
  delayMs = 0;
  #server = new Server();

  static async start(port = 0, host = '127.0.0.1', tls = ServerCredentials.createInsecure()): Promise<FakeServer> {
    const fake = new FakeServer();
    fake.#server.addService(v1.IdAllocatorServiceService, fake.#handlers());
    fake.#server.addService(v1.SequenceServiceService, fake.#sequences());
    const bound = await new Promise<number>((resolve, reject) => {
      fake.#server.bindAsync(`${host}:${port}`, tls, (error, found) => (error ? reject(error) : resolve(found)));
    });
    fake.address = `${host}:${bound}`;
    return fake;
  }

  /** Ends all connections at once, as a kill does. */
  stop(): void {
    this.#server.forceShutdown();
  }

  range(request: v1.AllocateRangeRequest): v1.AllocateRangeResponse {
    const idCount = request.idCount || 1n;
    this.requests.push(request);
    this.sizes.push(idCount);
    const firstId = this.nextId;
    this.nextId += idCount;
    const texts = request.view === v1.RangeView.RANGE_VIEW_TEXTS;
    return v1.AllocateRangeResponse.create({
      range: { firstId, lastId: this.nextId - 1n, step: 1n, idCount },
      generation: 7n,
      ttl: { seconds: 180n, nanos: 0 },
      ordering: v1.Ordering.ORDERING_RISING_PER_NODE,
      nodeId: 42n,
      created: firstId === 1n,
      texts: texts ? Array.from({ length: Number(idCount) }, (_, index) => `INV-${firstId + BigInt(index)}`) : [],
    });
  }

  docIds(idCount: bigint): v1.GenerateDocIdResponse {
    const firstDocId = SHARED + this.nextId.toString(16).padStart(16, '0');
    this.nextId += idCount;
    return v1.GenerateDocIdResponse.create({ runs: [{ firstDocId, step: 1n, idCount }] });
  }

  #answer<Request, Reply>(make: (request: Request) => Changed<Reply>) {
    return (call: ServerUnaryCall<Request, Reply>, callback: sendUnaryData<Reply>) => {
      this.names.push(call.getAuthContext().sslPeerCertificate?.subject.CN?.toString());
      this.tokens.push(String(call.metadata.get('authorization')[0]));
      const reply = this.#rejection(call) ?? this.failures.shift() ?? make(call.request);
      if (reply === undefined) return; // never
      const answer = () => (reply instanceof Error ? callback(reply) : callback(null, reply));
      if (this.delayMs > 0) setTimeout(answer, this.delayMs);
      else answer();
    };
  }

  #rejection({ metadata }: { metadata: Metadata }): Failure | undefined {
    if (this.token === undefined || metadata.get('authorization')[0] === `Bearer ${this.token}`) return undefined;
    return failure(16, 'UNAUTHENTICATED');
  }

  #handlers(): v1.IdAllocatorServiceServer {
    return {
      allocateRange: this.#answer((request) => this.change(this.range(request))),
      batchAllocateRanges: this.#answer(({ requests }) => ({
        results: requests.map((each) =>
          each.sequence && !each.view ? { response: this.range(each) } : { error: statusOf(3, 'INVALID_REQUEST') },
        ),
      })),
      streamRanges: (call) => this.#stream(call, (request) => this.range(v1.AllocateRangeRequest.create(request))),
      generateDocId: this.#answer(({ idCount }) => this.docIds(idCount || 1n)),
      streamDocIds: (call) => this.#stream(call, ({ idCount }) => this.docIds(idCount)),
      generateUuid: this.#answer(({ idCount, version }) => ({
        uuids: Array.from({ length: Number(idCount) }, (_, index) => {
          return `0193a3c1-0000-${version}000-8000-${index.toString(16).padStart(12, '0')}`;
        }),
        uuidBytes: [],
      })),
      allocateStream: (call) => this.#allocateStream(call),
    };
  }

  #sequences(): v1.SequenceServiceServer {
    const none = this.#answer(() => failure(12, 'UNIMPLEMENTED'));
    return {
      createSequence: none,
      getSequence: this.#answer(({ name }) =>
        v1.GetSequenceResponse.fromPartial({ sequence: { name, lastValue: this.nextId - 1n } }),
      ),
      listSequences: none,
      updateSequence: none,
      deleteSequence: none,
      advanceSequence: none,
      parseId: this.#answer(({ text }) =>
        v1.ParseIdResponse.create({ value: BigInt(text.replace(/\D/g, '')), year: 2026 }),
      ),
    } as v1.SequenceServiceServer;
  }

  #stream<Reply>(
    call: ServerWritableStream<v1.StreamRangesRequest | v1.StreamDocIdsRequest, Reply>,
    make: (request: { sequence: string; idCount: bigint; view: number }) => Reply,
  ): void {
    this.streams++;
    const rejection = this.#rejection(call);
    const breakAfter = rejection ? 0 : (this.breaks.shift() ?? Infinity);
    const { totalIdCount, chunkIdCount } = call.request;
    const chunk = chunkIdCount || 10_000n;
    let left = totalIdCount;
    for (let sent = 0; left > 0n; sent++) {
      if (sent >= breakAfter) {
        call.emit('error', rejection ?? this.endings.shift() ?? failure(14, 'SERVER_DRAINING', { retryDelayMs: 1 }));
        return;
      }
      if (sent >= this.silentAfter) return;
      const idCount = left < chunk ? left : chunk;
      const { sequence = '', view } = call.request as v1.StreamRangesRequest;
      call.write(make({ sequence, idCount, view }));
      left -= idCount;
    }
    call.end();
  }

  #allocateStream(call: ServerDuplexStream<v1.AllocateStreamRequest, v1.AllocateStreamResponse>): void {
    this.streams++;
    const { isSilent } = this;
    const rejection = this.#rejection(call);
    let left = rejection ? 0 : (this.breaks.shift() ?? Infinity);
    call.on('data', ({ number: sent, allocateRange, generateDocId }: v1.AllocateStreamRequest) => {
      this.received++;
      if (isSilent) return;
      if (left-- <= 0) {
        call.emit('error', rejection ?? this.endings.shift() ?? failure(14, 'SERVER_DRAINING', { retryDelayMs: 1 }));
        return;
      }
      const number = sent + this.skew;
      const error = this.failures.shift();
      if (error) call.write({ number, error: Status.decode(error.metadata.get(DETAILS)[0] as Buffer) });
      else if (allocateRange) call.write({ number, allocateRange: this.range(allocateRange) });
      else if (generateDocId) call.write({ number, generateDocId: this.docIds(generateDocId.idCount) });
    });
    call.on('end', () => call.end());
    call.on('error', () => {});
  }
}
