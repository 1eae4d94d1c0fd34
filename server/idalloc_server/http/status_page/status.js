// The status page: requests two JSON documents every two seconds and shows them. All texts may come from strangers, so
// they are only ever set as textContent. It changes nothing on the server.

const POLL_MS = 2000;
const TIMEOUT_MS = 10_000;
const LONGEST_PAUSE_MS = 30_000;
const PAGE_SIZE = 50;
const TOKEN = 'idalloc-token';
// Where a forecast is nearer than this, it is shown in red.
const SOON_SECONDS = 30 * 86_400;

const view = { search: '', sort: 'name', descending: false, offset: 0 };
let timer;
let running; // the AbortController of the requests in flight
let failures = 0;
let lastUpdate;

const byId = (id) => document.getElementById(id);

class SignInNeeded extends Error {}

async function fetchJson(path, signal) {
  const token = sessionStorage.getItem(TOKEN);
  const headers = token ? { Authorization: `Bearer ${token}` } : {};
  const answer = await fetch(path, { headers, signal, cache: 'no-store' });
  if (answer.ok) return answer.json();
  const text = (await answer.text()).trim();
  if (answer.status === 401 || answer.status === 403) throw new SignInNeeded(text);
  throw new Error(text || `status ${answer.status}`);
}

function sequencesPath() {
  const query = new URLSearchParams({
    search: view.search,
    sort: view.sort,
    descending: view.descending ? '1' : '0',
    offset: String(view.offset),
    limit: String(PAGE_SIZE),
  });
  return `api/sequences?${query}`;
}

/** Requests and shows both documents. A new request, such as after a search, replaces the one in flight. */
async function update() {
  clearTimeout(timer);
  running?.abort();
  const controller = new AbortController();
  running = controller;
  const timeout = setTimeout(() => controller.abort(), TIMEOUT_MS);
  try {
    // Each is shown as far as the other fails: without a worker there is no list.
    const [status, list] = await Promise.allSettled([
      fetchJson('api/status', controller.signal),
      fetchJson(sequencesPath(), controller.signal),
    ]);
    if (running !== controller) return;
    if (status.status === 'rejected') throw status.reason;
    showStatus(status.value);
    showList(list);
    failures = 0;
    lastUpdate = Date.now();
    byId('sign-in').hidden = true;
    byId('main').hidden = false;
    byId('sign-out').hidden = !sessionStorage.getItem(TOKEN);
    setText(byId('updated'), `Updated ${new Date(lastUpdate).toLocaleTimeString()}`);
  } catch (error) {
    if (running !== controller) return;
    failures += 1;
    if (error instanceof SignInNeeded) return showSignIn(error.message);
    showLost();
  } finally {
    clearTimeout(timeout);
  }
  schedule();
}

function schedule() {
  clearTimeout(timer);
  if (!document.hidden) timer = setTimeout(update, Math.min(POLL_MS * 2 ** failures, LONGEST_PAUSE_MS));
}

function showLost() {
  const ago = lastUpdate ? `, last update ${duration((Date.now() - lastUpdate) / 1000)} ago` : '';
  setHealth('connection lost', 'bad');
  setText(byId('updated'), `The server does not answer${ago}. Trying again.`);
}

function showSignIn(problem) {
  const hadToken = sessionStorage.getItem(TOKEN) !== null;
  sessionStorage.removeItem(TOKEN);
  byId('main').hidden = true;
  byId('sign-out').hidden = true;
  setHealth('', '');
  setText(byId('node'), '');
  setText(byId('updated'), '');
  setText(byId('sign-in-problem'), hadToken ? problem : '');
  if (byId('sign-in').hidden) {
    byId('sign-in').hidden = false;
    byId('token').focus();
  }
}

function showStatus({ node, health, calls, totals, refusals, events }) {
  const workers = node.workers > 1 ? `, ${node.workers} workers` : '';
  const place = `${node.address}, store ${node.store}, prefix ${node.prefix}`;
  setText(byId('node'), `${node.version} on ${place}${workers}, up ${duration(node.now - node.started_at)}`);
  showWitness(node);
  const failing = health.filter((check) => check.problem);
  setHealth(failing.length ? 'not ready' : 'ready', failing.length ? 'bad' : 'good');
  fill(byId('problems'), failing, 'li', (item, check) => setText(item, `${check.check}: ${check.problem}`));
  showTiles(calls, totals);
  fillTable('calls', calls, [
    (call) => call.method,
    (call) => rate(call.per_second),
    (call) => rate(call.failed_per_second),
    (call) => milliseconds(call.p50_ms),
    (call) => milliseconds(call.p99_ms),
  ]);
  fillTable('refusals', refusals, [
    (line) => time(line.time),
    (line) => line.method.split('/').pop(),
    (line) => line.reason || line.code,
    (line) => group(line.count),
    (line) => line.why,
  ]);
  fillTable('events', events, [
    (line) => time(line.time),
    (line) => line.level,
    (line) => line.event,
    (line) => line.text,
  ]);
}

/** Shows the witness, and whether it answers, which is unknown while no process serves. */
function showWitness({ witness, witness_up: isUp }) {
  const line = byId('witness');
  line.hidden = !witness;
  line.className = isUp === false ? 'bad' : 'quiet';
  const state = { true: ', answers', false: ', does not answer' }[isUp] ?? '';
  setText(line, witness ? `Witness ${witness}${state}` : '');
}

function showTiles(calls, totals) {
  const sum = (key) => calls.reduce((total, call) => total + call[key], 0);
  const burned = Object.values(totals.burned).reduce((total, ids) => total + BigInt(ids), 0n);
  const tiles = [
    ['Ids issued', group(totals.ids_issued)],
    ['Document ids issued', group(totals.doc_ids_issued)],
    ['Calls/s', rate(sum('per_second'))],
    ['Failed calls/s', rate(sum('failed_per_second'))],
    ['Calls in flight', group(totals.in_flight)],
    ['Leases', group(totals.leases)],
    ['Ids burned', group(burned), causes(totals.burned)],
  ];
  fill(byId('tiles'), tiles, 'div', (tile, [name, value, title = '']) => {
    if (!tile.firstChild) tile.append(document.createElement('dt'), document.createElement('dd'));
    setText(tile.firstChild, name);
    setText(tile.lastChild, value);
    tile.title = title;
  });
}

function showList(result) {
  if (result.status === 'rejected') {
    setText(byId('found'), result.reason.message);
    return;
  }
  const { sequences, total, offset, is_complete: isComplete, as_of: asOf } = result.value;
  if (total > 0 && offset >= total) {
    view.offset = 0; // The list has become shorter.
    return;
  }
  fillTable('sequences', sequences, [
    (each) => (each.period ? `${each.name} · ${each.period}` : each.name),
    (each) => (each.last_value === null ? '–' : group(each.last_value)),
    showUsed,
    (each) => rate(each.ids_per_second),
    showForecast,
    (each) => group(each.lease_ids),
    reserve,
    (each) => causes(each.burned),
    (each) => Object.entries(each.labels).map(([key, value]) => `${key}=${value}`).join(', '),
  ]);
  const part = total ? `${group(offset + 1)}–${group(offset + sequences.length)} of ${group(total)}` : 'none';
  const more = isComplete ? '' : ', the first by name';
  setText(byId('found'), asOf === null ? 'reading the store…' : part + more);
  // Not `disabled`: a button that becomes so loses the focus.
  byId('previous').setAttribute('aria-disabled', offset === 0);
  byId('next').setAttribute('aria-disabled', offset + sequences.length >= total);
}

function showUsed(each, cell) {
  if (!cell.firstChild) cell.append(document.createElement('meter'), document.createElement('span'));
  const [bar, text] = cell.children;
  bar.value = each.used_ratio;
  const percent = each.used_ratio * 100;
  setText(text, `${percent > 0 && percent < 0.1 ? '<0.1' : percent.toFixed(1)} %`);
  bar.setAttribute('aria-label', `used ${text.textContent}`);
  cell.title = `${group(each.remaining)} ids left`;
}

function showForecast(each, cell) {
  if (each.exhaust_time === null) {
    setText(cell, '–');
    cell.title = '';
    cell.className = 'quiet';
    return;
  }
  const seconds = each.exhaust_time - Date.now() / 1000;
  setText(cell, seconds <= 0 ? 'now' : `in ${duration(seconds)}`);
  cell.title = new Date(each.exhaust_time * 1000).toISOString();
  cell.className = seconds < SOON_SECONDS ? 'bad' : '';
}

/** Fills the rows of a table. A column returns the text of its cell, or fills the cell and returns nothing. */
function fillTable(id, items, columns) {
  const heads = byId(id).tHead.rows[0].cells;
  fill(byId(id).tBodies[0], items, 'tr', (row, item) => {
    columns.forEach((column, number) => {
      const cell = row.cells[number] ?? row.insertCell();
      if (number === columns.length - 1) cell.className = 'long';
      if (heads[number].classList.contains('number')) cell.className = 'number';
      const text = column(item, cell);
      if (text !== undefined) setText(cell, text);
    });
  });
}

/** Changes the children in place, so that focus, selection and scroll position stay. */
function fill(parent, items, tag, show) {
  while (parent.children.length > items.length) parent.lastElementChild.remove();
  while (parent.children.length < items.length) parent.append(document.createElement(tag));
  items.forEach((item, number) => show(parent.children[number], item));
}

function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

function setHealth(text, className) {
  setText(byId('health'), text);
  byId('health').className = className;
}

/** Groups the digits of an integer, which may be longer than a Number is exact. */
function group(value) {
  return String(value).replace(/\B(?=(\d{3})+(?!\d))/g, '\u202f');
}

function rate(value) {
  if (value === 0) return '0';
  return value >= 100 ? group(Math.round(value)) : value.toPrecision(3);
}

function reserve({ reserve_seconds: seconds, reserve_limit: limit }) {
  if (seconds === null) return '–';
  return `${group(Math.round(seconds))} s${limit ? `, limited: ${limit}` : ''}`;
}

function milliseconds(value) {
  return value === null ? '–' : value.toPrecision(3);
}

function causes(burned) {
  return Object.entries(burned).map(([cause, ids]) => `${cause} ${group(ids)}`).join(', ');
}

function time(text) {
  const at = new Date(text);
  return Number.isNaN(at.getTime()) ? text : at.toLocaleTimeString();
}

function duration(seconds) {
  const units = [['year', 31_557_600], ['day', 86_400], ['h', 3600], ['min', 60]];
  for (const [name, size] of units) {
    const count = Math.floor(seconds / size);
    if (count >= 1) return `${group(count)} ${name}${name.length > 3 && count > 1 ? 's' : ''}`;
  }
  return `${Math.max(0, Math.round(seconds))} s`;
}

function changeView(changes) {
  Object.assign(view, { offset: 0 }, changes);
  update();
}

function sortBy(button) {
  const sort = button.dataset.sort;
  const descending = view.sort === sort ? !view.descending : sort === 'used' || sort === 'rate';
  for (const head of byId('sequences').tHead.rows[0].cells) head.removeAttribute('aria-sort');
  button.closest('th').setAttribute('aria-sort', descending ? 'descending' : 'ascending');
  changeView({ sort, descending });
}

byId('search').addEventListener('input', (event) => changeView({ search: event.target.value }));
for (const [id, step] of [['previous', -PAGE_SIZE], ['next', PAGE_SIZE]]) {
  byId(id).addEventListener('click', ({ target }) => {
    if (target.getAttribute('aria-disabled') !== 'true') changeView({ offset: Math.max(0, view.offset + step) });
  });
}
for (const button of document.querySelectorAll('[data-sort]')) {
  button.addEventListener('click', () => sortBy(button));
}
byId('sign-in').addEventListener('submit', (event) => {
  event.preventDefault();
  sessionStorage.setItem(TOKEN, byId('token').value.trim());
  byId('token').value = '';
  failures = 0;
  update();
});
byId('sign-out').addEventListener('click', () => {
  sessionStorage.removeItem(TOKEN);
  update();
});
document.addEventListener('visibilitychange', () => (document.hidden ? clearTimeout(timer) : update()));
update();
