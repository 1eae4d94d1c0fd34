// The log of issued ids that `idalloc verify` reads.

import { openSync, writeSync } from 'node:fs';
import { hostname } from 'node:os';
import type { AllocatedRange, DocIds } from '@idalloc/client';

/**
 * Appends one line of JSON per range, before its ids are used. A record survives a kill of the process, but not a power
 * failure. The file must not exist.
 *
 * Numbers are written from bigint, since JSON.stringify refuses it.
 */
export class IssuedLog {
  private readonly file: number;
  // Adds to a clock that cannot be set, so that times rise.
  private readonly start = BigInt(Date.now()) * 1_000_000n - process.hrtime.bigint();
  private isDamaged = false;

  constructor(path: string) {
    this.file = openSync(path, 'ax', 0o600);
    // Node has no clock that counts since the machine's boot, so the log states no boot: times of other logs cannot be
    // compared with its times.
    const client = JSON.stringify(`${hostname()} ${process.pid}`);
    this.write(`{"idalloc_log":2,"boot_id":"","boot_time_ns":${this.start},"boot_offset_ns":null,"client":${client}}`);
  }

  /** Returns the time in nanoseconds since 1970. */
  now(): bigint {
    return this.start + process.hrtime.bigint();
  }

  /** Records a range that has just arrived. `asked`: `now()` before the request was sent. */
  range(sequence: string, range: AllocatedRange, asked: bigint, requestId = ''): void {
    this.write(
      `{"sequence":${JSON.stringify(sequence)}` +
        (range.period && `,"period":${JSON.stringify(range.period)}`) +
        `,"generation":${range.generation},"first":${range.firstId},"step":${range.step},"count":${range.idCount}` +
        (range.nodeId ? `,"node":${range.nodeId}` : '') +
        (range.ordering === 'RISING' ? ',"rising":true' : '') +
        (requestId && `,"request_id":"${requestId}"`) +
        `,"asked":${asked},"answered":${this.now()}}`,
    );
  }

  /** Records document ids that have just arrived. */
  docIds({ runs }: DocIds, asked: bigint): void {
    const answered = this.now();
    this.write(
      runs
        .map(
          ({ firstDocId, step, idCount }) =>
            `{"doc_id":"${firstDocId}","step":${step},"count":${idCount},"asked":${asked},"answered":${answered}}`,
        )
        .join('\n'),
    );
  }

  /** Writes at once: after an error the ids must not be used, and nothing may follow the partial line. */
  private write(text: string): void {
    if (this.isDamaged) throw new Error('an earlier write to the log of issued ids failed');
    this.isDamaged = true;
    const line = Buffer.from(`${text}\n`);
    for (let at = 0; at < line.length;) at += writeSync(this.file, line, at);
    this.isDamaged = false;
  }
}
