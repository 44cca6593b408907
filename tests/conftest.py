"""What several tests share: quick runs and concept pages, made once while the other tests run."""
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from base import environment, required
from fresh import Fresh

ROOT = Path(__file__).parents[1]
os.environ.setdefault('FEDCL_OFFLINE', '1') # no test downloads anything
torch.set_num_threads(1)


def asked_for(session, fixture):
    "The selected tests that use a fixture."
    return [item for item in session.items if fixture in getattr(item, 'fixturenames', ())]


def half_the_cores():
    "The others are for the tests: with more processes than cores, all take longer."
    if not hasattr(os, 'sched_setaffinity'): return
    own = sorted(os.sched_getaffinity(0))
    os.sched_setaffinity(0, own[len(own)//2:])


def beside(session, *command, **how):
    "Start a command that goes on while tests run; what it says is in a file."
    said = open(session.made/f'said{len(session.beside)}.txt', 'w')
    started = subprocess.Popen(list(map(str, command)), cwd=ROOT, stdout=said, stderr=said, **how)
    session.beside.append(started)
    return started


def turn(item):
    "Tests that wait for what is made beside them come late; those that let it go first come after it."
    uses = getattr(item, 'fixturenames', ())
    if 'attempts' in uses: return 3 # concept pages let all else go first
    if item.get_closest_marker('yields'): return 2
    return int('report' in uses or item.get_closest_marker('late') is not None)


def pytest_collection_modifyitems(items): items.sort(key=turn)


def pytest_collection_finish(session):
    """Begin, beside the tests, with what takes long: everything in quick with one seed, in an environment
    that has the base requirements and nothing else, and concept pages."""
    if session.config.option.collectonly: return
    session.made, session.beside = Path(tempfile.mkdtemp(prefix='beside')), []
    if asked_for(session, 'report'):
        what = 'reproduce', '--all', '--seeds', '1'
        folders = '--store', session.made/'runs', '--out', session.made/'report'
        python, _ = environment(session.made/'base', required())
        command = python, '-m', 'fedcl_repro.cli', *what, *folders
        alone = {k: v for k, v in os.environ.items() if not k.startswith('PYTHON')}
        session.making = beside(session, *command, env=alone, preexec_fn=half_the_cores)
    pages = [item.callspec.params['path'] for item in asked_for(session, 'attempts')]
    if pages:
        command = sys.executable, ROOT/'tests'/'concept_pages.py', session.made/'pages.json', *pages
        session.pages = beside(session, *command)


def pytest_sessionfinish(session):
    "Leave no process and no files behind."
    for started in getattr(session, 'beside', ()):
        started.terminate()
        started.wait()
    shutil.rmtree(getattr(session, 'made', ''), ignore_errors=True)


def said_by(session, started):
    "What a command beside the tests wrote."
    return (session.made/f'said{session.beside.index(started)}.txt').read_text()


@pytest.fixture(scope='session')
def report(request):
    "What came of it: (exit code, folder with `runs` and `report`, what was said)."
    session = request.session
    return session.making.wait(), session.made, said_by(session, session.making)


@pytest.fixture(scope='session')
def attempts(request):
    "What stopped each concept page, '' if nothing did."
    session = request.session
    code = session.pages.wait()
    assert code == 0, said_by(session, session.pages)
    return json.loads((session.made/'pages.json').read_text(encoding='utf-8'))


@pytest.fixture(scope='session')
def fresh():
    "Runs code in fresh processes that share one import of torch (see `fresh.py`)."
    kept = Fresh()
    yield kept
    kept.close()
