// Ranges and document ids as the client returns them, and the checks of replies against the contract.

import { invalidReply, IdallocError, toMs } from './errors.js';
import { type DocIdRun, expand, runCount } from './doc-ids.js';
import {
  type AllocateRangeResponse,
  type GenerateDocIdResponse,
  Ordering,
  type StreamDocIdsResponse,
  type StreamRangesResponse,
} from './gen/idalloc/v1/id_allocator.js';

// The largest id that a store holds.
const MAX_ID = 2n ** 63n - 2n;
/** @internal The default of chunk_id_count: a message of a stream has no more ids. */
export const DEFAULT_CHUNK = 10_000n;

/** A contiguous range of ids, as a pool needs it. All ids are bigint: Number is exact only up to 2^53. */
export interface IdRange {
  readonly firstId: bigint;
  readonly lastId: bigint;
  /** The distance from one id to the next, never 0; negative in a sequence that counts down. */
  readonly step: bigint;
  readonly idCount: bigint;
  /** How long a pool may keep the ids, in milliseconds, counted from before the request was sent. */
  readonly ttlMs: number;
  /** The period whose counter the ids are from; empty for a sequence that never restarts. */
  readonly period: string;
}

/** A range that was allocated. It belongs to its caller for ever; iterate over it to get its ids. */
export interface AllocatedRange extends IdRange, Iterable<bigint> {
  /** The sequence's generation, which rises when the sequence is changed or advanced. */
  readonly generation: bigint;
  /** Whether larger ids are later ones on all servers, or only on each of them. */
  readonly ordering: 'RISING' | 'RISING_PER_NODE' | 'UNKNOWN';
  /** The server process that allocated the range; 0 if the server is too old to say. */
  readonly nodeId: bigint;
  /** Whether this call created the sequence. If you expected it to exist, its name may be mistyped. */
  readonly created: boolean;
  /** The ids as texts in the sequence's format, if the call asked for them; else empty. */
  readonly texts: readonly string[];
}

/** Document ids in runs, in ascending order. Iterate over them to get the ids as texts. */
export interface DocIds extends Iterable<string> {
  readonly runs: readonly DocIdRun[];
  readonly idCount: bigint;
}

const ORDERINGS: Partial<Record<Ordering, AllocatedRange['ordering']>> = {
  [Ordering.ORDERING_RISING]: 'RISING',
  [Ordering.ORDERING_RISING_PER_NODE]: 'RISING_PER_NODE',
};

type Fields = Omit<AllocatedRange, typeof Symbol.iterator>;

interface Range extends Fields {}
class Range implements AllocatedRange {
  constructor(fields: Fields) {
    Object.assign(this, fields);
  }

  *[Symbol.iterator](): Generator<bigint> {
    let id = this.firstId;
    for (let left = this.idCount; left > 0n; left--) {
      yield id;
      id += this.step;
    }
  }
}

class Runs implements DocIds {
  constructor(
    readonly runs: readonly DocIdRun[],
    readonly idCount: bigint,
  ) {}

  *[Symbol.iterator](): Generator<string> {
    for (const run of this.runs) yield* expand(run);
  }
}

/** What a reply must contain. @internal */
export interface Expected {
  /** The fewest and the most ids. */
  readonly least: bigint;
  readonly most: bigint;
  /** Whether each id comes as a text, too. */
  readonly texts?: boolean;
}

/** @internal Returns the range of a reply, checked against the contract. */
export function toAllocatedRange(
  reply: AllocateRangeResponse | StreamRangesResponse,
  { least, most, texts = false }: Expected,
): AllocatedRange {
  const { range, ttl, period, generation, nodeId, created } = reply;
  if (range === undefined) throw invalidReply('the reply has no range');
  const { firstId, lastId, step, idCount } = range;
  if (idCount < least || idCount > most) throw wrongCount('the range has', idCount, least, most);
  const count = texts ? Number(idCount) : 0;
  if (reply.texts.length !== count || new Set(reply.texts).size !== count || reply.texts.includes('')) {
    throw invalidReply(`the reply has ${reply.texts.length} texts; expected ${count} different ones`);
  }
  const allocated = new Range({
    firstId,
    lastId,
    step,
    idCount,
    // The range is exact whatever its ttl; without a ttl it must not be kept.
    ttlMs: ttl === undefined ? 0 : toMs(ttl),
    period,
    generation,
    ordering: ORDERINGS[reply.ordering] ?? 'UNKNOWN',
    nodeId,
    created,
    texts: reply.texts,
  });
  checkRange(allocated, idCount);
  return allocated;
}

/** @internal Returns the document ids of a reply, checked against the contract. */
export function toDocIds(
  { runs }: GenerateDocIdResponse | StreamDocIdsResponse,
  { least, most }: Expected,
): DocIds {
  const count = runCount(runs);
  if (count < least || count > most) throw wrongCount('the reply has', count, least, most);
  return new Runs(runs, count);
}

function wrongCount(subject: string, found: bigint, least: bigint, most: bigint): IdallocError {
  return invalidReply(`${subject} ${found} ids; expected ${least === most ? most : `${least} to ${most}`}`);
}

/** @internal Checks the numbers of a range of `asked` ids. */
export function checkRange({ firstId, lastId, step, idCount, ttlMs }: IdRange, asked: bigint): void {
  if (idCount !== asked) throw invalidReply(`the range has ${idCount} ids, not ${asked} as requested`);
  if (step === 0n) throw invalidReply('the step of the range is 0');
  if (lastId !== firstId + (idCount - 1n) * step) {
    throw invalidReply(`the range ends at ${lastId}, which is not ${idCount - 1n} steps of ${step} after ${firstId}`);
  }
  if (firstId > MAX_ID || lastId > MAX_ID) {
    throw invalidReply(`the range from ${firstId} to ${lastId} passes ${MAX_ID}`);
  }
  if (!(ttlMs >= 0 && ttlMs < Infinity)) throw invalidReply(`the ttl of the range is ${ttlMs} ms`);
}

