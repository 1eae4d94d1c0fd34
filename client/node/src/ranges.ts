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

/** @internal Returns the range of a reply, checked against the contract. In a stream it comes after the one `before`. */
export function toAllocatedRange(
  reply: AllocateRangeResponse | StreamRangesResponse,
  { least, most, texts = false }: Expected,
  before?: AllocatedRange,
): AllocatedRange {
  const { range, ttl, period, generation, nodeId, created } = reply;
  if (range === undefined) throw invalidReply('the reply has no range, so its id_count is 0');
  const { firstId, lastId, step, idCount } = range;
  if (idCount < least || idCount > most) throw wrongCount('range.id_count is', idCount, least, most);
  const count = texts ? Number(idCount) : 0;
  if (reply.texts.length !== count || new Set(reply.texts).size !== count || reply.texts.includes('')) {
    throw invalidReply(`texts has ${reply.texts.length} items; expected ${count} different ones`);
  }
  if (!/^(\d{4}(-\d\d(-\d\d)?)?)?$/.test(period)) throw invalidReply(`period is ${JSON.stringify(period)}`);
  const allocated = new Range({
    firstId,
    lastId,
    step,
    idCount,
    // The range is exact whatever its ttl; without a ttl it must not be kept.
    ttlMs: ttl === undefined ? 0 : ttl.nanos >= 0 && ttl.nanos < 1e9 ? toMs(ttl) : NaN,
    period,
    generation,
    ordering: ORDERINGS[reply.ordering] ?? 'UNKNOWN',
    nodeId,
    created,
    texts: reply.texts,
  });
  checkRange(allocated, idCount);
  if (before?.period === period && (step > 0n ? firstId <= before.lastId : firstId >= before.lastId)) {
    throw invalidReply(`range.first_id is ${firstId}; expected an id after ${before.lastId}`);
  }
  return allocated;
}

/** @internal Returns the document ids of a reply, checked against the contract. */
export function toDocIds(
  { runs }: GenerateDocIdResponse | StreamDocIdsResponse,
  { least, most }: Expected,
  before?: DocIds,
): DocIds {
  const count = runCount(runs, before?.runs.at(-1));
  if (count < least || count > most) throw wrongCount('the id_count of all runs is', count, least, most);
  return new Runs(runs, count);
}

function wrongCount(subject: string, found: bigint, least: bigint, most: bigint): IdallocError {
  return invalidReply(`${subject} ${found}; expected ${least === most ? most : `${least} to ${most}`}`);
}

/** @internal Checks the numbers of a range of `asked` ids. */
export function checkRange({ firstId, lastId, step, idCount, ttlMs }: IdRange, asked: bigint): void {
  const isRange = step !== 0n && lastId === firstId + (idCount - 1n) * step && firstId <= MAX_ID && lastId <= MAX_ID;
  if (!isRange || idCount !== asked) {
    const found = `first_id ${firstId}, last_id ${lastId}, step ${step} and id_count ${idCount}`;
    throw invalidReply(`range has ${found}; expected ${asked} ids, at most ${MAX_ID}`);
  }
  if (!(ttlMs >= 0 && ttlMs <= 366 * 86_400_000)) throw invalidReply(`ttl is ${ttlMs} ms; expected 0 to 366 days`);
}

/** @internal Checks that no two ranges have an id in common, of each sequence of a batch and period. */
export function checkDisjoint(ranges: readonly (IdRange | IdallocError)[], batch: { sequence: string }[] = []): void {
  const bounds = ranges.flatMap((each, index) => {
    if (each instanceof IdallocError) return [];
    const [low, high] = each.step > 0n ? [each.firstId, each.lastId] : [each.lastId, each.firstId];
    return [{ counter: JSON.stringify([batch[index]?.sequence, each.period]), low, high }];
  });
  bounds.sort((a, b) => ((a.counter === b.counter ? a.low < b.low : a.counter < b.counter) ? -1 : 1));
  bounds.slice(1).forEach(({ counter, low }, index) => {
    const before = bounds[index]!;
    if (counter === before.counter && low <= before.high) {
      throw invalidReply(`range has ${low} twice; expected each id once`);
    }
  });
}
