// Document ids: runs of ids that differ only in their serial.

import type { DocIdRun } from '../gen/idalloc/v1/id_allocator.js';
import { IdallocError } from './errors.js';

// The characters that the ids of a run share; the serial follows.
const SHARED = 12;
const MAX_SERIAL = 2n ** 64n - 1n;

/** Yields the ids of a run. An uneven first step comes as a run of its own. */
export function* expand(run: DocIdRun): Generator<string> {
  const shared = run.firstDocId.slice(0, SHARED);
  let serial = serialOf(run.firstDocId);
  for (let left = run.idCount; left > 0n; left--) {
    yield shared + hex(serial);
    serial += run.step;
  }
}

/** Returns the last id of a run. */
export function lastDocId(run: DocIdRun): string {
  return run.firstDocId.slice(0, SHARED) + hex(serialOf(run.firstDocId) + (run.idCount - 1n) * run.step);
}

/**
 * Checks the runs of a message, and returns how many ids they have.
 *
 * @param most - how many ids the message may have
 * @throws IdallocError if they violate the contract
 */
export function checkRuns(runs: DocIdRun[], most: bigint): bigint {
  let count = 0n;
  let last = '';
  for (const run of runs) {
    const { firstDocId, step, idCount } = run;
    const isValid =
      /^[0-9a-f]{28}$/.test(firstDocId) &&
      firstDocId > last &&
      step >= 1n &&
      idCount >= 1n &&
      serialOf(firstDocId) + (idCount - 1n) * step <= MAX_SERIAL;
    if (!isValid) {
      throw new IdallocError('INVALID_REPLY', `invalid run: ${idCount} document ids from ${firstDocId}, step ${step}`);
    }
    count += idCount;
    last = lastDocId(run);
  }
  if (count < 1n || count > most) {
    throw new IdallocError('INVALID_REPLY', `the message has ${count} document ids; expected 1 to ${most}`);
  }
  return count;
}

function serialOf(docId: string): bigint {
  return BigInt(`0x${docId.slice(SHARED)}`);
}

function hex(serial: bigint): string {
  return serial.toString(16).padStart(16, '0');
}
