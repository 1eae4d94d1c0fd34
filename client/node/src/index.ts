// The public names of the package. The generated messages are in `@idalloc/client/v1`.

export { AllocateStream } from './allocate-stream.js';
export { Client, connect, type ParsedId, type UnaryMethod } from './client.js';
export type { CallOptions } from './connection.js';
export type { DocIdRun } from './doc-ids.js';
export { type ErrorDetails, errorOf, IdallocError } from './errors.js';
export type { CallReport, ConnectOptions, TlsOptions } from './options.js';
export { type Allocate, type Clock, type NextOptions, Pool, type PoolOptions } from './pool.js';
export type { AllocatedRange, DocIds, IdRange } from './ranges.js';
export type { DocIdRequest, DocIdStreamRequest, RangeRequest, RangeStreamRequest, UuidRequest } from './requests.js';
