import assert from 'node:assert/strict';
import { test } from 'node:test';
import { Metadata, status } from '@grpc/grpc-js';
import { Duration } from '../src/gen/google/protobuf/duration.js';
import { errorOf, IdallocError } from '../src/errors.js';
import { encode as message } from './fake-server.js';

function detail(type: string, ...fields: [number, string | Uint8Array][]): [number, Uint8Array] {
  return [3, message([1, `type.googleapis.com/google.rpc.${type}`], [2, message(...fields)])];
}

function grpcError(code: status, details: string, bytes?: Uint8Array): Error {
  const metadata = new Metadata();
  if (bytes) metadata.set('grpc-status-details-bin', Buffer.from(bytes));
  return Object.assign(new Error(`${code} ${status[code]}: ${details}`), { code, details, metadata });
}

test('reads all details of an error', () => {
  const bytes = message(
    detail('ErrorInfo', [1, 'QUOTA_EXCEEDED'], [2, 'idalloc'], [3, message([1, 'limit'], [2, '1000'])]),
    detail('BadRequest', [1, message([1, 'id_count'], [2, 'too large'])]),
    detail('QuotaFailure', [1, message([1, 'identity:billing'], [2, 'too many'])]),
    detail('RetryInfo', [1, Duration.encode({ seconds: 1n, nanos: 500_000_000 }).finish()]),
  );
  const error = errorOf(grpcError(status.RESOURCE_EXHAUSTED, 'quota\nused up', bytes));
  assert.ok(error instanceof IdallocError);
  assert.deepEqual(error.details, {
    code: status.RESOURCE_EXHAUSTED,
    metadata: { limit: '1000' },
    field: 'id_count',
    quotaSubject: 'identity:billing',
    retryDelayMs: 1500,
  });
  const text = 'QUOTA_EXCEEDED: quota used up (field: id_count, subject: identity:billing, retry after 1.5 s)';
  assert.equal(String(error), text);
});

test('names the status code where there are no details', () => {
  const reasons = [status.INTERNAL, status.UNAUTHENTICATED, status.UNIMPLEMENTED, status.DEADLINE_EXCEEDED].map((code) => {
    return (errorOf(grpcError(code, 'of a proxy')) as IdallocError).reason;
  });
  assert.deepEqual(reasons, ['INTERNAL', 'UNAUTHENTICATED', 'UNIMPLEMENTED', 'DEADLINE_EXCEEDED']);
  assert.equal(String(errorOf(grpcError(status.UNAVAILABLE, 'no connection'))), 'SERVER_UNREACHABLE: no connection');
});

test('survives damaged details', () => {
  const error = errorOf(grpcError(status.UNAVAILABLE, 'of a proxy', Buffer.from([0x1a, 0xff])));
  assert.equal(String(error), 'SERVER_UNREACHABLE: of a proxy');
});

test('leaves other errors as they are', () => {
  const error = new TypeError('of the test');
  assert.equal(errorOf(error), error);
});
