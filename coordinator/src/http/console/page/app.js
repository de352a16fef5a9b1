// The console: how the cluster stands, as it changes.
import { show } from './map.js';
import { at, call, make } from './parts.js';

const METRICS_EVERY_MS = 2000;
const AGAIN_AFTER_MS = 1000;
const CHUNKS_SHOWN = 96;
const CELL = 10;
const SVG = 'http://www.w3.org/2000/svg';

const pause = ms => new Promise(resolve => setTimeout(resolve, ms));
const count = number => number.toLocaleString('en');

function bytes(number) {
  const step = Math.min(4, Math.floor(Math.log2(Math.max(number, 1)) / 10));
  const unit = ['B', 'KiB', 'MiB', 'GiB', 'TiB'][step];
  return `${(number / 1024 ** step).toFixed(step ? 1 : 0)} ${unit}`;
}

function node(worker) {
  const state = make('td', { className: worker.state === 'up' ? '' : 'bad' }, worker.state);
  state.title = worker.reason ?? '';
  const meter = make('meter', { max: worker.pool_bytes || 1, value: worker.pool_used_bytes });
  meter.setAttribute('aria-label', `pool of ${worker.name}`);
  const pool = `${bytes(worker.pool_used_bytes)} of ${bytes(worker.pool_bytes)}`;
  return make('tr', {}, make('td', {}, worker.name), state, make('td', {}, worker.address ?? ''),
    make('td', { className: 'n' }, `${worker.threads ?? ''}`), make('td', {}, meter, ` ${pool}`));
}

let chosen = null; // the request whose wavefront is shown; the last one otherwise

function request(entry) {
  const name = entry.caller_id || entry.id;
  const button = (text, value) => {
    const made = make('button', { type: 'button', name: text, value }, text);
    made.setAttribute('aria-label', `${text} of ${name}`);
    return made;
  };
  const shown = make('td', {}, button('wavefront', entry.id));
  if (entry.has_map) {
    shown.append(' ', button('memory map', entry.id));
  }
  const number = text => make('td', { className: 'n' }, text);
  const row = make('tr', {}, make('td', { title: entry.id }, name), make('td', {}, entry.stage),
    number(count(entry.prompt_tokens)), number(`${entry.chunks_done}/${entry.chunk_count}`),
    number(count(entry.output_tokens)), number(entry.seconds.toFixed(1)), shown);
  row.dataset.stage = entry.stage;
  return row;
}

/** Layers of a chunk that are done: chunks end in their order, workers say where they are. */
function layersDone(entry, chunk, layers) {
  if (chunk < entry.chunks_done) {
    return layers;
  }
  const worker = entry.workers.find(worker => worker.chunk_idx === chunk);
  return worker ? worker.layers_done : -1;
}

function wave(entry, layers) {
  const first = Math.max(0, Math.min(entry.chunk_count - CHUNKS_SHOWN,
    entry.chunks_done - CHUNKS_SHOWN / 2));
  const chunks = Math.min(entry.chunk_count - first, CHUNKS_SHOWN);
  const svg = document.createElementNS(SVG, 'svg');
  svg.setAttribute('role', 'img');
  svg.setAttribute('aria-label',
    `${entry.chunks_done} of ${entry.chunk_count} chunks done, ${layers} layers`);
  svg.setAttribute('width', chunks * CELL + 1);
  svg.setAttribute('height', layers * CELL + 1);
  for (let chunk = 0; chunk < chunks; chunk += 1) {
    const done = layersDone(entry, first + chunk, layers);
    for (let layer = 0; layer < layers; layer += 1) {
      const cell = document.createElementNS(SVG, 'rect');
      cell.setAttribute('class', layer < done ? 'done' : layer === done ? 'at' : '');
      cell.setAttribute('x', chunk * CELL);
      cell.setAttribute('y', layer * CELL);
      cell.setAttribute('width', CELL - 1);
      cell.setAttribute('height', CELL - 1);
      svg.append(cell);
    }
  }
  return svg;
}

/** Cells are replaced only where they changed, so that a button can be used. */
function rows(id, made) {
  const table = at(id);
  made.forEach((row, idx) => {
    const old = table.rows[idx] ?? table.insertRow();
    old.dataset.stage = row.dataset.stage;
    [...row.cells].forEach((cell, column) => {
      if (!old.cells[column]) {
        old.append(cell);
      } else if (old.cells[column].outerHTML !== cell.outerHTML) {
        old.cells[column].replaceWith(cell);
      }
    });
  });
  while (table.rows.length > made.length) {
    table.deleteRow(-1);
  }
}

function draw(state) {
  at('model').textContent = state.model;
  at('running').textContent = count(state.running);
  at('waiting').textContent = count(state.waiting);
  at('waiting-tokens').textContent = count(state.waiting_tokens);
  rows('nodes', state.workers.map(node));
  const requests = [...state.requests].reverse();
  rows('requests', requests.map(request));
  const of = requests.find(entry => entry.id === chosen) ?? requests[0];
  if (of) {
    at('wave-of').textContent = of.caller_id || of.id;
    at('wave').replaceChildren(wave(of, state.layers));
  }
}

/** Reads server-sent events; EventSource could not send the key. */
async function* events(reply) {
  const reader = reply.body.pipeThrough(new TextDecoderStream()).getReader();
  for (let text = ''; ;) {
    const { value, done } = await reader.read();
    if (done) {
      return;
    }
    const parts = (text + value).split('\n\n');
    text = parts.pop();
    for (const part of parts.filter(part => part.startsWith('data:'))) {
      yield JSON.parse(part.slice(5));
    }
  }
}

function say(text, lost) {
  at('link').textContent = text;
  at('link').className = lost ? 'lost' : '';
}

/** Until the connection ends. */
async function follow() {
  const reply = await call('/console/live');
  at('door').hidden = reply.ok;
  if (!reply.ok) {
    const { error } = await reply.json();
    at('denied').textContent = sessionStorage.getItem('key') ? error.message : '';
    say('closed', true);
    await new Promise(resolve => at('door').addEventListener('submit', resolve, { once: true }));
    return;
  }
  say('live');
  for await (const state of events(reply)) {
    draw(state);
  }
}

/** The value below which this share of a Prometheus histogram lies. */
function quantile(text, name, share) {
  const line = new RegExp(`^${name}_bucket\\{[^}]*le="([^"]+)"[^}]*\\} (\\d+)`, 'gm');
  const buckets = [...text.matchAll(line)].map(found => [Number(found[1]), Number(found[2])]);
  const all = buckets.at(-1)?.[1] ?? 0;
  return all ? buckets.find(([, below]) => below >= share * all)[0] : NaN;
}

function latency(text, name) {
  const ms = share => {
    const seconds = quantile(text, name, share);
    return Number.isFinite(seconds) ? `≤ ${count(Math.round(seconds * 1000))} ms` : '–';
  };
  return `${ms(0.5)} / ${ms(0.95)}`;
}

async function measure() {
  const text = await (await fetch('/metrics')).text();
  at('ttft').textContent = latency(text, 'time_to_first_token_seconds');
  at('itl').textContent = latency(text, 'inter_token_latency_seconds');
}

async function forever(what, ms) {
  for (;;) {
    await what().catch(error => say(`lost: ${error.message}`, true));
    await pause(ms);
  }
}

at('requests').addEventListener('click', event => {
  const { name, value } = event.target;
  if (name === 'wavefront') {
    chosen = value;
  } else if (name === 'memory map') {
    show(value);
  }
});
at('door').addEventListener('submit', event => {
  event.preventDefault();
  sessionStorage.setItem('key', at('key').value);
  at('key').value = '';
});
forever(follow, AGAIN_AFTER_MS);
forever(measure, METRICS_EVERY_MS);
