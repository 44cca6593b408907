"""The wheel, installed into a bare environment and used in an empty folder: the pages, the facade,
own method, data, model and package. Nothing is downloaded: requirements are borrowed from the
environment that runs the tests."""
import json
import os
import shutil
import subprocess
import sys
import sysconfig
import venv
import zipfile
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from fedcl_repro.data.datasets import load

ROOT = Path(__file__).parents[1]

METHOD = '''
import math

import torch.nn as nn
from fedcl_repro.federation.method import METHODS, Method, send, take
from fedcl_repro.parts.models import MODELS

@METHODS.add('mine', title='Mine', family='personal_layers', owner='personal')
def mine():
    "Share the body, keep the head."
    return Method(merge=take('body.'), upload=send('body.'))

@MODELS.add('tiny', reads='anything')
def tiny(shape, n_classes, *, width=16):
    body = nn.Sequential(nn.Flatten(), nn.Linear(math.prod(shape), width), nn.ReLU())
    return body, nn.Linear(width, n_classes)
'''

PACKAGE = METHOD.replace("'mine'", "'packaged'").replace("'tiny'", "'packaged_tiny'")

SCRIPT = '''
import numpy as np
import torch
import torch.nn as nn
import fedcl_repro
from fedcl_repro import simulate
from fedcl_repro.cli import main
from fedcl_repro.federation.method import METHODS, Method, send, take
from fedcl_repro.study.runs import Run
from fedcl_repro.study.store import Store
from fedcl_repro.study.training import train_all

class Network(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Sequential(nn.Flatten(), nn.Linear(64, 16), nn.ReLU()), nn.Linear(16, 2)

@METHODS.add('of_script', title='Of a script', family='personal_layers', owner='personal')
def of_script(): return Method(merge=take('body.'), upload=send('body.'))

def facade():
    rng = np.random.default_rng(0)
    y = rng.integers(0, 2, 200).astype(np.int32)
    x = rng.random((200, 8, 8, 1)) * .5 + y[:, None, None, None] * .5
    mine = Method(merge=take('body.'), upload=send('body.'))
    result = simulate(mine, x, y, clients=np.arange(200) // 50, model=Network(), n_rounds=5, local_epochs=5)
    assert result.curve().micro.iloc[-1] > 90, result
    assert result.model(3)(torch.zeros(1, 1, 8, 8)).shape == (1, 2)
    print(result)

def workers():
    runs = [Run.of('of_script', n_clients=2, n_rounds=1, seed=s) for s in (0, 1)]
    outcomes = train_all(runs, Store('of_script'), jobs=2, quiet=True)
    assert [o.word for o in outcomes] == ['done', 'done'], outcomes

def command(*words):
    print('$', *words)
    assert main(list(words)) == 0

if __name__ == '__main__':
    print(fedcl_repro.__file__)
    facade()
    workers()
    command('pages', 'notebooks')
    own = '--use mine.py --method mine --data mine.npz --model tiny(width=8) --set n_rounds=2'.split()
    command('run', *own, '--keep-models', '--validation', '.1', '--jobs', '1')
    command('show', 'mine')
    command('list', 'methods')
    saving = 'run fedcosr/fig8 --save --minutes .0001 --jobs 1'.split()
    assert main(saving) == 2 # the package is not written to
'''


def copy_of_tree(to):
    "What a wheel is made of, without build folders."
    to.mkdir()
    for name in ('setup.py', 'settings.ini', 'pyproject.toml', 'MANIFEST.in', 'README.md', 'LICENSE'):
        shutil.copy(ROOT/name, to)
    for name in ('fedcl_repro', 'nbs'):
        left_out = shutil.ignore_patterns('__pycache__', '.ipynb_checkpoints')
        shutil.copytree(ROOT/name, to/name, ignore=left_out)
    return to


def bare_environment():
    "What this process has set, without what would show a clone to another Python."
    return {k: v for k, v in os.environ.items() if not k.startswith(('PYTHON', 'FEDCL_'))}


def pip(*words):
    command = [sys.executable, '-m', 'pip', '--quiet', *words]
    subprocess.run(command, check=True, env=bare_environment())


@pytest.fixture(scope='module')
def bare(tmp_path_factory):
    "A wheel in an environment of its own, beside an empty folder."
    top = tmp_path_factory.mktemp('wheel')
    source = copy_of_tree(top/'source')
    pip('wheel', '--no-deps', '--no-build-isolation', '--no-index', '--wheel-dir', top/'dist', source)
    (wheel,) = (top/'dist').glob('*.whl')
    venv.create(top/'venv', symlinks=True)
    pip('--python', top/'venv', 'install', '--no-deps', '--no-index', wheel)
    site = Path(sysconfig.get_path('purelib', vars=dict(base=top/'venv', platbase=top/'venv')))
    (site/'borrowed.pth').write_text(sysconfig.get_path('purelib')) # the requirements, not this package
    (site/'packaged.py').write_text(PACKAGE)
    (site/'packaged-1.dist-info').mkdir()
    (site/'packaged-1.dist-info'/'METADATA').write_text('Metadata-Version: 2.1\nName: packaged\nVersion: 1\n')
    (site/'packaged-1.dist-info'/'entry_points.txt').write_text('[fedcl_repro]\nmethods = packaged\n')
    (top/'empty').mkdir()
    return SimpleNamespace(wheel=wheel, site=site, folder=top/'empty', bin=top/'venv'/'bin')


def call(bare, *words):
    "Run a command of the bare environment in the empty folder."
    env = bare_environment() | dict(FEDCL_OFFLINE='1')
    done = subprocess.run([bare.bin/words[0], *words[1:]], cwd=bare.folder, env=env, capture_output=True,
                          text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_wheel_holds_pages_results_and_figures(bare):
    names = zipfile.ZipFile(bare.wheel).namelist()
    assert bare.wheel.stat().st_size < 11e6
    for path in ('papers/fedcosr/table2.ipynb', 'papers/fedcosr/results/table2-lite.csv',
                 'media/mapl-fig4.svg', 'papers/backlog.toml', 'study/runs.ipynb',
                 'bench/speed.ipynb'):
        assert f'fedcl_repro/nbs/{path}' in names
    assert not [n for n in names if '__pycache__' in n or '.ipynb_checkpoints' in n]


def test_reproduce_in_an_empty_folder(bare):
    said = call(bare, 'fedcl', 'reproduce', 'fedcosr/fig4', '--seeds', '1', '--jobs', '1')
    assert 'report: ' in said
    assert (bare.folder/'report'/'index.html').stat().st_size > 10_000
    assert sorted(p.name for p in bare.folder.iterdir()) == ['report', 'runs']


def test_own_method_data_model_and_package(bare):
    "The facade, worker processes, `--use`, `--data`, pages, and a method of another package."
    digits = load('digits')
    (bare.folder/'mine.py').write_text(METHOD)
    np.savez(bare.folder/'mine.npz', x=digits.x[:300]/255, y=digits.y[:300], client=np.arange(300) % 3)
    (bare.folder/'script.py').write_text(SCRIPT)
    said = call(bare, 'python', 'script.py')
    assert said.startswith(str(bare.site)) # neither the clone nor an editable install
    assert 'which validation chose' in said and 'models.pt' in said
    assert 'packaged ' in said # by its entry point
    assert (bare.folder/'notebooks'/'papers'/'fedcosr'/'table2.ipynb').exists()
    configs = [json.loads(p.read_text())['config'] for p in (bare.folder/'runs').glob('*/run.json')]
    assert [c['n_clients'] for c in configs if c['method']['name'] == 'mine'] == [3]
