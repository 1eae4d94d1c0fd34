// The generated messages, methods and stubs of package idalloc.v1: `Client.call` makes the calls that the client does not
// cover, such as those of SequenceService.

export * from './gen/idalloc/v1/error_reason.js';
export * from './gen/idalloc/v1/id_allocator.js';
export * from './gen/idalloc/v1/node.js';
export * from './gen/idalloc/v1/sequences.js';
