"""Headless Chromium, driven by its own protocol: no driver, no browser of a package's own."""
import base64
import json
import os
import pathlib
import shutil
import signal
import subprocess
import tempfile
import time
import urllib.request
from contextlib import contextmanager, suppress

import websocket

FLAGS = [
    '--headless', '--no-sandbox', '--disable-gpu', '--disable-quic', '--no-first-run',
    '--disable-background-networking', '--disable-component-update', '--disable-sync',
    '--remote-debugging-port=0', '--remote-allow-origins=*', '--window-size=1200,1000',
]
DEADLINE_S = 60


def wait_for(what):
    """What it comes to that is true."""
    until = time.monotonic() + DEADLINE_S
    while not (value := what()):
        assert time.monotonic() < until, 'it never was so'
        time.sleep(0.02)
    return value


class Page:
    """A tab, and what it has asked for and complained of."""

    def __init__(self, address):
        self.socket = websocket.create_connection(address, timeout=DEADLINE_S)
        self.calls = 0
        self.urls = []
        self.complaints = []
        for domain in ('Page', 'Runtime', 'Network', 'Log', 'Accessibility'):
            self.call(f'{domain}.enable')

    def call(self, method, **params):
        """A command's result; what the browser tells meanwhile is noted."""
        self.calls += 1
        self.socket.send(json.dumps({'id': self.calls, 'method': method, 'params': params}))
        while True:
            told = json.loads(self.socket.recv())
            if told.get('id') == self.calls:
                assert 'error' not in told, told
                return told['result']
            self.note(told['method'], told['params'])

    def note(self, event, params):
        if event == 'Network.requestWillBeSent':
            self.urls.append(params['request']['url'])
        if event == 'Runtime.exceptionThrown':
            self.complaints.append(str(params['exceptionDetails']))
        if event == 'Log.entryAdded' and params['entry']['level'] == 'error':
            self.complaints.append(params['entry']['text'])

    def open(self, url):
        self.call('Page.navigate', url=url)

    def run(self, script):
        """What an expression comes to, promises too."""
        result = self.call('Runtime.evaluate', expression=script, returnByValue=True,
                           awaitPromise=True)
        assert 'exceptionDetails' not in result, result
        return result['result'].get('value')

    def until(self, script):
        """Until the expression is true."""
        return wait_for(lambda: self.run(script))

    def text(self, selector):
        return self.run(f'document.querySelector({selector!r})?.innerText')

    def click(self, selector):
        """With the mouse, where the element is."""
        self.until(f'document.querySelector({selector!r}) !== null')
        at = self.run(f"""(() => {{
            const element = document.querySelector({selector!r});
            element.scrollIntoView({{ block: 'center' }});
            const box = element.getBoundingClientRect();
            return {{ x: box.x + box.width / 2, y: box.y + box.height / 2 }};
        }})()""")
        for kind in ('mousePressed', 'mouseReleased'):
            self.call('Input.dispatchMouseEvent', type=kind, button='left', clickCount=1, **at)

    def type(self, selector, text):
        self.run(f'document.querySelector({selector!r}).select()')
        self.run(f'document.querySelector({selector!r}).focus()')
        self.call('Input.insertText', text=text)

    def choose(self, selector, value):
        self.run(f"""(() => {{
            const list = document.querySelector({selector!r});
            list.value = {str(value)!r};
            list.dispatchEvent(new Event('change'));
        }})()""")

    def scheme(self, name):
        features = [{'name': 'prefers-color-scheme', 'value': name}]
        self.call('Emulation.setEmulatedMedia', features=features)

    def picture(self, path):
        shot = self.call('Page.captureScreenshot', format='png', captureBeyondViewport=True)
        path.write_bytes(base64.b64decode(shot['data']))


def port_in(file):
    """The first line, once it is there to its end: the file is there before what it says."""
    port, end, _ = file.read_text().partition('\n') if file.exists() else ('', '', '')
    return end and port


def gone(folder):
    shutil.rmtree(folder, ignore_errors=True)
    return not folder.exists()


@contextmanager
def browser():
    """A browser with one tab."""
    profile = pathlib.Path(tempfile.mkdtemp())
    command = ['chromium', *FLAGS, f'--user-data-dir={profile}', 'about:blank']
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        port = wait_for(lambda: port_in(profile / 'DevToolsActivePort'))
        with urllib.request.urlopen(f'http://127.0.0.1:{port}/json/list') as reply:
            tab, = (tab for tab in json.load(reply) if tab['type'] == 'page')
        page = Page(tab['webSocketDebuggerUrl'])
        yield page
        page.socket.close()
    finally:
        # Its helpers write to the profile for as long as they live, and that may be longer than
        # the browser itself does.
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(DEADLINE_S)
        wait_for(lambda: gone(profile))
