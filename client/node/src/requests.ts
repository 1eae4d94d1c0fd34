// Requests of callers, checked before they are sent.

import { invalidArgument } from './errors.js';
import { AllocateRangeRequest, DocIdView, GenerateDocIdRequest, RangeView } from './gen/idalloc/v1/id_allocator.js';

/** @internal */
export const INT32_MAX = 2 ** 31 - 1;
const INT64_MAX = 2n ** 63n - 1n;

/** What `allocateRange` requests. */
export interface RangeRequest {
  /** The sequence's name. The server creates it if it does not exist, unless a setting forbids that. */
  sequence: string;
  /** How many ids; default 1. */
  idCount?: number | bigint | undefined;
  /** A random UUID. The same request with the same UUID gets the same ids, from any server. */
  requestId?: string | undefined;
  /** Whether the range has the ids as texts in the sequence's format, too; then at most 10,000 ids. */
  texts?: boolean | undefined;
}

/** What `generateDocIds` requests. */
export interface DocIdRequest {
  /** How many ids; default 1. */
  idCount?: number | bigint | undefined;
  /** MySQL's auto_increment_offset for this call, 1 to 65535; by default the server's. */
  offset?: number | undefined;
  /** MySQL's auto_increment_increment for this call, 1 to 65535; by default the server's. */
  increment?: number | undefined;
}

/** What `streamRanges` requests. */
export interface RangeStreamRequest extends Omit<RangeRequest, 'idCount' | 'requestId'> {
  /** How many ids to allocate in total. */
  totalIdCount: number | bigint;
  /** How many ids a range has; default 10,000. After a break a range may be shorter. */
  chunkIdCount?: number | bigint | undefined;
}

/** What `streamDocIds` requests. */
export interface DocIdStreamRequest extends Omit<DocIdRequest, 'idCount'> {
  totalIdCount: number | bigint;
  chunkIdCount?: number | bigint | undefined;
}

/** What `generateUuids` requests. */
export interface UuidRequest {
  /** How many UUIDs; default 1, at most 10,000. */
  idCount?: number | undefined;
  /** The version; default 7. */
  version?: 4 | 7 | undefined;
}

/** @internal */
export function rangeRequest(request: RangeRequest): AllocateRangeRequest {
  onlyKnown(request, 'sequence', 'idCount', 'requestId', 'texts');
  const { sequence, idCount = 1, requestId, texts = false } = request;
  if (requestId === '') throw invalidArgument('requestId', 'must be a UUID, not empty');
  return {
    sequence: textOf('sequence', sequence),
    idCount: countOf('idCount', idCount),
    view: texts ? RangeView.RANGE_VIEW_TEXTS : RangeView.RANGE_VIEW_UNSPECIFIED,
    requestId: requestId === undefined ? '' : textOf('requestId', requestId),
  };
}

/** @internal */
export function docIdRequest(request: DocIdRequest): GenerateDocIdRequest {
  onlyKnown(request, 'idCount', 'offset', 'increment');
  const { idCount = 1, offset = 0, increment = 0 } = request;
  return {
    idCount: countOf('idCount', idCount),
    autoIncrementOffset: integer('offset', offset, 0, INT32_MAX),
    autoIncrementIncrement: integer('increment', increment, 0, INT32_MAX),
    view: DocIdView.DOC_ID_VIEW_COMPACT, // a few bytes for any number of ids
  };
}

/** @internal Refuses a name that a program without types mistyped: a default would take its place. */
export function onlyKnown(given: object, ...names: string[]): void {
  const unknown = Object.keys(given).find((name) => !names.includes(name));
  if (unknown !== undefined) throw new TypeError(`${unknown}: unknown; the names are ${names.join(', ')}`);
}

/** @internal Returns a count of at least 1. On the wire, 0 stands for the default. */
export function countOf(field: string, count: number | bigint): bigint {
  if (typeof count === 'bigint') {
    if (count < 1n || count > INT64_MAX) throw invalidArgument(field, `must be 1 to ${INT64_MAX}, not ${count}`);
    return count;
  }
  return BigInt(integer(field, count, 1, Number.MAX_SAFE_INTEGER));
}

/** @internal */
export function integer(field: string, value: number, least: number, most: number): number {
  if (!Number.isSafeInteger(value) || value < least || value > most) {
    throw invalidArgument(field, `must be an integer from ${least} to ${most}, not ${String(value)}`);
  }
  return value;
}

/** @internal Returns a text that UTF-8 can represent: two others would become the same. */
export function textOf(field: string, text: string): string {
  if (typeof text !== 'string') throw new TypeError(`${field}: must be a string, not ${typeof text}`);
  if (/\p{Surrogate}/u.test(text)) throw invalidArgument(field, 'has half of a surrogate pair');
  return text;
}
