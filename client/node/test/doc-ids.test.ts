import assert from 'node:assert/strict';
import { test } from 'node:test';
import { expand, lastDocId, runCount } from '../src/doc-ids.js';

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
