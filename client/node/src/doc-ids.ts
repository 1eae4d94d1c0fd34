// Document ids: runs of ids that differ only in their serial.

import { invalidReply } from './errors.js';

// The characters that the ids of a run share; the serial follows.
const SHARED = 12;
const MAX_SERIAL = 2n ** 64n - 1n;

/** Document ids that differ only in their serial, which rises by the same step from one to the next. */
export interface DocIdRun {
  /** The first id of the run, 28 hexadecimal characters. The others have the same first 12. */
  readonly firstDocId: string;
  /** The distance from one serial (the last 16 characters, unsigned) to the next, at least 1. */
  readonly step: bigint;
  readonly idCount: bigint;
}

/** @internal Yields the ids of a run. */
export function* expand(run: DocIdRun): Generator<string> {
  const shared = run.firstDocId.slice(0, SHARED);
  let serial = serialOf(run.firstDocId);
  for (let left = run.idCount; left > 0n; left--) {
    yield shared + hex(serial);
    serial += run.step;
  }
}

/** @internal Returns the last id of a run. */
export function lastDocId(run: DocIdRun): string {
  return run.firstDocId.slice(0, SHARED) + hex(serialOf(run.firstDocId) + (run.idCount - 1n) * run.step);
}

/** @internal Checks the runs of a message after a run of its stream, and returns how many ids they have. */
export function runCount(runs: readonly DocIdRun[], before?: DocIdRun): bigint {
  let count = 0n;
  const shared = before?.firstDocId.slice(0, SHARED); // ids of another process or prefix have no order
  let last = before && runs[0]?.firstDocId.startsWith(shared!) ? lastDocId(before) : '';
  for (const [index, run] of runs.entries()) {
    const { firstDocId, step, idCount } = run;
    const isValid =
      /^[0-9a-f]{28}$/.test(firstDocId) &&
      firstDocId > last &&
      step >= 1n &&
      idCount >= 1n &&
      serialOf(firstDocId) + (idCount - 1n) * step <= MAX_SERIAL;
    if (!isValid) {
      const shown = JSON.stringify(firstDocId.slice(0, 60));
      throw invalidReply(`runs[${index}] has first_doc_id ${shown}, step ${step}, id_count ${idCount}; after '${last}'`);
    }
    count += idCount;
    last = lastDocId(run);
  }
  return count;
}

function serialOf(docId: string): bigint {
  return BigInt(`0x${docId.slice(SHARED)}`);
}

function hex(serial: bigint): string {
  return serial.toString(16).padStart(16, '0');
}
