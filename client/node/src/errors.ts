// The errors of idalloc: a google.rpc.Status whose details grpc-js leaves undecoded.

import { BinaryReader, WireType } from '@bufbuild/protobuf/wire';
import { type ServiceError, status } from '@grpc/grpc-js';
import type { Any } from './gen/google/protobuf/any.js';
import { Duration } from './gen/google/protobuf/duration.js';
import { Status } from './gen/google/rpc/status.js';

const TYPE = 'type.googleapis.com/google.rpc.';
const DOMAIN = 'idalloc';
// grpc-js's messages for a connection that broke or a stream that was reset, which have many codes.
const BROKEN =
  /^(Stream refused|Connection dropped|Call cancelled$|Bandwidth exhausted|Protocol not|Received RST_STREAM|Failed to start)/;
// grpc-js's message for a reply that is not the protobuf message.
const UNPARSABLE = 'Response message parsing error';
// No server may make a program wait for longer than an hour.
const MAX_RETRY_DELAY_MS = 3_600_000;
/** @internal The causes of a TLS failure in grpc-js's messages, which quote Node and OpenSSL. */
export const TLS_CAUSES = [
  { kind: 'expired', pattern: /certificate has expired/, text: "the server's certificate has expired" },
  {
    kind: 'untrusted',
    pattern: /self.signed certificate|unable to (verify|get)|certificate signature failure/,
    text: "the server's certificate is signed by an untrusted CA",
  },
  { kind: 'name', pattern: /altnames/, text: "the server's certificate is not valid for the expected name" },
  { kind: 'plaintext', pattern: /wrong.version|packet.length|http.request/, text: 'the server does not use TLS' },
  {
    kind: 'closed',
    pattern: /No connection.*(ECONNRESET|EPIPE|Failed to connect|Connection closed|Socket closed|disconnected|alert)/s,
    text: 'the server closed the connection before it answered, as one that requires TLS or a client certificate does',
  },
];

/** What an error says besides its reason and its message. */
export interface ErrorDetails {
  /** The gRPC status code, as in grpc-js's `status`; default UNKNOWN. */
  code?: number | undefined;
  /** How long to wait before a retry, from google.rpc.RetryInfo; at most an hour. */
  retryDelayMs?: number | undefined;
  /** The keys that the reference of errors lists for the reason. */
  metadata?: Record<string, string> | undefined;
  /** The invalid field of the request, from google.rpc.BadRequest. */
  field?: string | undefined;
  /** What has used up its quota, from google.rpc.QuotaFailure. */
  quotaSubject?: string | undefined;
}

/**
 * A failed call, an invalid argument or an invalid reply: the one error of this package.
 *
 * `reason` is that of google.rpc.ErrorInfo, such as `SEQUENCE_EXHAUSTED`. An error without an ErrorInfo has
 * `SERVER_UNREACHABLE` if no server answered, or the name of its status code, such as `UNIMPLEMENTED`. The client adds
 * `CLOSED`, `INVALID_REPLY` for a reply that violates the contract, `INVALID_CONFIG` for a file of TLS or of a token that
 * cannot be used, and `EXPIRED_ON_ARRIVAL` for a pool whose ranges come too late.
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

  /** The gRPC status code, as in grpc-js's `status`. */
  get code(): number {
    return this.details.code ?? status.UNKNOWN;
  }

  /** How long to wait before a retry; undefined if the server does not say that a retry helps. */
  get retryDelayMs(): number | undefined {
    return this.details.retryDelayMs;
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

/** @internal Returns the error for an argument with an invalid value. */
export function invalidArgument(field: string, problem: string): IdallocError {
  return new IdallocError('INVALID_REQUEST', `${field}: ${problem}`, {
    code: status.INVALID_ARGUMENT,
    field,
    metadata: { field },
  });
}

/** @internal Returns the error for a reply that violates the contract. */
export function invalidReply(text: string): IdallocError {
  return new IdallocError('INVALID_REPLY', text, { code: status.INTERNAL });
}

/** @internal Returns the error for a file of TLS or of a token that cannot be used. */
export function invalidConfig(text: string, options?: ErrorOptions): IdallocError {
  return new IdallocError('INVALID_CONFIG', text, { code: status.FAILED_PRECONDITION }, options);
}

/** @internal Returns the error of calls of a client, pool or stream that is closed. */
export function closed(what: string): IdallocError {
  return new IdallocError('CLOSED', `the ${what} is closed`, { code: status.CANCELLED });
}

/** @internal Returns the error of a call without an answer in time; `failure` is the error of its last attempt, if any. */
export function late(text: string, failure?: unknown): IdallocError {
  const details = { code: status.DEADLINE_EXCEEDED };
  if (failure === undefined) return new IdallocError('DEADLINE_EXCEEDED', text, details);
  return new IdallocError('DEADLINE_EXCEEDED', `${text}; the last attempt: ${failure}`, details, { cause: failure });
}

/** @internal Returns the error of a server that did not answer. */
export function unreachable(text: string): IdallocError {
  return new IdallocError('SERVER_UNREACHABLE', text, { code: status.UNAVAILABLE });
}

/** Returns the IdallocError for an error of a generated stub of `@idalloc/client/v1`; any other error as it is. */
export function errorOf(error: unknown): unknown {
  if (error instanceof IdallocError || !isServiceError(error)) return error;
  const message = error.details || error.message;
  if (message.startsWith(UNPARSABLE)) return invalidReply('the reply cannot be parsed as protobuf');
  const [bytes] = error.metadata?.get('grpc-status-details-bin') ?? [];
  // A server that is killed while it shuts down answers CANCELLED.
  const isCancelled = error.code === status.CANCELLED && message !== 'Cancelled on client';
  const code = isCancelled || BROKEN.test(message) ? status.UNAVAILABLE : error.code;
  let anys: Any[] = [];
  try {
    if (bytes instanceof Uint8Array) anys = Status.decode(bytes).details;
  } catch {
    // A proxy damaged the details; the status code still names the error.
  }
  return fromStatus({ code, message, details: anys }, { cause: error });
}

/** @internal Returns the error of one request of a batch or of a stream. */
export function fromStatus({ code, message, details: anys }: Status, options?: ErrorOptions): IdallocError {
  const details: ErrorDetails = { code };
  let reason: string | undefined;
  try {
    reason = readDetails(anys, details);
  } catch {
    // As above.
  }
  reason ??= code === status.UNAVAILABLE ? 'SERVER_UNREACHABLE' : (status[code] ?? String(code));
  return new IdallocError(reason, message, details, options);
}

function isServiceError(error: unknown): error is ServiceError {
  return error instanceof Error && typeof (error as Partial<ServiceError>).code === 'number' && 'details' in error;
}

/** Reads the details of a google.rpc.Status, and returns the reason of its ErrorInfo. */
function readDetails(anys: Any[], details: ErrorDetails): string | undefined {
  let reason: string | undefined;
  for (const { typeUrl, value } of anys) {
    switch (typeUrl) {
      case `${TYPE}ErrorInfo`:
        if (first(value, 2) !== DOMAIN) break; // another service's
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
        for (const delay of repeated(value, 1)) {
          details.retryDelayMs = Math.min(Math.max(0, toMs(Duration.decode(delay))), MAX_RETRY_DELAY_MS);
        }
        break;
    }
  }
  return reason || undefined;
}

/** @internal Returns a duration in milliseconds. */
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
