// The client: the calls of IdAllocatorService with types of their own.

import type { MethodDefinition } from '@grpc/grpc-js';
import { abortOf } from './abort.js';
import { AllocateStream } from './allocate-stream.js';
import { type CallOptions, Connection } from './connection.js';
import { fromStatus, IdallocError, invalidReply } from './errors.js';
import { checkTimeout, type ConnectOptions } from './options.js';
import { type Allocate, Pool, type PoolOptions } from './pool.js';
import { type AllocatedRange, checkDisjoint, DEFAULT_CHUNK, type DocIds, type Expected } from './ranges.js';
import { toAllocatedRange, toDocIds } from './ranges.js';
import {
  countOf,
  type DocIdRequest,
  docIdRequest,
  type DocIdStreamRequest,
  INT32_MAX,
  integer,
  onlyKnown,
  type RangeRequest,
  rangeRequest,
  type RangeStreamRequest,
  textOf,
  type UuidRequest,
} from './requests.js';
import {
  type AllocateRangeResponse,
  DocIdView,
  GenerateUuidRequest,
  IdAllocatorServiceService as rpcs,
  RangeView,
  StreamDocIdsRequest,
  StreamRangesRequest,
  UuidVersion,
} from './gen/idalloc/v1/id_allocator.js';
import { type ParseIdResponse, SequenceServiceService } from './gen/idalloc/v1/sequences.js';

/** A unary RPC of `@idalloc/client/v1`, such as `SequenceServiceService.createSequence`. */
export type UnaryMethod<Request, Reply> = MethodDefinition<Request, Reply> & {
  readonly requestStream: false;
  readonly responseStream: false;
};

/** The value of an id in the sequence's format, and what else its text has. */
export interface ParsedId {
  readonly value: bigint;
  readonly year?: number;
  readonly month?: number;
  readonly day?: number;
  /** The prefix of the node that wrote it. */
  readonly prefix?: number;
  /** The valid check digits; empty if the format has none. */
  readonly check: string;
}

/**
 * Makes a client. It reads the files of TLS and of the token; the first call connects. Keep one for
 * each process or worker thread; any number of async functions may share it.
 *
 * @throws TypeError if the options contradict each other
 * @throws IdallocError INVALID_CONFIG for a file that cannot be used
 */
export function connect(options: ConnectOptions): Client {
  return new Client(options);
}

/**
 * A connection to the servers of one store. Make it with `connect`.
 *
 * Each failed call throws an {@link IdallocError}, or the reason of its signal. The client retries a
 * unary call that ended with UNAVAILABLE, in up to five rounds within its deadline. One that reads or
 * has a `requestId` goes to another server if one hangs. A retry never returns an id twice: at worst
 * it leaves a gap.
 */
export class Client implements AsyncDisposable {
  readonly #connection: Connection;

  /** As `connect`. */
  constructor(options: ConnectOptions) {
    this.#connection = new Connection(options);
  }

  /** Allocates one contiguous range of ids. Its ids belong to the caller for ever. */
  async allocateRange(request: RangeRequest, options: CallOptions = {}): Promise<AllocatedRange> {
    const message = rangeRequest(request);
    const reply = await this.#connection.unary(rpcs.allocateRange, message, options);
    return toAllocatedRange(reply, exactly(message.idCount, request.texts));
  }

  /**
   * Allocates a range for each of up to 1,000 requests in one call. The results are in the order of the requests: each is
   * a range, or the error that `allocateRange` would throw.
   */
  async batchAllocateRanges(
    requests: readonly Pick<RangeRequest, 'sequence' | 'idCount'>[],
    options: CallOptions = {},
  ): Promise<(AllocatedRange | IdallocError)[]> {
    const messages = requests.map((each) => {
      onlyKnown(each, 'sequence', 'idCount');
      return rangeRequest(each);
    });
    const { results } = await this.#connection.unary(rpcs.batchAllocateRanges, { requests: messages }, options);
    if (results.length !== messages.length) {
      throw invalidReply(`results has ${results.length} items; expected ${messages.length}`);
    }
    const converted = results.map(({ response, error }, index) => {
      if (response !== undefined) return toAllocatedRange(response, exactly(messages[index]!.idCount));
      if (error === undefined || error.code === 0) throw invalidReply('results has an item with no range and no error');
      return fromStatus(error);
    });
    checkDisjoint(converted, messages);
    return converted;
  }

  /**
   * Allocates ids in ranges until the total is reached, for any number of them. If the stream breaks, for example when
   * a server restarts, the client requests the missing ids; it throws after a minute without progress.
   */
  streamRanges(request: RangeStreamRequest, options: CallOptions = {}): AsyncGenerator<AllocatedRange, void, undefined> {
    onlyKnown(request, 'sequence', 'totalIdCount', 'chunkIdCount', 'texts');
    const { texts = false } = request;
    const message = StreamRangesRequest.create({
      sequence: textOf('sequence', request.sequence),
      ...sizesOf(request),
      view: texts ? RangeView.RANGE_VIEW_TEXTS : RangeView.RANGE_VIEW_UNSPECIFIED,
    });
    return this.#resume(rpcs.streamRanges, message, options, (reply, expected, before) =>
      toAllocatedRange(reply, { ...expected, texts }, before),
    );
  }

  /** Generates document ids as MySQL does for documents without an _id. */
  async generateDocIds(request: DocIdRequest = {}, options: CallOptions = {}): Promise<DocIds> {
    const message = docIdRequest(request);
    const reply = await this.#connection.unary(rpcs.generateDocId, message, options);
    return toDocIds(reply, exactly(message.idCount));
  }

  /** Generates document ids in batches until the total is reached. It continues after a break, as `streamRanges`. */
  streamDocIds(request: DocIdStreamRequest, options: CallOptions = {}): AsyncGenerator<DocIds, void, undefined> {
    onlyKnown(request, 'totalIdCount', 'chunkIdCount', 'offset', 'increment');
    const message = StreamDocIdsRequest.create({
      ...sizesOf(request),
      autoIncrementOffset: integer('offset', request.offset ?? 0, 0, INT32_MAX),
      autoIncrementIncrement: integer('increment', request.increment ?? 0, 0, INT32_MAX),
      view: DocIdView.DOC_ID_VIEW_COMPACT,
    });
    return this.#resume(rpcs.streamDocIds, message, options, toDocIds);
  }

  /** Generates UUIDs of version 7, which rise within a server process, or of version 4; at most 10,000. */
  async generateUuids(request: UuidRequest = {}, options: CallOptions = {}): Promise<string[]> {
    onlyKnown(request, 'idCount', 'version');
    const { idCount = 1, version = 7 } = request;
    if (version !== 4 && version !== 7) throw new TypeError(`version: must be 4 or 7, not ${String(version)}`);
    const count = countOf('idCount', idCount);
    const message = GenerateUuidRequest.create({
      idCount: count,
      version: version === 4 ? UuidVersion.UUID_VERSION_4 : UuidVersion.UUID_VERSION_7,
    });
    const { uuids } = await this.#connection.unary(rpcs.generateUuid, message, options);
    const form = new RegExp(`^[0-9a-f]{8}-[0-9a-f]{4}-${version}[0-9a-f]{3}-[89ab][0-9a-f]{3}-[0-9a-f]{12}$`);
    if (uuids.length !== idCount || new Set(uuids).size !== idCount || !uuids.every((each) => form.test(each))) {
      throw invalidReply(`the reply has ${uuids.length} UUIDs; expected ${count} different ones of version ${version}`);
    }
    return uuids;
  }

  /** Parses the text of an id by the sequence's format. It does not check whether that id was ever issued. */
  async parseId(sequence: string, text: string, options: CallOptions = {}): Promise<ParsedId> {
    const request = { sequence: textOf('sequence', sequence), text: textOf('text', text) };
    return toParsedId(await this.#connection.unary(SequenceServiceService.parseId, request, options));
  }

  /** Opens a stream that many concurrent calls share, which costs less than a unary call each. */
  allocateStream(): AllocateStream {
    return AllocateStream.over(this.#connection);
  }

  /** Makes a pool, which returns the ids of one sequence one by one from memory. */
  pool(sequence: string, options: PoolOptions = {}): Pool {
    const lateIds = ({ range }: AllocateRangeResponse) => range?.idCount ?? 0n;
    const allocate: Allocate = async (idCount, signal) => {
      const message = rangeRequest({ sequence, idCount });
      const reply = await this.#connection.unary(rpcs.allocateRange, message, { signal }, lateIds);
      return toAllocatedRange(reply, exactly(idCount));
    };
    const pool = new Pool(allocate, options);
    const forget = this.#connection.closing(() => pool.close());
    abortOf(pool.closing)(forget);
    return pool;
  }

  /**
   * Makes a call that has no method here, such as those of SequenceService and NodeService, with the same token, retries
   * and errors: `client.call(SequenceServiceService.getSequence, GetSequenceRequest.fromPartial({ name: 'orders' }))`.
   */
  call<Request, Reply>(
    method: UnaryMethod<Request, Reply>,
    request: Request,
    options: CallOptions = {},
  ): Promise<Reply> {
    return this.#connection.unary(method, request, options);
  }

  /** Ends the connection, the pools and the streams. Calls that run or wait end with CLOSED, and so does each later one. */
  close(): void {
    this.#connection.close();
  }

  async [Symbol.asyncDispose](): Promise<void> {
    this.close();
  }

  /** Yields the messages of a stream, and opens it again for the missing ids when it breaks. */
  async *#resume<
    Request extends { readonly totalIdCount: bigint; readonly chunkIdCount: bigint },
    Reply,
    Result extends { readonly idCount: bigint },
  >(
    method: MethodDefinition<Request, Reply>,
    request: Request,
    { signal, timeoutMs }: CallOptions,
    convert: (reply: Reply, expected: Expected, before: Result | undefined) => Result,
  ): AsyncGenerator<Result, void, undefined> {
    const deadline = timeoutMs === undefined ? Infinity : Date.now() + checkTimeout(timeoutMs);
    const retries = this.#connection.streamRetries(deadline);
    let missing = request.totalIdCount;
    while (missing > 0n) {
      const open = this.#connection.open(retries, signal);
      const rest = { ...request, totalIdCount: missing };
      let result: Result | undefined;
      try {
        for await (const reply of this.#connection.stream(method, rest, open, deadline, signal)) {
          result = convert(reply, chunkOf(request.chunkIdCount, missing), result);
          missing -= result.idCount;
          retries.reset();
          yield result;
          if (missing === 0n) break; // the status of the stream does not matter any more
        }
        if (missing > 0n) throw invalidReply(`the stream ended with ${missing} ids missing`);
      } catch (error) {
        await this.#connection.wait(this.#connection.delayMs(error, open, retries), signal);
      }
    }
  }
}

function sizesOf({ totalIdCount, chunkIdCount }: Pick<RangeStreamRequest, 'totalIdCount' | 'chunkIdCount'>) {
  return {
    totalIdCount: countOf('totalIdCount', totalIdCount),
    chunkIdCount: chunkIdCount === undefined ? 0n : countOf('chunkIdCount', chunkIdCount),
  };
}

/** Returns how many ids a message of a stream has. */
function chunkOf(chunkIdCount: bigint, missing: bigint): Expected {
  const size = chunkIdCount || DEFAULT_CHUNK;
  const most = missing < size ? missing : size;
  return { least: chunkIdCount ? most : 1n, most }; // the server's default may be less than 10,000
}

function exactly(count: bigint, texts = false): Expected {
  return { least: count, most: count, texts };
}

function toParsedId({ value, year, month, day, prefix, check }: ParseIdResponse): ParsedId {
  const parts = Object.entries({ year, month, day, prefix }).filter(([, part]) => part !== undefined);
  return { value, ...(Object.fromEntries(parts) as Partial<ParsedId>), check };
}
