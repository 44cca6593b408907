"""Notebooks in JupyterLab, in a real browser: Chromium opens them, runs all cells, and sees no error.

Slow, and skipped where there is no Chromium: `pytest -m slow tests/pages/test_lab.py`. Debian has it as the
packages `chromium` and `chromium-driver`. The browser is driven by its own protocol over a web socket."""
import json
import os
import re
import shutil
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
CHROMIUM = shutil.which('chromium') or shutil.which('chromium-browser') or shutil.which('google-chrome')
PAGES = ['parts/centroids', 'papers/fedcosr/fig4', 'index'] # a lesson, a page of a paper, the first page
pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not CHROMIUM, reason='there is no Chromium: apt-get install chromium chromium-driver'),
]


def wait_for(look, seconds=120):
    "What `look` finds, as soon as it finds something."
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = look()
        if found: return found
        time.sleep(.2)
    raise TimeoutError(f'waited {seconds} s for {look.__doc__ or look.__name__}')


def said_in(log, pattern):
    "A look for a pattern in a growing log file."
    def look(): return re.search(pattern, log.read_text(errors='replace'))
    look.__doc__ = pattern
    return look


def started(command, log, **env):
    "A process that writes to a log file."
    return subprocess.Popen(command, stdout=open(log, 'w'), stderr=subprocess.STDOUT, env=os.environ | env)


@pytest.fixture(scope='module')
def lab(tmp_path_factory):
    "The address of a JupyterLab on a copy of the notebooks."
    folder = tmp_path_factory.mktemp('lab')
    shutil.copytree(ROOT/'nbs', folder/'nbs')
    settings = ['--ServerApp.token=', '--ServerApp.port=0', '--allow-root']
    settings += ['--LabApp.expose_app_in_browser=True']
    root = f'--ServerApp.root_dir={folder}/nbs'
    command = [sys.executable, '-m', 'jupyterlab', '--no-browser', root, *settings]
    paths = dict(PYTHONPATH=str(ROOT), FEDCL_PAPERS=str(ROOT/'nbs'/'papers'), FEDCL_STORE=str(folder/'runs'))
    server = started(command, folder/'lab.txt', **paths)
    try:
        yield wait_for(said_in(folder/'lab.txt', r'(http://(?:localhost|127\.0\.0\.1):\d+)/lab'))[1]
    finally:
        server.terminate()
        server.wait()


class Browser:
    "Chromium without a window, told what to do over a web socket."
    def __init__(self, folder):
        import websocket
        flags = ['--headless', '--no-sandbox', '--disable-gpu', '--remote-debugging-port=0',
                 '--remote-allow-origins=*', f'--user-data-dir={folder}/profile', '--window-size=1300,1000']
        self.process = started([CHROMIUM, *flags, 'about:blank'], folder/'chromium.txt')
        port = wait_for(said_in(folder/'chromium.txt', r'listening on ws://[^:]+:(\d+)/'))[1]
        with urllib.request.urlopen(f'http://127.0.0.1:{port}/json') as answer: tabs = json.load(answer)
        (tab,) = (t for t in tabs if t['type'] == 'page')
        self.socket = websocket.create_connection(tab['webSocketDebuggerUrl'], timeout=300)
        self.sent = 0

    def ask(self, method, **params):
        self.sent += 1
        self.socket.send(json.dumps(dict(id=self.sent, method=method, params=params)))
        while True:
            answer = json.loads(self.socket.recv())
            if answer.get('id') == self.sent: return answer['result']

    def run(self, script):
        "The value of a script in the page, promises awaited."
        found = self.ask('Runtime.evaluate', expression=script, awaitPromise=True, returnByValue=True)
        if 'exceptionDetails' in found: raise RuntimeError(found['exceptionDetails'])
        return found['result'].get('value')

    def close(self):
        self.socket.close()
        self.process.terminate()
        self.process.wait()


@pytest.fixture(scope='module')
def browser(tmp_path_factory):
    pytest.importorskip('websocket', reason='websocket-client is not here; it comes with jupyterlab')
    browser = Browser(tmp_path_factory.mktemp('chromium'))
    yield browser
    browser.close()


START = '!!(window.jupyterapp && window.jupyterapp.restored)'
OPEN = '''(async () => {
    const app = window.jupyterapp;
    await app.restored;
    const widget = window.opened = await app.commands.execute('docmanager:open', {path: PATH});
    await widget.context.ready;
    await widget.sessionContext.ready;
    app.shell.activateById(widget.id);
    return widget.content.widgets.length;
})()'''
RUN_ALL = "window.jupyterapp.commands.execute('notebook:run-all-cells').then(() => true)"
CLEAR = "window.jupyterapp.commands.execute('notebook:clear-all-cell-outputs').then(() => true)"
OUTPUTS = '''JSON.stringify(window.opened.content.widgets
    .filter(cell => cell.model.type === 'code').map(cell => cell.model.sharedModel.outputs))'''


@pytest.mark.parametrize('page', PAGES)
def test_all_cells_run_in_jupyterlab(page, lab, browser):
    browser.ask('Emulation.setFocusEmulationEnabled', enabled=True) # without a window nothing has the focus
    browser.ask('Page.navigate', url=f'{lab}/lab?reset')
    def jupyterlab():
        "JupyterLab in the browser"
        return browser.run(START)
    wait_for(jupyterlab)
    assert browser.run(OPEN.replace('PATH', json.dumps(f'{page}.ipynb'))) > 3
    browser.run(CLEAR)
    browser.run(RUN_ALL)
    cells = json.loads(browser.run(OUTPUTS))
    shown = [o for outputs in cells for o in outputs]
    kinds = [o['output_type'] for o in shown]
    errors = [f"{o['ename']}: {o['evalue']}" for o in shown if o['output_type'] == 'error']
    assert not errors
    assert {'display_data', 'execute_result'} & set(kinds), 'no cell showed anything'
    keep = os.environ.get('FEDCL_SCREENSHOTS') # a folder for pictures of what the browser shows
    if keep:
        import base64
        picture = browser.ask('Page.captureScreenshot')['data']
        (Path(keep)/f"lab-{page.replace('/', '-')}.png").write_bytes(base64.b64decode(picture))
