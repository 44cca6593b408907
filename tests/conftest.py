"""What several tests share: a store of quick runs, trained once while the other tests run."""
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
os.environ.setdefault('FEDCL_OFFLINE', '1') # no test downloads anything
torch.set_num_threads(1)


def pytest_collection_finish(session):
    "Begin with everything in quick, one seed, on all cores, if some test will ask for it."
    asked = any('report' in getattr(item, 'fixturenames', ()) for item in session.items)
    if session.config.option.collectonly or not asked: return
    session.made = Path(tempfile.mkdtemp(prefix='reproduce'))
    command = [sys.executable, '-m', 'fedcl_repro.cli', 'reproduce', '--all', '--seeds', '1']
    folders = ['--store', session.made/'runs', '--out', session.made/'report']
    with open(session.made/'said.txt', 'w') as said:
        session.making = subprocess.Popen([*command, *folders], cwd=ROOT, stdout=said, stderr=said)


def pytest_sessionfinish(session):
    "Leave no process and no files behind."
    if not hasattr(session, 'making'): return
    session.making.terminate()
    session.making.wait()
    shutil.rmtree(session.made, ignore_errors=True)


@pytest.fixture(scope='session')
def report(request):
    "What came of it: (exit code, folder with `runs`, `report` and what was said)."
    return request.session.making.wait(), request.session.made
