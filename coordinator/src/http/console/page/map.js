// The memory map: a prompt shaded by what a KV head makes of it.
import { at, call, make } from './parts.js';

const PAGE_TOKENS = 4096;

let id = null; // of the request that is shown
let text = null; // its tokens
let seen = null; // what the chosen head keeps, and what each token looked at
let token = null; // the chosen one of the answer; what the prompt left otherwise
let asked = 0; // so that an answer that comes after a later one is not shown

async function json(path, options) {
  const reply = await call(path, options);
  const body = await reply.json();
  if (!reply.ok) {
    throw new Error(body.error.message);
  }
  return body;
}

function options(list, count, label = String, first = 0) {
  const chosen = Math.min(list.selectedIndex < 0 ? first : list.selectedIndex, count - 1);
  list.replaceChildren(...Array.from({ length: count }, (_, idx) => new Option(label(idx), idx)));
  list.selectedIndex = chosen;
}

/** Why a position is kept; the rules are the policy's. */
function kind(position, kept) {
  if (!kept.size) {
    return 'state';
  }
  if (!kept.has(position)) {
    return 'dropped';
  }
  if (position < text.sinks) {
    return 'sink';
  }
  return position >= text.start + text.prompt_tokens - text.local ? 'local' : 'heavy';
}

/** Positions and what each weighs, from 0 to 1. */
function weights(head) {
  const most = Math.max(...head.weights, Number.MIN_VALUE);
  return new Map(head.positions.map((position, idx) => [position, head.weights[idx] / most]));
}

const visible = piece => piece.replaceAll('\n', '↵\n');

function dress(element, position, kept, shown, unit) {
  const weight = shown.get(position) ?? 0;
  element.dataset.position = position;
  element.dataset.weight = weight.toFixed(4);
  element.classList.add(kind(position, kept));
  element.style.setProperty('--weight', Math.sqrt(weight).toFixed(3));
  element.title = `position ${position}, ${kind(position, kept)}`
    + (shown.has(position) ? `, ${(100 * weight).toFixed(1)} % of the highest ${unit}` : '');
  return element;
}

function draw() {
  const kept = weights(seen.kept);
  const look = seen.looks.find(look => look.token_idx === token);
  const shown = token === null ? kept : weights(look ?? { positions: [], weights: [] });
  const unit = token === null ? 'score' : 'share of attention';
  at('shade').textContent = unit;
  at('all').setAttribute('aria-pressed', token === null);
  at('text').replaceChildren(...text.pieces.map((piece, idx) =>
    dress(make('span', {}, visible(piece)), text.start + text.from + idx, kept, shown, unit)));
  const first = text.start + text.prompt_tokens;
  at('answer').replaceChildren(...text.completion.map((piece, idx) => {
    const properties = { type: 'button', onclick: () => choose(idx) };
    const button = make('button', properties, visible(piece) || '∅');
    const weight = token === null ? 0 : shown.get(first + idx) ?? 0;
    button.dataset.position = first + idx;
    button.dataset.weight = weight.toFixed(4);
    button.style.setProperty('--weight', Math.sqrt(weight).toFixed(3));
    button.setAttribute('aria-pressed', idx === token);
    return button;
  }));
  const keys = seen.kept.positions.length + seen.kept.left_out;
  if (!keys) {
    at('counts').textContent = 'this layer remembers in a state, which has no keys';
    return;
  }
  at('counts').textContent = token === null
    ? `${keys} of ${text.prompt_tokens} tokens kept by this head, under ${text.policy}`
    : look ? `token ${token + 1} looked most at ${look.positions.length} tokens`
      : 'this token was the last one, or what it looked at is not kept';
}

function choose(idx) {
  token = token === idx ? null : idx;
  draw();
  at('answer').children[idx].focus();
}

const path = () => `/console/requests/${encodeURIComponent(id)}/map`;

async function changeHead() {
  asked += 1;
  const turn = asked;
  const head = await json(`${path()}/${at('layer').value}/${at('head').value}`);
  if (turn === asked) {
    seen = head;
    draw();
  }
}

async function changePage() {
  asked += 1;
  const turn = asked;
  const from = Number(at('page').value || 0) * PAGE_TOKENS;
  const page = await json(`${path()}?from=${from}&tokens=${PAGE_TOKENS}`);
  if (turn !== asked) {
    return;
  }
  text = page;
  if (!text.layers) {
    throw new Error('nothing of its memory was told: keys in shards have no map yet');
  }
  options(at('layer'), text.layers, String, text.first_layer);
  options(at('head'), text.kv_heads);
  options(at('page'), Math.max(1, Math.ceil(text.prompt_tokens / PAGE_TOKENS)),
    idx => String(idx * PAGE_TOKENS));
  await changeHead();
}

/** Shows the map of a request, by its id or its caller's. */
export async function show(request) {
  [id, text, seen, token] = [request, null, null, null];
  at('shown').hidden = true;
  at('page').replaceChildren();
  at('map-of').textContent = request;
  await tell(changePage);
  at('shown').hidden = !seen;
  at('map').focus();
}

async function tell(what) {
  at('asked').textContent = '';
  await what().catch(error => { at('asked').textContent = error.message; });
}

async function ask() {
  const request = `console-${crypto.getRandomValues(new Uint32Array(1))[0].toString(16)}`;
  const body = JSON.stringify({
    prompt: at('prompt').value,
    max_tokens: Number(at('max-tokens').value),
    temperature: 0,
    aqueduct: { memory_map: true },
  });
  const headers = { 'content-type': 'application/json', 'x-request-id': request };
  at('asked').textContent = 'reading …';
  await json('/v1/completions', { method: 'POST', headers, body });
  await show(request);
}

at('ask').addEventListener('submit', event => {
  event.preventDefault();
  ask().catch(error => { at('asked').textContent = error.message; });
});
at('layer').addEventListener('change', () => tell(changeHead));
at('head').addEventListener('change', () => tell(changeHead));
at('page').addEventListener('change', () => tell(changePage));
at('all').addEventListener('click', () => { token = null; draw(); });
