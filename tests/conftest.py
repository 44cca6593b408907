"""What several tests share: all pages, run once while the other tests run, and reports of the command."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from base import reproduced
from fresh import Fresh

ROOT = Path(__file__).parents[1]
os.environ.setdefault('FEDCL_OFFLINE', '1') # no test downloads anything
torch.set_num_threads(1)


def asks_for_pages(item): return 'attempts' in getattr(item, 'fixturenames', ())


def pytest_collection_modifyitems(items): items.sort(key=asks_for_pages) # they run beside the others


def pytest_collection_finish(session):
    "Begin, beside the tests, with the pages that are asked for: they take long, and let the tests go first."
    pages = [item.callspec.params['path'] for item in session.items if asks_for_pages(item)]
    if session.config.option.collectonly or not pages: return
    session.made = Path(tempfile.mkdtemp(prefix='pages'))
    command = sys.executable, ROOT/'tests'/'tools'/'run_pages.py', session.made, *pages
    said = open(session.made/'said.txt', 'w')
    session.pages = subprocess.Popen(list(map(str, command)), cwd=ROOT, stdout=said, stderr=said)


def pytest_sessionfinish(session):
    "Leave no process and no files behind."
    if not hasattr(session, 'pages'): return
    session.pages.terminate()
    session.pages.wait()
    shutil.rmtree(session.made, ignore_errors=True)


@pytest.fixture(scope='session')
def attempts(request):
    "What stopped each page, '' if nothing did."
    session = request.session
    assert session.pages.wait() == 0, (session.made/'said.txt').read_text()
    return json.loads((session.made/'pages.json').read_text(encoding='utf-8'))


@pytest.fixture(scope='session')
def report(tmp_path_factory):
    "Of three small experiments: (exit code, folder with `runs` and `report`, what was said)."
    names = 'fedcosr/precision', 'fedssc/table1', 'mapl/fig4'
    return reproduced(tmp_path_factory.mktemp('report'), *names)


@pytest.fixture(scope='session')
def everything(tmp_path_factory):
    "The same of all experiments."
    return reproduced(tmp_path_factory.mktemp('everything'), '--all')


@pytest.fixture(scope='session')
def fresh():
    "Runs code in fresh processes that share one import of torch (see `fresh.py`)."
    kept = Fresh()
    yield kept
    kept.close()
