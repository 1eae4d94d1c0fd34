// Runs the scenarios with MySQL's Node client, and prints a line of JSON for each step.
// usage: node drive.mjs --port PORT --scenarios FILE [--only NAME] > answers.jsonl
import fs from 'node:fs'; import path from 'node:path'; import { createRequire } from 'node:module';
const require = createRequire(process.env.XDEVAPI_FROM || import.meta.url);
const mysqlx = require('@mysql/xdevapi');
const args = {}; for (let i = 2; i < process.argv.length; i += 2) args[process.argv[i].slice(2)] = process.argv[i + 1];
const host = args.host || '127.0.0.1', port = Number(args.port);
const defaults = JSON.parse(args.options || '{}');
class World { constructor() { this.sessions = {}; this.ids = []; }
  session(s) { return this.sessions[s.as || 's']; }
  schema(s) { return this.session(s).getSchema(s.schema || 'conf'); }
  collection(s) { return this.schema(s).getCollection(s.collection || 'c'); }
  fill(v) {
    if (typeof v === 'string' && v.startsWith('$id:')) return this.ids[Number(v.slice(4)) - 1];
    if (Array.isArray(v)) return v.map(x => this.fill(x));
    if (v && typeof v === 'object') return Object.fromEntries(Object.entries(v).map(([k, x]) => [k, this.fill(x)]));
    return v; } }
function settings(o) {
  const c = { host, port, user: o.user || args.user || 'x', password: o.password || args.password || 'x' };
  if (o.schema) c.schema = o.schema;
  c.tls = { enabled: !!o.tls };
  if (o.auth) c.auth = o.auth;
  return c; }
const wrote = (w, r, ids = true) => {
  const out = { affected: r.getAffectedItemsCount() };
  if (ids) { out.ids = r.getGeneratedIds(); w.ids.push(...out.ids); }
  if (r.getWarningsCount && r.getWarningsCount()) out.warnings = r.getWarnings().map(x => [x.code, x.msg]);
  return out; };
function build(w, s) {
  const c = w.collection(s), crit = 'criteria' in s ? [s.criteria] : [];
  let q = c[s.op](...crit);
  if (s.op === 'find') {
    if (s.fields) q = q.fields(...s.fields);
    if (s.group_by) q = q.groupBy(...s.group_by);
    if (s.having) q = q.having(s.having);
    if (s.lock === 'shared') q = q.lockShared();
    if (s.lock === 'exclusive') q = q.lockExclusive(); }
  if (s.op === 'modify') {
    for (const [p, v] of Object.entries(s.set || {})) q = q.set(p, w.fill(v));
    if (s.unset) q = q.unset(...s.unset);
    for (const [p, v] of Object.entries(s.change || {})) q = q.change(p, w.fill(v));
    for (const [p, v] of Object.entries(s.set_expr || {})) q = q.set(p, mysqlx.expr(v));
    for (const [p, v] of Object.entries(s.array_append || {})) q = q.arrayAppend(p, w.fill(v));
    for (const [p, v] of Object.entries(s.array_insert || {})) q = q.arrayInsert(p, w.fill(v));
    if (s.patch) q = q.patch(w.fill(s.patch)); }
  if (s.sort) q = q.sort(...s.sort);
  if ('limit' in s) q = q.limit(s.limit);
  if ('offset' in s) q = q.offset(s.offset);
  return q; }
async function run(w, s) {
  const op = s.op;
  switch (op) {
    case 'connect': w.sessions[s.as || 's'] = await mysqlx.getSession(settings({ ...defaults, ...s.options })); return 'connected';
    case 'close': await w.session(s).close(); return 'closed';
    case 'create_schema': await w.session(s).createSchema(s.name); return 'ok';
    case 'drop_schema': await w.session(s).dropSchema(s.name); return 'ok';
    case 'get_schemas': return (await w.session(s).getSchemas()).map(x => x.getName()).filter(x => x.startsWith('conf')).sort();
    case 'schema_exists': return w.session(s).getSchema(s.name).existsInDatabase();
    case 'create_collection': { const o = {}; if (s.reuse) o.reuseExisting = true; if (s.validation) o.validation = { schema: s.validation.schema, level: s.validation.level };
      await w.schema(s).createCollection(s.name, o); return 'ok'; }
    case 'drop_collection': await w.schema(s).dropCollection(s.name); return 'ok';
    case 'get_collections': return (await w.schema(s).getCollections()).map(c => c.getName()).sort();
    case 'collection_exists': return w.schema(s).getCollection(s.name).existsInDatabase();
    case 'add': return wrote(w, await w.collection(s).add(...w.fill(s.docs)).execute());
    case 'add_text': return wrote(w, await w.collection(s).add(...s.texts).execute());
    case 'add_many': { const r = wrote(w, await w.collection(s).add(...Array.from({ length: s.count }, (_, n) => ({ n }))).execute());
      const sorted = [...new Set(r.ids)].sort(); return { ...r, ids: r.ids.length, rising: JSON.stringify(sorted) === JSON.stringify(r.ids) }; }
    case 'find': { let q = build(w, s), out; for (let n = 0; n < (s.times || 1); n++) {
        if (s.bind) q = q.bind(w.fill(s.bind)); const r = await q.execute(); out = r.fetchAll(); } return out; }
    case 'modify': case 'remove': { let q = build(w, s), r; for (let n = 0; n < (s.times || 1); n++) {
        if (s.bind) q = q.bind(w.fill(s.bind)); r = await q.execute(); } return wrote(w, r, false); }
    case 'count': return w.collection(s).count();
    case 'get_one': return (await w.collection(s).getOne(w.fill(s.id))) ?? null;
    case 'replace_one': return wrote(w, await w.collection(s).replaceOne(w.fill(s.id), w.fill(s.doc)), false);
    case 'add_or_replace_one': return wrote(w, await w.collection(s).addOrReplaceOne(w.fill(s.id), w.fill(s.doc)));
    case 'remove_one': return wrote(w, await w.collection(s).removeOne(w.fill(s.id)), false);
    case 'sql': { let q = w.session(s).sql(s.stmt); if (s.args) q = q.bind(s.args); const r = await q.execute();
      if (r.hasData()) return { rows: r.fetchAll(), columns: r.getColumns().map(c => c.getColumnLabel()) };
      const out = { affected: r.getAffectedItemsCount() }; if (r.getWarningsCount()) out.warnings = r.getWarnings().map(x => [x.code, x.msg]); return out; }
    case 'begin': await w.session(s).startTransaction(); return 'ok';
    case 'commit': await w.session(s).commit(); return 'ok';
    case 'rollback': await w.session(s).rollback(); return 'ok';
    case 'savepoint': await w.session(s).setSavepoint(s.name); return 'ok';
    case 'rollback_to': await w.session(s).rollbackTo(s.name); return 'ok';
    case 'release': await w.session(s).releaseSavepoint(s.name); return 'ok';
    case 'create_index': await w.collection(s).createIndex(s.name, s.index); return 'ok';
    case 'drop_index': await w.collection(s).dropIndex(s.name); return 'ok';
    case 'pool': { const client = mysqlx.getClient({ ...settings({ ...defaults, ...s.options }), schema: 'conf' }, { pooling: { enabled: true, maxSize: s.size || 2 } }); const out = [];
      for (let n = 0; n < (s.sessions || 3); n++) { const z = await client.getSession(); out.push(wrote(w, await z.getSchema('conf').getCollection('c').add({ pool: n }).execute())); await z.close(); }
      await client.close(); return out; }
  }
  throw new Error(`unknown op ${op}`); }
const codeOf = e => e.info && e.info.code ? { code: e.info.code, sql_state: e.info.sqlState, message: e.info.msg } : { client: e.constructor.name, text: String(e.message).slice(0, 200) };
const plain = r => JSON.stringify(r, (k, v) => typeof v === 'bigint' ? Number(v) : v);
const here = path.dirname(new URL(import.meta.url).pathname);
for (const sc of JSON.parse(fs.readFileSync(args.scenarios || path.join(here, 'scenarios.json'), 'utf8'))) {
  if (args.only && !sc.name.startsWith(args.only)) continue;
  if ((sc.skip || []).includes('node')) continue;
  const w = new World();
  const steps = sc.bare ? sc.steps : [{ op: 'connect' }, { op: 'drop_schema', name: 'conf' }, { op: 'create_schema', name: 'conf' }, { op: 'create_collection', name: 'c' }, ...sc.steps];
  for (const [i, s] of steps.entries()) {
    if ((s.skip || []).includes('node')) continue;
    let r; try { r = await run(w, s); } catch (e) { r = { error: codeOf(e) }; }
    console.log(`{"scenario": ${JSON.stringify(sc.name)}, "step": ${i}, "op": ${JSON.stringify(s.op)}, "result": ${plain(r === undefined ? null : r)}}`);
  }
  for (const z of Object.values(w.sessions)) try { await z.close(); } catch {}
}
process.exit(0);
