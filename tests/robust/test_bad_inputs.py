"""Wrong input is refused by name and before any work, or is rightly accepted: runs, partitions, sweeps,
commands and results; and what a session meets."""
import io
import json
import math
import os
import pickle
import pwd
import shlex
import subprocess
import sys

import numpy as np
import pandas as pd
import pytest
import torch
import torch.nn as nn
from given import DIGITS, SMALL, X, Y, each, refusal

from fedcl_repro import cli, simulate
from fedcl_repro.commands import train as train_verbs
from fedcl_repro.core import OneOf, Range, parse_spec
from fedcl_repro.data.datasets import DATASETS
from fedcl_repro.data.partition import Shards, partition
from fedcl_repro.evidence.experiments import (
    PAGE_OPTIONS, computed_folder, kept_verdicts, papers_folder, read_option)
from fedcl_repro.federation.method import METHODS
from fedcl_repro.runs import simulate as simulation
from fedcl_repro.runs import workers
from fedcl_repro.runs.models import accuracy_of, adapt, load_model
from fedcl_repro.runs.run import REGISTERS, Run, load_registers, run_id, without_effect
from fedcl_repro.runs.session import precision_switches, run_precision
from fedcl_repro.runs.store import Store
from fedcl_repro.runs.sweep import sweep
from fedcl_repro.user_code import use_files

load_registers()
for tool in ('papermill', 'torchvision'): pytest.importorskip(tool)
NOTEBOOKS = papers_folder().resolve().parent


@pytest.fixture
def trains(): "This test may train."


@pytest.fixture(autouse=True)
def no_work(request, monkeypatch):
    "Nothing may be trained, and no page executed."
    if 'trains' in request.fixturenames: return
    def work(*args, **kwargs): raise AssertionError('work began')
    for name in ('train', 'train_in_processes'): monkeypatch.setattr(workers, name, work)
    monkeypatch.setattr(simulation, 'train', work)
    monkeypatch.setattr(train_verbs, 'execute_pages', work)


# --- runs, as the library makes them

REFUSED_RUNS = [
    ('fedavgg', {}, "did you mean 'fedavg'?"),
    ('', {}, 'cannot read'),
    *[(name, {}, 'a method is named by a text') for name in (None, 3)],
    ('fedavg(', {}, 'cannot read'),
    ('fedcosr(0.5)', {}, 'write name or name(setting=value'),
    ('fedcosr(gama=1)', {}, "no setting 'gama'"),
    ('fedcosr(gamma=1, gamma=2)', {}, 'gives gamma twice'),
    ('fedcosr(**x)', {}, 'write each setting as name=value'),
    ('fedcosr(' * 300, {}, 'cannot read'),
    ('fedcosr\0', {}, 'cannot read'),
    ('fedcosr(temp=0.0)', {}, 'temp must be above 0'),
    ('fedcosr(temp="warm")', {}, 'must be like 0.1'),
    ('fedcosr(gamma=-0.1)', {}, 'gamma must be at least 0'),
    ('fedcosr(aggregate=1)', {}, 'must be like True (bool)'),
    ('fedproto(test="far")', {}, "must be 'nearest' or 'head' or 'own'"),
    ('pfedsim(warm=2.)', {}, 'warm must lie in [0, 1]'),
    ('mapl', {}, 'mapl compares views of an image'),
    ('mapl', dict(augmentation='mapl'), 'needs a network with'),
    *[('fedavg', {name: 3}, f'no setting {name!r}') for name in ('rounds', 'executor')],
    ('fedavg', dict(n_rounds=0), 'n_rounds must be at least 1'),
    *[('fedavg', dict(n_rounds=n), 'n_rounds must be like 30 (int)') for n in (2.5, '5', True, None)],
    *[('fedavg', {name: 0}, f'{name} must be at least 1')
      for name in ('n_clients', 'batch_size', 'local_epochs', 'eval_every')],
    *[('fedavg', dict(participation=share), 'participation must lie in (0, 1]') for share in (0., math.nan)],
    ('fedavg', dict(client_drop=1.), 'client_drop must lie in [0, 1)'),
    *[('fedavg', dict(seed=seed), 'seed must lie in [0, 4294967295]') for seed in (-1, 2**40)],
    ('fedavg', dict(seed=.5), 'seed must be like 0 (int)'),
    ('fedavg', dict(partition_seed=-1), 'partition_seed must lie in'),
    ('fedavg', dict(beginning='random'), "beginning must be 'common' or 'own'"),
    ('fedavg', dict(buffers='mean'), "buffers must be 'average' or 'local' or 'reset'"),
    ('fedavg', dict(dtype='float16'), "dtype must be 'float32' or 'float64' or 'bfloat16'"),
    ('fedavg', dict(tf32=1), 'tf32 must be like False (bool)'),
    ('fedavg', dict(data='cifar'), "unknown dataset 'cifar'"),
    ('fedavg', dict(data=''), 'cannot read'),
    ('fedavg', dict(data='digits(side=4)'), 'side must lie in [8, 256]'),
    ('fedavg', dict(data=np.zeros(3)), 'a dataset is named by a text'),
    ('fedavg', dict(model='cnnn'), "did you mean 'cnn'?"),
    ('fedavg', dict(model='cnn(dropout=1.0)'), 'dropout must lie in [0, 1)'),
    ('fedavg', dict(model='mixed(of="cnn + nothing")'), "unknown model 'nothing'"),
    ('fedavg', dict(model='mixed(of="")'), 'cannot read'),
    ('fedavg', dict(optimiser='adamw'), "did you mean 'adam'?"),
    ('fedavg', dict(optimiser='sgd(lr="fast")'), 'must be like 0.05'),
    ('fedavg', dict(scarcity='some'), "unknown scarcity 'some'"),
    ('fedavg', dict(scarcity='all_clients(share=0.)'), 'share must lie in (0, 1]'),
    ('fedavg', dict(metrics='auc'), 'metrics must be like ()'),
    ('fedavg', dict(metrics=('auc', 'auc')), 'metrics name auc twice'),
    ('fedavg', dict(metrics=(3,)), 'a metric is named by a text'),
    ('fedavg', dict(shift='rotation(step=1e999)'), 'step must be'),
    ('fedcosr(gamma=__import__("os"))', {}, 'gamma must be like 0.8 (float)'),
]


@each('method, settings, says', REFUSED_RUNS)
def test_a_run_is_refused(method, settings, says):
    with refusal(says): Run.of(method, **settings)


ACCEPTED_RUNS = [
    (dict(n_rounds=np.int64(5)), dict(n_rounds=5)),
    (dict(n_clients=np.int32(5), seed=np.uint8(3)), dict(n_clients=5, seed=3)),
    (dict(participation=np.float64(.5)), dict(participation=.5)),
    (dict(participation=1), dict(participation=1.)),
    (dict(tf32=np.bool_(True)), dict(tf32=True)),
    (dict(optimiser=' adam(lr=0.01) '), dict(optimiser='adam(lr=0.01)')),
    (dict(data='digits( side=16 )'), dict()),
    (dict(model='resnet18_cifar(proj=[64, 32])'), dict(model='resnet18_cifar(proj=(64, 32))')),
    (dict(optimiser='adam(lr=0.0)'), dict(optimiser='adam(lr=0.)')),
]


@each('given, same', ACCEPTED_RUNS)
def test_a_run_is_accepted(given, same):
    assert Run.of('fedavg', **given) == Run.of('fedavg', **same)
    json.dumps(str(Run.of('fedavg', **given)))
    assert run_id(Run.of('fedavg', **given)) == run_id(Run.of('fedavg', **same))


def test_infinity_where_it_means_something():
    assert dict(Run.of('fedcosr', n_rounds=1).method.settings)['gamma'] == .8
    assert REGISTERS['method'].resolve(parse_spec('fedcosr')(gamma=math.inf))


def outside(allowed):
    "A value that a range leaves out."
    if isinstance(allowed, OneOf): return 'none of these'
    low, high = allowed.limits
    return low - 1 if math.isfinite(low) else high + 1


def beyond(allowed, default):
    "A value that a range leaves out, of the type of the default."
    if isinstance(default, int) and not isinstance(allowed, Range): return 1000 # none of a few numbers
    wrong = outside(allowed)
    return type(default)(wrong) if isinstance(allowed, Range) and default is not None else wrong


@pytest.mark.parametrize('kind', REGISTERS)
def test_every_range_is_kept(kind):
    "Whatever a register knows, a value outside the range of a setting is refused with its name."
    asked = 0
    for name, entry in REGISTERS[kind].items():
        for setting, allowed in entry.ranges.items():
            default = entry.settings[setting]
            assert default is None or default in allowed, f'the default of {name} {setting}'
            wrong = parse_spec(name)(**{setting: beyond(allowed, default)})
            with refusal(f'{setting} {allowed.rule()}'): Run.of(**dict(method='fedavg') | {kind: wrong})
            asked += 1
    assert asked


# --- partitions

REFUSED_PARTITIONS = [
    ('dirichlet', 0, 'at least one client, got 0'),
    ('dirichlet', -3, 'at least one client'),
    ('dirichlet', 2000, 'ask for at most 1352'),
    ('dirichlet(minimum=1000)', 20, '20 clients cannot have 1000 images each'),
    ('moon_dirichlet', 140, '140 clients cannot have 10 images each of 1352'),
    ('dirichlet(concentration=0.003)', 20, 'no partition in'),
    ('pathological(classes=11)', 20, 'cannot hold 11 of 10 classes'),
    ('random_pathological(classes=1)', 5, 'cannot hold all 10 classes'),
    ('pathological', 1000, 'are too few for'),
    ('mapl_clusters(stride=400)', 10, 'use fewer or smaller windows'),
    ('mapl_clusters(n_clusters=30)', 10, 'do not make 30 clusters'),
    ('mapl_clusters(scenario=3, least_shots=400)', 4, '0 < least_shots < shots'),
    ('dirichlet', 2.5, 'n_clients must be like 1 (int)'),
    ('dirichlet', '3', 'n_clients must be like 1 (int)'),
    ('dirichlet', True, 'n_clients must be like 1 (int)'),
]


@each('spec, n_clients, says', REFUSED_PARTITIONS)
def test_a_partition_is_refused(spec, n_clients, says):
    with refusal(says): partition(DIGITS, spec, n_clients, 0)


@each('settings, says', [
    (dict(partition='pathological(classes=11)'), 'cannot hold 11 of 10 classes'),
    (dict(partition='dirichlet(test_share=0.0)'), 'no client has test images'),
    (dict(n_clients=5000), 'ask for at most 1352'),
    (dict(data='digits(side=8)'), 'images of 8x8 are too small'),
    (dict(scarcity='last_clients(clients=30)'), 'the last 30 of 20 clients'),
])
def test_an_impossible_run_is_refused_before_any_other(settings, says, tmp_path, monkeypatch, capsys):
    def all_done(runs, *rest): return [workers.Outcome(r, 'done') for r in runs]
    wrong, right = Run.of('fedavg', **settings), Run.of('fedavg')
    with pytest.raises(ValueError, match='.'): workers.train_all([wrong], Store(tmp_path), quiet=True)
    monkeypatch.setattr(workers, 'train_lacking', all_done)
    outcomes = workers.train_all([right, wrong], Store(tmp_path), quiet=True)
    assert [o.word for o in outcomes] == ['done', 'failed'] and says in outcomes[1].why
    assert says in capsys.readouterr().err


# --- code of one's own, a file of runs, finished runs

def fails(*given): return 1 / 0
def no_reader(shape, n): return nn.Sequential(nn.Flatten(), nn.Linear(7, 3)), nn.Linear(3, n)
def rows_beyond(dataset, n, rng): return Shards([[10**9]] * n, [[1]] * n)
def rows_of_both(dataset, n, rng): return Shards([range(5)] * n, [range(5)] * n)


ABOUT = dict(
    method=dict(title='mine', family='averaging', owner='shared'),
    model=dict(reads='anything'),
    partition=dict(title='mine'),
)
FAULTY = { # name -> (register, what a user adds to it, what is said)
    'a number as method': ('method', lambda: 3, 'a method is a Method'),
    'no network': ('model', lambda shape, n: None, 'a network has the parts body, head'),
    'a model that fails': ('model', fails, "the model 'mine_here' fails in test_bad_inputs.py, line"),
    'a model of other inputs': ('model', no_reader, 'does not read inputs of shape (1, 16, 16)'),
    'a model of other classes': ('model', lambda shape, n: (nn.Flatten(), nn.Linear(256, 3)), '(4, 10)'),
    'rows that are not there': ('partition', rows_beyond,
                                'rows of client 0 must be whole numbers from 0 to 1796'),
    'training rows as tests': ('partition', rows_of_both,
                               'client 0 is tested on 5 of the rows it trains on'),
    'too few clients': ('partition', lambda dataset, n, rng: Shards([[1]], [[2]]),
                        'the partition has 1 clients to train and 1 to test, and the run 20'),
    'no partition': ('partition', lambda dataset, n, rng: None,
                     "the partition 'mine_here' must return a Shards, got NoneType"),
}


@each('kind, make, says', FAULTY)
def test_own_code_is_refused(kind, make, says, registers_as_before, tmp_path, capsys):
    def mine(*given): return make(*given)
    mine.__module__ = '__main__'
    REGISTERS[kind].add('mine_here', **ABOUT[kind])(mine)
    words = dict(method='fedavg') | {kind: 'mine_here'}
    argv = [word for name, value in words.items() for word in (f'--{name}', value)]
    assert cli.main(['run', *argv, '--store', str(tmp_path/'runs')]) == 2
    assert says in capsys.readouterr().err.strip().splitlines()[-1]


OWN_METHOD = """
from fedcl_repro.federation.method import METHODS
@METHODS.add('mine_here', title='mine', family='averaging', owner='shared')
def mine(): return {}['nothing']
"""


@each('text, says', [
    ('import sys; sys.exit(0)', 'SystemExit: 0'),
    ('def (', 'SyntaxError'),
    ('1 / 0', 'ZeroDivisionError'),
    ('import nowhere_at_all', 'ModuleNotFoundError'),
    (OWN_METHOD, "the method 'mine_here' fails in used.py, line 4: KeyError: 'nothing'"),
])
def test_a_file_that_cannot_be_used(text, says, registers_as_before, monkeypatch, tmp_path, capsys):
    monkeypatch.setenv('FEDCL_USE', '')
    (tmp_path/'used.py').write_text(text)
    method = 'mine_here' if text == OWN_METHOD else 'fedavg'
    assert cli.main(['run', '--method', method, '--use', str(tmp_path/'used.py')]) == 2
    assert says in capsys.readouterr().err


STUDIES = [
    ('', 'names no runs'),
    ('runs = [1]', 'runs has another form'),
    ('common = 3\n[[runs]]\nmethod = "fedavg"', 'common has another form'),
    ('[[run]]\nmethod = "fedavg"', 'unknown run'),
    ('[[runs]]', 'no method is named'),
    ('[[runs]]\nmethod = 3', 'a method is named by a text'),
    ('[[runs]]\nmethod = "fedavg"\nrounds = 3', "no setting 'rounds'"),
    ('[[runs]]\nmethod = "fedavg"\nseed = []', 'seed is an empty list'),
    ('[[runs]]\nmethod = "fedavg"\ndata = {a = 1}', "dataset 'digits' has no setting 'a'"),
    ('[[runs]]\nmethod = "fedavg"\ndata = {}', 'cannot read'),
    ('[[runs]]\nmethod = {name = "fedavg"}', 'no method is named'),
    ('[[runs]]\nmethod = "fedavg"\noptimiser.lr = {a = 1}', 'lr must be'),
    ('[[runs]]\nmethod = "fedavg"\noptimiser.rate = 1', "no setting 'rate'"),
    ('[[runs]]\nmethod = "fedavg"\nmetrics = ["no"]', "unknown metric 'no'"),
    ('[[runs]]\nmethod = "fedavg"\nn_rounds = 1979-05-27', 'n_rounds must be like 30 (int)'),
    ('[[runs]]\nmethod = "fedavg"\npartition = "dirichlet(minimum=5000)"', 'cannot have 5000 images each'),
]


@each('text, says', STUDIES)
def test_a_study_is_refused(text, says, tmp_path, capsys):
    (tmp_path/'study.toml').write_text(text)
    assert cli.main(['run', str(tmp_path/'study.toml'), '--store', str(tmp_path/'runs')]) == 2
    assert says in capsys.readouterr().err.strip().splitlines()[-1]


@pytest.mark.parametrize('text', ['null', '[]', '{', '{"config": {}}', '{"config": null}',
                                  '{"config": {"method": 3}}'])
def test_what_cannot_be_shown_is_no_run(text, tmp_path, capsys):
    (tmp_path/'abcdef').mkdir()
    (tmp_path/'abcdef'/'run.json').write_text(text)
    for what in ([], ['abcdef']): assert cli.main(['show', *what, '--store', str(tmp_path)]) == 2
    assert '0 finished runs' in capsys.readouterr().err


def test_a_few_samples_are_enough_for_a_kept_model():
    "Their labels are those of the model's classes, however few there are; others are refused."
    model, x = nn.Sequential(nn.Flatten(), nn.Linear(64, 10)), np.zeros((3, 8, 8))
    assert 0 <= accuracy_of(adapt(model, x, [7, 8, 9], steps=1), x, [7, 8, 9]) <= 1
    for y, says in (([7, 8, 10], 'labels of 10 classes are 0 to 9'), ([7, 8], '3 images but 2 labels')):
        with refusal(says): adapt(model, x, y)
    with refusal('does not read inputs of shape'): adapt(model, x[:, 1:], [7, 8, 9])
    for name, wrong in (('steps', -1), ('steps', 1.5), ('lr', 0.), ('lr', 'fast'), ('batch_size', 0)):
        with refusal(f'{name} must be'): adapt(model, x, [7, 8, 9], **{name: wrong})


def test_what_a_simulation_does_not_have(tmp_path):
    rows = pd.DataFrame(dict(moment=['merged'], split=['test']))
    found = simulation.Simulation(Run.of('fedavg'), Store(tmp_path), rows)
    for wrong in (dict(moment='before'), dict(split='valid')):
        with refusal('must be one of'): found.curve(**wrong)
    with refusal('made with Run.of'): load_model(None, store=tmp_path)
    with refusal("begin with 'fedavg'"): load_model('fedavg', store=tmp_path) # an id


# --- the facade, a sweep and `train_all`

PICTURES, CLASSES = np.arange(40 * 64).reshape(40, 8, 8) % 256 / 255, np.arange(40) % 4
DEALT = dict(n_clients=2, partition='dirichlet(minimum=1)')


SIMULATIONS = {
    'a setting of others': (dict(rounds=3), "no setting 'rounds'"),
    'several seeds': (dict(seed=[0, 1]), 'seed must be like 0 (int)'),
    'a whole share': (dict(validation=1.), 'validation must lie in [0, 1)'),
    'an unknown device': (dict(device='gpu'), "must be 'cpu' or 'cuda'"),
    'no device': (dict(device=None), "must be 'cpu' or 'cuda', got None"),
    'a store that is none': (dict(DEALT, store='/dev/null'), 'cannot write to the folder'),
    'a number as store': (dict(DEALT, store=3), 'a path is a text, got 3'),
    'a number as data folder': (dict(data_root=3), 'a path is a text, got 3'),
    'a number as model': (dict(model=3), 'a model is a name, a module'),
    'a layer as model': (dict(model=nn.Linear(64, 4)), 'got Linear without body, head'),
    'a model that fails': (dict(DEALT, model=fails), "fails in test_bad_inputs.py, line"),
    'a model of three': (dict(DEALT, model=lambda a, b, c: None), 'missing 1 required positional argument'),
    'a number as method': (dict(method=3), 'a method is a name such as'),
    'a method that fails': (dict(method=fails), "the method 'fails' fails in test_bad_inputs.py, line"),
    'a method of nothing': (dict(method=lambda: None), 'returns a Method, got NoneType'),
}


@each('given, says', SIMULATIONS)
def test_a_simulation_is_refused(given, says):
    with refusal(says): simulate(**dict(method='fedavg', data=PICTURES, labels=CLASSES) | given)


SWEEPS = {
    'no method': (dict(names=[]), 'at least one method'),
    'a value alone': (dict(grid={'optimiser.lr': .1}), 'write [0.1]'),
    'a word alone': (dict(grid={'beginning': 'own'}), "write ['own']"),
    'no seeds': (dict(seeds=0), 'seeds must be at least 1'),
    'a negative budget': (dict(budget=-1), 'budget must be at least 0'),
    'a share above 1': (dict(validation=2), 'validation must lie in [0, 1)'),
}


@each('given, says', SWEEPS)
def test_a_sweep_is_refused(given, says, tmp_path):
    given = dict(names=['fedavg'], grid={'optimiser.lr': [.1, .2]}, store=Store(tmp_path)) | given
    with refusal(says): sweep(**given)


TRAININGS = [
    (['fedavg'], {}, "made with Run.of('fedavg', ...), got 'fedavg'"),
    ('fedavg', {}, 'made with Run.of'),
    ([None], {}, 'got None'),
    *[([], {name: -1}, f'{name} must be at least 0') for name in ('jobs', 'minutes', 'checkpoint')],
    ([], dict(minutes=math.nan), 'minutes must be at least 0'),
    ([], dict(device='gpu'), "must be 'cpu' or 'cuda'"),
]


@each('runs, options, says', TRAININGS)
def test_a_training_is_refused(runs, options, says, tmp_path):
    with refusal(says): workers.train_all(runs, tmp_path, **options)


@pytest.mark.parametrize('name', ['two words', '', 'a(b)', 3, None, 'a,b', 'a=b'])
def test_a_name_that_could_not_be_asked_for(name):
    with refusal('is called by a word'):
        METHODS.add(name, title='x', family='averaging', owner='shared')


# --- the command

def one_by_one(table):
    "Each command with what is said."
    cases = [(command, says) for says, commands in table.items() for command in commands]
    return each('command, says', cases)


COMMANDS = { # what is said -> commands
    "did you mean 'fedavg'?": ['run --method fedavgg', 'list methods fedavgg', 'flower app --method fedavgg'],
    'method is empty': ['run --method ""'],
    'data is empty': ['run --method fedavg --data ""'],
    'partition is empty': ['run --method fedavg --partition ""'],
    "unknown dataset 'cifar'": ['run --method fedavg --data cifar'],
    'several as words of their own': ['run --method fedavg --metrics auc,balanced_accuracy'],
    'the method is what --method names': ['run --method fedavg --set method=moon'],
    'write --set name=value': ['run --method fedavg --set n_rounds'],
    'n_rounds is empty': ['run --method fedavg --set n_rounds='],
    "a run has no setting ''": ['run --method fedavg --set =3'],
    "no setting 'rounds'": ['run --method fedavg --set rounds=3'],
    'n_rounds is given twice': ['run --method fedavg --set n_rounds=3 --set n_rounds=4',
        'run --method fedavg --set n-rounds=3 --set n_rounds=4'],
    'data is given twice': ['run --method fedavg --data digits --set data=digits'],
    'n_rounds must be at least 1': ['run --method fedavg --set n_rounds=0',
        'sweep --method fedavg --grid n_rounds=0'],
    'n_rounds must be like 30 (int)': ['run --method fedavg --set n_rounds=many'],
    'cannot have 5000 images each': ["run --method fedavg --partition 'dirichlet(minimum=5000)'"],
    'too small for two 5x5 stages': ["run --method fedavg --data 'digits(side=8)'"],
    "must be 'cpu' or 'cuda'": ['run --method fedavg --device gpu'],
    'Ray is not installed': ['run --method fedavg --ray local', 'run --method fedavg --executor ray'],
    'leave it out with --ray': ['run --method fedavg --ray local --log csv:curves'],
    'add --ray ADDRESS': ['run --method fedavg --run-cpus 2'],
    'name another one with --store': ['run --method fedavg --store /dev/null',
        'run --method fedavg --store /proc/nowhere'],
    'no home folder is known': ["run --method fedavg --store '~nobody_of_this_name/runs'",
        "run --method fedavg --data-root '~nobody_of_this_name/data'",
        "reproduce fedcosr/fig4 --out '~nobody_of_this_name/a'"],
    'SVHN is not there': ['run --method fedavg --data svhn --data-root /dev/null'],
    '--save only for experiments': ['run --method fedavg --save'],
    '--profile only for experiments': ['run --method fedavg --profile lite'],
    '--data changes a single run': ['run fedcosr/fig8 --data ""'],
    '--set changes a single run': ['run fedcosr/fig8 --set seed=1'],
    "did you mean 'fedcosr/fig8": ['run fedcosr/fig88'],
    "unknown paper 'fedcsor'": ['run fedcsor'],
    'nothing to train': ['run fedcosr/fig4', 'run fedcosr/fig4 --dry'],
    'add --save': ['run fedcosr/fig8 --note x'],
    'leave --all out': ['run a.toml --all'],
    'a.toml says what is trained: leave other names out': ['run a.toml fedcosr'],
    'leave --profile out': ['run a.toml --profile lite'],
    'names of experiments only for experiments': ['run --method fedavg a.toml'],
    "unknown executor 'lop' (did you mean 'loop'?)": ['run --method fedavg --executor lop'],
    '`fedcl compare fedavg moon` trains and compares several': ['run --method fedavg --method moon'],
    'seed cannot be set': ['compare fedavg moon --set seed=1'],
    'FedAvg is named twice': ['compare fedavg fedavg'],
    'a comparison needs two methods, got 1': ['compare fedavg'],
    'its name must end in one of .svg, .png, .pdf': ['compare fedavg moon --out curves.txt',
        'show fedcosr/fig4 --out curves.txt'],
    'name another one with --out': ['reproduce fedcosr/fig4 --out /dev/null'],
    "did you mean 'fedcosr/table2'?": ['reproduce fedcosr/tabel2'],
    'name another one with --log': ['run --method fedavg --log csv:/dev/null'],
    "unknown metric 'no'": ['run --method fedavg --metrics no'],
    'validation must lie in [0, 1)': ['run --method fedavg --validation 1'],
    'no such file': ['run --method fedavg --use none.py', 'run --method fedavg --use .',
        'run --method fedavg --use /dev/zero'],
    'is a folder: name a file with --figure': ['show fedcosr/fig4 --figure .'],
    'name another one with --figure': ['show fedcosr/fig4 --figure /proc/none/a.png'],
    'name a new folder': ['docs --notebooks /dev/null'],
    'is no folder: name a new folder': ['flower /dev/null --method fedavg'],
    'name another one with --clients': ['flower app --method fedavg --clients /dev/null'],
    "has a setting 'lr'": ['sweep --method fedavg --grid lr=1'],
    'write NAME=VALUE,VALUE': ['sweep --method fedavg --grid optimiser.lr'],
    'lr must be at least 0': ['sweep --method fedavg --grid optimiser.lr=-1'],
    'cannot read the study': ['run none.toml'],
    'holds a character of number 0': ["run --method fedavg --store 'a\x00b'",
        "run --method fedavg --log 'csv:a\x00b'", "run 'a\x00b.toml'"],
    'is no folder: name one with --data-root': ['list datasets --data-root /dev/null'],
    "unknown metric 'auk' (did you mean 'auc'?)": ['run --method fedavg --set metrics=auk'],
    'metrics name auc twice': ['run --method fedavg --metrics auc auc'],
    "has no column 'client'": ['run --method fedavg --partition by_column'],
    'cannot read': ['run --method fedavg --set data=3'],
    "'fedcosr' is a paper: name one of its artifacts, fedcosr/table2": ['show fedcosr'],
    'unknown experiment': ['show ../x'],
    'lies among the notebooks themselves': [f'docs --notebooks {NOTEBOOKS}/copy'],
    'lies in the app, which all nodes': ['flower app --method fedavg --clients app/data'],
    'gives optimiser.lr the value 0.1 twice': ['sweep --method fedavg --grid optimiser.lr=0.1,0.1'],
    "gives optimiser.lr the value '' twice": ['sweep --method fedavg --grid optimiser.lr=,'],
    'lr must be like 0.003 (float)': ['sweep --method fedavg --grid optimiser.lr=nan'],
    'seed cannot be in the grid': ['sweep --method fedavg --grid seed=1,2'],
    'validation cannot be in the grid': ['sweep --method fedavg --grid validation=0.1,0.2'],
    "has a setting 'method'": ['sweep --method fedavg --grid method=moon'],
    "has no setting ''": ['sweep --method fedavg --grid optimiser.=1'],
    'say with `seeds` how many': ['sweep --method fedavg --grid n_rounds=2 --set seed=3'],
    'n_rounds is in the grid and given for all trials': [
        'sweep --method fedavg --grid n_rounds=2 --set n_rounds=3'],
    'a method is named twice': ['sweep --method fedavg --grid n_rounds=2 --method fedavg'],
    'validation must be above 0': ['sweep --method fedavg --grid n_rounds=2 --validation 0'],
    'use budget=1': ['sweep --method fedavg --grid n_rounds=2 --budget 9'],
}


@one_by_one(COMMANDS)
def test_the_command_refuses(command, says, tmp_path, monkeypatch, capsys):
    "One line, exit code 2, and no file."
    monkeypatch.setenv('FEDCL_STORE', str(tmp_path/'runs'))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, 'ray', None) # absent
    assert cli.main(shlex.split(command)) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert says in said[-1] and said[-1].startswith('fedcl: ')
    assert not [p for p in tmp_path.rglob('*') if p.is_file() and p.suffix != '.lock']


def test_flower_writes_an_app_and_the_data_of_its_clients(tmp_path):
    app, clients = tmp_path/'app', tmp_path/'clients'
    run = '--method', 'fedcosr', '--set', 'n_clients=3'
    assert cli.main(['flower', str(app), *run, '--clients', str(clients)]) == 0
    assert (app/'pyproject.toml').exists() and len(list(clients.iterdir())) == 3


OPTIONS = {
    'must be a whole number, at least 0': ['run --seeds -1'],
    'must be a number, at least 0.0': ['run --minutes nan', 'run --minutes -1', 'run --checkpoint -1'],
    'must be a whole number': ['run --jobs 1.5'],
    'must be a number': ['run --checkpoint often', 'run --method fedavg --state-memory nan'],
    'invalid choice': ['run --profile tiny', 'list method'],
    'requires an argument': ['run --method'],
    "Missing argument 'LIST'": ['list --json'],
    'No such command': ['train'],
    '--method is given twice': ['flower app --method fedavg --method moon'],
    '--data is given twice': ['run --method fedavg --data digits --data mnist'],
    '--store is given twice': ['run --method fedavg --store a --store b'],
    'must be a number, from 0.0 to 1.0': ['run --method fedavg --validation some'],
    '--device is empty': ['run --method fedavg --device ""'],
    '--store is empty': ['run --method fedavg --store ""'],
    '--data-root is empty': ['run --method fedavg --data-root ""'],
    '--ray is empty': ['run --method fedavg --ray ""'],
    '--out is empty': ['reproduce --out ""', 'docs --out ""'],
    '--figure is empty': ['show --figure ""'],
    '--notebooks is empty': ['docs --notebooks ""'],
    'folder is empty': ['flower "" --method fedavg'],
    'at least 1': ['sweep --method fedavg --grid n_rounds=1 --seeds 0'],
    'at least 0': ['node app data --client -1'],
}


@one_by_one(OPTIONS)
def test_an_option_is_refused(command, says, capsys):
    with pytest.raises(SystemExit, match='2'): cli.main(shlex.split(command))
    assert says in capsys.readouterr().err


def test_a_pipe_that_nobody_fills_is_not_read(tmp_path, capsys):
    os.mkfifo(tmp_path/'pipe.toml')
    assert cli.main(['run', str(tmp_path/'pipe.toml')]) == 2
    assert 'it is no plain file' in capsys.readouterr().err


@pytest.mark.parametrize('text', ['', 'null', '{}', '{"state": 3}'])
def test_damaged_verdicts_are_computed_anew(text, tmp_path, monkeypatch):
    monkeypatch.setenv('XDG_CACHE_HOME', str(tmp_path))
    computed_folder().mkdir()
    (computed_folder()/'a-b-lite.json').write_text(text)
    assert kept_verdicts('a/b', 'lite', list) == ()
    monkeypatch.setenv('XDG_CACHE_HOME', '/proc/nowhere') # nothing can be kept there
    assert kept_verdicts('a/b', 'lite', list) == ()


def test_a_user_without_a_home(monkeypatch, capsys):
    "A container's user id that no file knows."
    def nobody(who): raise KeyError(who)
    for name in ('HOME', 'FEDCL_DATA'): monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(pwd, 'getpwuid', nobody)
    assert cli.main(['list', 'datasets']) == 2
    assert 'no home folder is known here' in capsys.readouterr().err


# --- what a session meets, and what it leaves

def test_a_sweep_takes_a_path(tmp_path, trains):
    found = sweep(['fedavg'], {'optimiser.lr': [.01]}, store=str(tmp_path/'runs'), n_rounds=1, n_clients=2,
                  options=dict(jobs=1, quiet=True))
    assert found.trials[0] == 1 and found.attrs['failed'] == 0


SCRIPT = '''
from fedcl_repro.federation.method import METHODS, Method
from fedcl_repro.runs.run import Run
from fedcl_repro.runs.workers import train_all
@METHODS.add('mine_here', title='Mine', family='averaging', owner='shared')
def mine(): return Method()
runs = [Run.of('mine_here', n_rounds=1, n_clients=2, seed=s) for s in (0, 1)]
print([o.word for o in train_all(runs, {store!r}, jobs=2, quiet=True)])
'''


@pytest.mark.parametrize('how', ['a file', 'standard input'])
def test_a_script_needs_no_guard(how, tmp_path):
    text = SCRIPT.format(store=str(tmp_path/'runs'))
    (tmp_path/'script.py').write_text(text)
    argv = [sys.executable, *([tmp_path/'script.py'] if how == 'a file' else ['-'])]
    out = subprocess.run(argv, input=text, capture_output=True, text=True, timeout=280)
    assert out.stdout.strip() == "['done', 'done']", out.stderr[-600:]


@pytest.mark.parametrize('method, settings, names', [
    ('fedcosr(contrast_weight=1e38)', {}, 'contrast_weight=1e+38'),
    ('fedavg', dict(optimiser='sgd(lr=1e30)'), 'lower the learning rate'),
])
def test_an_extreme_setting_is_named(method, settings, names, trains):
    with refusal(names, FloatingPointError): simulate(method, X, Y, **dict(SMALL, n_rounds=3) | settings)


def test_a_kept_run_of_arrays_says_how_to_load_it(tmp_path, trains, registers_as_before):
    result = simulate('fedavg', X, Y, store=tmp_path, **SMALL)
    DATASETS.pop(result.run.data.name)
    with refusal('give simulate the same again'): result.model(0)


@pytest.mark.parametrize('ask', [lambda r: r.model(0), lambda r: r.predictions()],
                         ids=['model', 'predictions'])
def test_a_result_of_another_process_has_its_models_or_says_how_to_keep_them(
        ask, tmp_path, monkeypatch, trains):
    lost, stored = (simulate('fedavg', X, Y, store=store, **SMALL) for store in ('', tmp_path))
    lost, stored = map(pickle.loads, map(pickle.dumps, (lost, stored)))
    monkeypatch.setattr(os, 'getpid', lambda: -1)
    assert ask(stored)
    with pytest.raises(ValueError, match="another process.*store='runs'"): ask(lost)


def test_a_sweep_with_a_failed_trial_exits_1(tmp_path, capsys, trains):
    argv = ['sweep', '--method', 'fedavg', '--grid', 'optimiser=adam,sgd(lr=1e30)', '--set', 'n_rounds=2',
            '--set', 'n_clients=2', '--store', str(tmp_path), '--jobs', '1']
    assert cli.main(argv) == 1 and 'failed' in capsys.readouterr().err


WITHOUT_EFFECT = [
    (dict(metrics=('top_k',), n=3), 'top_k is 1 for every model, with 3 classes'),
    (dict(metrics=('top_k(k=3)',), n=3), 'top_k(k=3) is 1'),
    (dict(optimiser='sgd(cosine_over=2)', n_rounds=6), 'the learning rate is 0 in the last 4 of 6 rounds'),
    (dict(optimiser='clipped_sgd(cosine_over=2)', n_rounds=3), 'the learning rate is 0 in the last 1 of 3'),
    (dict(method='mapl', n_rounds=100), 'warmup=100: what begins after it is not reached'),
    (dict(method='mapl(warmup=7)', n_rounds=7), 'warmup=7: what begins after it is not reached'),
    (dict(method='fedssc(warm=2.0)'), 'warm=2: the weight does not reach its end'),
    (dict(eval_every=9, n_rounds=6), 'only the last of 6 rounds is tested'),
    (dict(patience=5, validation=.1, n_rounds=9, eval_every=2), 'patience=5: the run cannot end early'),
    (dict(patience=4, validation=.1, n_rounds=9, eval_every=2), ''),
    (dict(eval_clients=30, n_clients=4), 'there are 4 clients, and all of them are tested'),
    (dict(participation=.05, n_clients=5), 'is less than one: one takes part'),
    (dict(metrics=('top_k(k=2)', 'auc'), n=3), ''),
    (dict(optimiser='sgd(cosine_over=6)', n_rounds=6), ''),
    (dict(method='mapl(warmup=7)', n_rounds=8), ''),
    (dict(method='mapl(warmup=7, graph=False)', n_rounds=7), ''),
    (dict(eval_every=6, n_rounds=6, eval_clients=4, n_clients=4, participation=.2), ''),
]


@each('given, says', WITHOUT_EFFECT)
def test_a_setting_without_effect_is_told(given, says):
    given = dict(method='fedavg', n=10) | given
    method, n = given.pop('method'), given.pop('n')
    if method.startswith('mapl'): given |= dict(augmentation='mapl', model='cnn_proj')
    said = without_effect(Run.of(method, **given), n)
    assert len(said) == bool(says) and says in ' '.join(said)


@pytest.mark.parametrize('before', ['highest', 'high', 'medium'])
def test_the_precision_of_a_session_is_put_back(before):
    was = torch.get_float32_matmul_precision()
    try:
        torch.set_float32_matmul_precision(before)
        name, places, (_, fast) = precision_switches()
        def values(): return [getattr(p, name) for p in places]
        kept = values()
        with run_precision(Run.of('fedavg', tf32=True), 'cpu'): assert values() == [fast] * len(places)
        assert values() == kept
        assert torch.get_float32_matmul_precision() == before
    finally: torch.set_float32_matmul_precision(was)


@pytest.mark.parametrize('option, value, read', [
    ('train', 'false', False), ('train', 'True', True), ('seeds', '1', 1), ('minutes', '2', 2),
    ('jobs', 3, 3), ('device', 'cpu', 'cpu'), ('train', 'no', None), ('seeds', 'one', None),
    ('jobs', '1.5', None), ('train', 1, None)])
def test_options_of_a_page_are_read_by_their_kind(option, value, read):
    default = PAGE_OPTIONS[option]
    if read is not None: assert read_option(option, value, default) == read
    else:
        with refusal('must be like'): read_option(option, value, default)


def test_a_file_with_a_separator_in_its_name_is_refused(tmp_path):
    (tmp_path/'a:b.py').write_text('')
    with refusal('separates files in FEDCL_USE'): use_files([tmp_path/'a:b.py'])


def test_an_ascii_terminal_loses_no_listing(monkeypatch):
    terminal = io.TextIOWrapper(io.BytesIO(), encoding='ascii')
    monkeypatch.setattr(sys, 'stdout', terminal)
    assert cli.main(['list', 'methods']) == 0
    terminal.flush()
    assert b'fedavg' in terminal.buffer.getvalue()
