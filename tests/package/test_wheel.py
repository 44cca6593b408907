"""The wheel, installed into an environment that has what it requires and nothing else, and used in an empty
folder: the pages, the facade, a method of each paper, own method, data, model and package. With what an extra
requires beside it, a command that needs the extra. Nothing is downloaded (`base.py`)."""
import json
import re
import shutil
import subprocess
import zipfile
from email import message_from_bytes
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from base import EXTRAS, bare_variables, environment, is_installed, pip
from packaging.requirements import Requirement

from fedcl_repro.data.datasets import load

ROOT = Path(__file__).parents[2]

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
from fedcl_repro.runs.run import Run
from fedcl_repro.runs.store import Store
from fedcl_repro.runs.workers import train_all

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
    for name, model in dict(fedcosr='cnn', fedssc='cnn', mfcl='mfcl', mapl='alexnet').items(): # of all papers
        settings = f'n_rounds=2 n_clients=3 augmentation=simclr model={model} scarcity=all_clients(share=0.2)'
        command('run', '--method', name, *(word for s in settings.split() for word in ('--set', s)))
    command('docs', '--notebooks', 'notebooks')
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


@pytest.fixture(scope='module')
def wheel(tmp_path_factory):
    top = tmp_path_factory.mktemp('wheel')
    source = copy_of_tree(top/'source')
    pip('wheel', '--no-deps', '--no-build-isolation', '--no-index', '--wheel-dir', top/'dist', source)
    (wheel,) = (top/'dist').glob('*.whl')
    return wheel


def demanded(wheel, extra=''):
    "What the wheel says that it requires, or that it and an extra do."
    with zipfile.ZipFile(wheel) as z:
        (name,) = (n for n in z.namelist() if n.endswith('.dist-info/METADATA'))
        said = message_from_bytes(z.read(name)).get_all('Requires-Dist')
    for r in map(Requirement, said):
        if r.marker is None or r.marker.evaluate(dict(extra=extra)):
            r.marker = None
            yield str(r)


def installed(wheel, top, extra=''):
    "The wheel in an environment of its own, beside an empty folder."
    python, site = environment(top/'venv', demanded(wheel, extra))
    pip('--python', python, 'install', '--no-deps', '--no-index', wheel)
    (top/'empty').mkdir()
    return SimpleNamespace(wheel=wheel, site=site, folder=top/'empty', bin=python.parent)


@pytest.fixture(scope='module')
def base(wheel, tmp_path_factory):
    "With the base requirements only, and with a package of a user's."
    base = installed(wheel, tmp_path_factory.mktemp('base'))
    (base.site/'packaged.py').write_text(PACKAGE)
    about = base.site/'packaged-1.dist-info'
    about.mkdir()
    (about/'METADATA').write_text('Metadata-Version: 2.1\nName: packaged\nVersion: 1\n')
    (about/'entry_points.txt').write_text('[fedcl_repro]\nmethods = packaged\n')
    return base


def call(there, *words, folder=None):
    "Run a command of an environment, in its empty folder."
    env = bare_variables() | dict(FEDCL_OFFLINE='1')
    done = subprocess.run([there.bin/words[0], *words[1:]], cwd=folder or there.folder, env=env,
                          capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_wheel_holds_pages_results_and_figures(base):
    names = zipfile.ZipFile(base.wheel).namelist()
    assert base.wheel.stat().st_size < 16e6 # pictures are vectors or have twice the pixels
    for path in ('papers/fedcosr/table2.ipynb', 'papers/fedcosr/results/table2-lite.csv',
                 'media/mapl-fig4.svg', 'papers/backlog.toml', 'papers/card.toml', 'runs/run.ipynb',
                 'bench/speed.ipynb'):
        assert f'fedcl_repro/nbs/{path}' in names
    assert 'fedcl_repro/py.typed' in names # type checkers read the annotations
    assert not [n for n in names if '__pycache__' in n or '.ipynb_checkpoints' in n]


def test_reproduce_in_an_empty_folder(base):
    said = call(base, 'fedcl', 'reproduce', 'fedcosr/fig4', '--seeds', '1', '--jobs', '1')
    assert 'report: ' in said
    assert (base.folder/'report'/'index.html').stat().st_size > 10_000
    assert sorted(p.name for p in base.folder.iterdir()) == ['report', 'runs']


def test_methods_of_all_papers_and_a_user_s_own(base):
    """The facade, worker processes, a method of each paper, `--use`, `--data`, pages, and a method of another
    package."""
    digits = load('digits')
    (base.folder/'mine.py').write_text(METHOD)
    np.savez(base.folder/'mine.npz', x=digits.x[:300]/255, y=digits.y[:300], client=np.arange(300) % 3)
    (base.folder/'script.py').write_text(SCRIPT)
    said = call(base, 'python', 'script.py')
    assert said.startswith(str(base.site)) # neither the clone nor an editable install
    assert 'which validation chose' in said and 'models.pt' in said
    assert 'packaged ' in said # by its entry point
    assert (base.folder/'notebooks'/'papers'/'fedcosr'/'table2.ipynb').exists()
    configs = [json.loads(p.read_text())['config'] for p in (base.folder/'runs').glob('*/run.json')]
    assert [c['n_clients'] for c in configs if c['method']['name'] == 'mine'] == [3]


# extra: a command of the README or of CONTRIBUTING that needs it
COMMANDS = dict(
    dev='pytest --collect-only -q tests',
    notebooks='jupyter lab nbs',
    docs='fedcl docs --no-open',
    flower='fedcl flower app --method fedcosr --set n_clients=3 --clients clients',
    ray='fedcl run --method fedcosr --set n_rounds=5 --ray local',
    flt='fedcl run --method flt --set n_rounds=2',
    tables='fedcl run --method fedavg --data table.parquet --set n_rounds=1',
    tensorboard='fedcl run --method fedcosr --set n_rounds=2 --log tensorboard:logs',
    wandb='fedcl run --method fedcosr --set n_rounds=2 --log wandb:logs',
    mlflow='fedcl run --method fedcosr --set n_rounds=2 --log mlflow:logs',
)
MARKS = dict(docs=pytest.mark.slow, wandb=pytest.mark.slow, mlflow=pytest.mark.slow,
             flower=pytest.mark.nightly, ray=pytest.mark.nightly)


def test_each_extra_has_a_command(): assert set(COMMANDS) == set(EXTRAS)


def opens_jupyterlab(there, tmp_path):
    "JupyterLab starts, and says where it is."
    command = [there.bin/'python', '-m', 'jupyterlab', '--no-browser', '--allow-root', '--ServerApp.port=0']
    env = bare_variables() | dict(JUPYTER_CONFIG_DIR=str(tmp_path), JUPYTER_DATA_DIR=str(tmp_path))
    started = subprocess.Popen(command, cwd=there.folder, env=env, stderr=subprocess.PIPE, text=True)
    try: return any(re.search(r'http://\S+/lab', line) for line in started.stderr)
    finally:
        started.kill()
        started.communicate()


@pytest.mark.parametrize('extra', [pytest.param(e, marks=MARKS.get(e, ())) for e in COMMANDS])
def test_an_extra_is_enough_for_its_command(extra, wheel, tmp_path):
    if not is_installed(extra): pytest.skip(f"pip install -e '.[{extra}]'")
    there = installed(wheel, tmp_path, extra)
    words = COMMANDS[extra].split()
    if extra == 'tables':
        import pandas as pd
        table = pd.DataFrame(dict(x=range(40), label=[0, 1] * 20, client=[0, 0, 1, 1] * 10))
        table.to_parquet(there.folder/'table.parquet')
    if words[0] == 'jupyter': assert opens_jupyterlab(there, tmp_path)
    elif words[0] == 'pytest': assert 'test_wheel.py' in call(there, 'python', '-m', *words, folder=ROOT)
    else: call(there, *words)
