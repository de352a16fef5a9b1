"""The console in a browser, beside what the routes behind it say."""
import json
import os
import pathlib
import threading
import urllib.error
import urllib.request

import pytest

from browser import browser, wait_for
from serving import ROOT, new_key, serving

BOOK = (ROOT / 'ops/demo/walden.txt').read_text()
PROMPT = BOOK[2_000:3_500]
SINKS, LOCAL, HEAVY = 4, 16, 16
PICTURES = os.environ.get('AQUEDUCT_SCREENSHOTS')


@pytest.fixture(scope='module')
def server():
    """Two workers; a prompt of a page is many chunks, and most of it is dropped."""
    budget = ['--sinks', str(SINKS), '--local', str(LOCAL), '--heavy', str(HEAVY)]
    with serving('--workers', '2', '--chunk', '64', *budget) as server:
        yield server


@pytest.fixture(scope='module')
def tab():
    with browser() as page:
        yield page


@pytest.fixture
def page(tab, server):
    tab.scheme('light')
    tab.urls.clear()
    tab.open(f'http://{server.http}/')
    tab.until("document.querySelector('#link')?.innerText === 'live'")
    yield tab
    assert tab.complaints == []
    assert {url.split('/')[2] for url in tab.urls if url.startswith('http')} == {server.http}


def get(server, path, key=None):
    headers = {'authorization': f'Bearer {key}'} if key else {}
    request = urllib.request.Request(f'http://{server.http}{path}', headers=headers)
    with urllib.request.urlopen(request, timeout=60) as reply:
        return json.load(reply)


def complete(server, **fields):
    body = json.dumps({'temperature': 0, **fields}).encode()
    request = urllib.request.Request(f'http://{server.http}/v1/completions', body,
                                     {'content-type': 'application/json'})
    with urllib.request.urlopen(request, timeout=300) as reply:
        return json.load(reply)


def picture(page, tmp_path, name):
    page.picture(pathlib.Path(PICTURES or tmp_path) / name)


def test_a_running_cluster_is_shown(page):
    nodes = page.until("document.querySelector('#nodes').rows.length === 2"
                       " && document.querySelector('#nodes').innerText")
    assert 'w0' in nodes and 'w1' in nodes and nodes.count('up') == 2
    assert page.text('#model') == 'model'
    assert page.text('#running') == '0'


def test_it_follows_a_request(page, server):
    """No reload: what changes is seen while the page is open."""
    page.run("""(() => {
        window.stages = new Set();
        window.cells = new Set();
        new MutationObserver(() => {
            document.querySelectorAll('#requests tr').forEach(
                row => window.stages.add(row.dataset.stage));
            window.cells.add(document.querySelectorAll('#wave rect.done').length);
        }).observe(document.querySelector('main'), { childList: true, subtree: true });
    })()""")
    done = threading.Event()

    def ask():
        while not done.is_set():
            complete(server, prompt=BOOK[:30_000], max_tokens=300, cache_prompt=False)

    asking = threading.Thread(target=ask)
    asking.start()
    try:
        for stage in ('prefill', 'decode', 'finished'):
            page.until(f"window.stages.has('{stage}')")
        page.until('window.cells.size > 2')
        page.until("document.querySelector('#ttft').innerText.includes('ms')")
    finally:
        done.set()
        asking.join()
    wait_for(lambda: page.text('#running') == '0')


def ask(page, prompt):
    before = page.text('#map-of')
    page.type('#prompt', prompt)
    page.type('#max-tokens', '12')
    page.click('#ask button')
    page.until("!document.querySelector('#shown').hidden"
               f" && document.querySelector('#map-of').innerText !== {before!r}")
    return page.text('#map-of')


def tokens(page, where):
    return page.run(f"""[...document.querySelector('{where}').children].map(element => ({{
        text: element.textContent.replaceAll('↵\\n', '\\n'),
        position: Number(element.dataset.position),
        weight: Number(element.dataset.weight),
        kinds: [...element.classList],
        shade: Number(element.style.getPropertyValue('--weight')),
    }}))""")


def expected(head):
    most = max(head['weights'])
    return dict(zip(head['positions'], (weight / most for weight in head['weights'])))


def test_the_map_shades_the_right_words(page, server, tmp_path):
    request = ask(page, PROMPT)
    text = get(server, f'/console/requests/{request}/map')
    assert ''.join(text['pieces']) == PROMPT
    assert (text['layers'], text['kv_heads']) == (
        page.run("document.querySelector('#layer').length"),
        page.run("document.querySelector('#head').length"))
    seen = set()
    for layer in range(text['layers']):
        for head in range(text['kv_heads']):
            page.choose('#layer', layer)
            page.choose('#head', head)
            api = get(server, f'/console/requests/{request}/map/{layer}/{head}')
            kept, want = api['kept'], expected(api['kept'])
            assert len(kept['positions']) == SINKS + LOCAL + HEAVY and kept['left_out'] == 0
            strongest = f"{kept['positions'][kept['weights'].index(max(kept['weights']))]}"
            wait_for(lambda: {
                token['position']: token['weight'] for token in tokens(page, '#text')
                if 'dropped' not in token['kinds']
            } == {position: round(weight, 4) for position, weight in want.items()})
            shown = tokens(page, '#text')
            assert [token['text'] for token in shown] == text['pieces'], strongest
            end = len(shown)
            for position, token in enumerate(shown):
                kind = ('dropped' if position not in want else 'sink' if position < SINKS
                        else 'local' if position >= end - LOCAL else 'heavy')
                assert token['position'] == position and token['kinds'] == [kind]
                assert token['shade'] == pytest.approx(want.get(position, 0) ** 0.5, abs=0.01)
            seen.add(tuple(kept['positions']))
    assert len(seen) > 1, 'heads keep different words'
    picture(page, tmp_path, 'console-light.png')
    page.scheme('dark')
    background = 'getComputedStyle(document.body).backgroundColor'
    assert page.run(background) == 'rgb(13, 17, 23)'
    picture(page, tmp_path, 'console-dark.png')


def test_a_token_shows_what_it_looked_at(page, server):
    request = ask(page, PROMPT[:700])
    text = get(server, f'/console/requests/{request}/map')
    api = get(server, f'/console/requests/{request}/map/0/0')
    assert len(text['completion']) == 12
    # The last token is drawn, and looks at nothing any more.
    assert [look['token_idx'] for look in api['looks']] == list(range(11))
    kept = set(api['kept']['positions'])
    for idx in (0, 10):
        page.click(f'#answer button:nth-child({idx + 1})')
        look = api['looks'][idx]
        assert 0 < sum(look['weights']) < 1.0001
        # What it remembers of the prompt, and the answer up to itself.
        end = len(text['pieces'])
        assert all(position in kept or end <= position <= end + idx
                   for position in look['positions'])
        want = {position: round(weight, 4) for position, weight in expected(look).items()}
        wait_for(lambda: {
            token['position']: token['weight']
            for where in ('#text', '#answer') for token in tokens(page, where) if token['weight']
        } == {position: weight for position, weight in want.items() if weight})
    page.click('#all')
    wait_for(lambda: 'tokens kept by this head' in page.text('#counts'))


def test_every_control_has_a_name(page, server):
    ask(page, PROMPT[:200])
    tree = page.call('Accessibility.getFullAXTree')['nodes']
    roles = ('button', 'textbox', 'combobox', 'spinbutton', 'image', 'meter')
    named = [(node['role']['value'], node.get('name', {}).get('value'))
             for node in tree if node.get('role', {}).get('value') in roles]
    assert {'button', 'textbox', 'combobox'} <= {role for role, _ in named}
    assert [role for role, name in named if not name] == []


def test_what_cannot_be_shown_says_why(page, server):
    for path, status in [('none/map', 404), ('none/map/0/0', 404)]:
        with pytest.raises(urllib.error.HTTPError) as error:
            get(server, f'/console/requests/{path}')
        assert error.value.code == status
    request = ask(page, PROMPT[:200])
    for path, word in [(f'{request}/map/99/0', 'layer'), (f'{request}/map/0/99', 'head'),
                       (f'{request}/map?from=9999', 'from'), (f'{request}/map?tokens=0', 'tokens')]:
        with pytest.raises(urllib.error.HTTPError) as error:
            get(server, f'/console/requests/{path}')
        assert error.value.code == 400 and word in error.value.read().decode()


def test_keys_guard_the_data(tab, tmp_path):
    file = tmp_path / 'keys.json'
    alice = new_key(file, '--name', 'alice')
    admin = new_key(file, '--name', 'root', '--admin')
    with serving('--api-keys', file) as server:
        for key, status in [(None, 401), ('aq_0_wrong', 401), (alice, 403)]:
            with pytest.raises(urllib.error.HTTPError) as error:
                get(server, '/console/requests/1/map', key)
            assert error.value.code == status
        tab.open(f'http://{server.http}/console')
        tab.until("document.querySelector('#door')?.hidden === false")
        assert tab.run("document.querySelector('#nodes').rows.length") == 0
        tab.type('#key', alice)
        tab.click('#door button')
        tab.until("document.querySelector('#denied').innerText.includes('--admin')")
        tab.type('#key', admin)
        tab.click('#door button')
        tab.until("document.querySelector('#link').innerText === 'live'")
        tab.until("document.querySelector('#nodes').innerText.includes('up')")
        tab.open('about:blank')
    tab.complaints.clear()
