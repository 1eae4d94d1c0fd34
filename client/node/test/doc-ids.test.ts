import assert from 'node:assert/strict';
import { test } from 'node:test';
import { expand, lastDocId, runCount } from '../src/doc-ids.js';
import { IdallocError } from '../src/errors.js';
import { StreamDocIdsResponse } from '../src/gen/idalloc/v1/id_allocator.js';
import { toDocIds } from '../src/ranges.js';

const run = { firstDocId: '00076b034dfefffffffffffffff0', step: 5n, idCount: 4n };

test('expands a run with unsigned serials', () => {
  const ids = ['00076b034dfefffffffffffffff0', '00076b034dfefffffffffffffff5'];
  assert.deepEqual([...expand({ ...run, idCount: 2n })], ids);
  assert.equal(lastDocId(run), '00076b034dfeffffffffffffffff');
});

test('counts the ids of valid runs', () => {
  const first = { firstDocId: '00076b034dfe0000000000000007', step: 1n, idCount: 1n };
  assert.equal(runCount([first, run]), 5n);
});

for (const [name, runs] of [
  ['no runs', []],
  ['more ids than requested', [{ ...run, firstDocId: '00076b034dfe0000000000000007', idCount: 6n }]],
  ['an overflow', [{ ...run, idCount: 5n }]],
  ['a step of 0', [{ ...run, step: 0n }]],
  ['no ids', [{ ...run, idCount: 0n }]],
  ['an invalid id', [{ ...run, firstDocId: 'x' }]],
  [
    'overlapping runs',
    [
      { ...run, idCount: 2n },
      { ...run, idCount: 2n },
    ],
  ],
] as const) {
  test(`refuses ${name}`, () => {
    const reply = StreamDocIdsResponse.create({ runs: [...runs] });
    assert.throws(() => toDocIds(reply, { least: 1n, most: 5n }), IdallocError);
  });
}
