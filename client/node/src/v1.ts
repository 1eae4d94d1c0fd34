// The generated messages and stubs of package idalloc.v1, for what the client does not cover, such as SequenceService.

export * from './gen/idalloc/v1/error_reason.js';
export * from './gen/idalloc/v1/id_allocator.js';
export * from './gen/idalloc/v1/node.js';
export * from './gen/idalloc/v1/sequences.js';
