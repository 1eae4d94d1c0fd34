// The errors of idalloc: a google.rpc.Status whose details grpc-js leaves undecoded.

import { BinaryReader, WireType } from '@bufbuild/protobuf/wire';
import { type ServiceError, status } from '@grpc/grpc-js';
import { Duration } from '../gen/google/protobuf/duration.js';
import { Status } from '../gen/google/rpc/status.js';

const TYPE = 'type.googleapis.com/google.rpc.';
const CLOSED_SESSION = 'triggered by internal client error: Session closed with error code';

/** What the details of an error may say. */
export interface ErrorDetails {
  /** The gRPC status code. */
  code?: status;
  /** The keys that docs/reference/errors.md lists for the reason. */
  metadata?: Record<string, string>;
  /** The invalid field of the request, from BadRequest. */
  field?: string;
  /** How long to wait before a retry, from RetryInfo. */
  retryDelayMs?: number;
  /** What has used up its quota, from QuotaFailure. */
  quotaSubject?: string;
}

/**
 * A failed call, or an invalid reply.
 *
 * `reason` is that of google.rpc.ErrorInfo; without ErrorInfo it is the name of the gRPC status code.
 */
export class IdallocError extends Error {
  override readonly name = 'IdallocError';

  constructor(
    readonly reason: string,
    message: string,
    readonly details: ErrorDetails = {},
    options?: ErrorOptions,
  ) {
    super(message, options);
  }

  /** The error in one line. */
  override toString(): string {
    const { field, quotaSubject, retryDelayMs } = this.details;
    const details = [
      field && `field: ${field}`,
      quotaSubject && `subject: ${quotaSubject}`,
      retryDelayMs !== undefined && `retry after ${retryDelayMs / 1000} s`,
    ].filter(Boolean);
    const text = `${this.reason}: ${this.message.trim()}${details.length ? ` (${details.join(', ')})` : ''}`;
    return text.replace(/\s+/g, ' ');
  }
}

/** Returns the IdallocError for an error of grpc-js; any other error as it is. */
export function fromGrpc(error: unknown): unknown {
  if (!isServiceError(error)) return error;
  const { metadata } = error;
  // A server that stops may close the connection with an error code. grpc-js calls that INTERNAL; like any other end of
  // a connection, it is UNAVAILABLE.
  const code = error.details?.includes(CLOSED_SESSION) ? status.UNAVAILABLE : error.code;
  const [bytes] = metadata?.get('grpc-status-details-bin') ?? [];
  let reason = status[code] ?? `CODE_${code}`;
  const details: ErrorDetails = { code };
  if (bytes instanceof Uint8Array) {
    try {
      reason = readStatus(bytes, details) ?? reason;
    } catch {
      // A proxy damaged the details; the status code still names the error.
    }
  }
  return new IdallocError(reason, error.details || error.message, details, { cause: error });
}

/** Returns the IdallocError for the error of one request of a stream. */
export function fromStatus(error: Status): IdallocError {
  const details: ErrorDetails = { code: error.code };
  const reason = readStatus(Status.encode(error).finish(), details) ?? status[error.code] ?? `CODE_${error.code}`;
  return new IdallocError(reason, error.message, details);
}

function isServiceError(error: unknown): error is ServiceError {
  return error instanceof Error && typeof (error as Partial<ServiceError>).code === 'number' && 'details' in error;
}

/** Reads google.rpc.Status into `details`, and returns the reason of its ErrorInfo. */
function readStatus(bytes: Uint8Array, details: ErrorDetails): string | undefined {
  let reason: string | undefined;
  for (const any of repeated(bytes, 3)) {
    const [value] = repeated(any, 2);
    if (value === undefined) continue;
    switch (first(any, 1)) {
      case `${TYPE}ErrorInfo`:
        reason = first(value, 1);
        details.metadata = Object.fromEntries(repeated(value, 3).map((entry) => [first(entry, 1), first(entry, 2)]));
        break;
      case `${TYPE}BadRequest`:
        for (const violation of repeated(value, 1)) details.field ??= first(violation, 1);
        break;
      case `${TYPE}QuotaFailure`:
        for (const violation of repeated(value, 1)) details.quotaSubject ??= first(violation, 1);
        break;
      case `${TYPE}RetryInfo`:
        for (const delay of repeated(value, 1)) details.retryDelayMs = toMs(Duration.decode(delay));
        break;
    }
  }
  return reason || undefined;
}

/** Returns a duration in milliseconds. */
export function toMs(duration: Duration): number {
  return Number(duration.seconds) * 1000 + duration.nanos / 1e6;
}

/** Returns all values of a field whose type is a message or a string: the details have no others. */
function repeated(message: Uint8Array, field: number): Uint8Array[] {
  const values: Uint8Array[] = [];
  const reader = new BinaryReader(message);
  while (reader.pos < reader.len) {
    const [number, type] = reader.tag();
    if (number === field && type === WireType.LengthDelimited) values.push(reader.bytes());
    else reader.skip(type, number);
  }
  return values;
}

function first(message: Uint8Array, field: number): string {
  return new TextDecoder().decode(repeated(message, field)[0]);
}
