"""Results of other code are told, and nothing that is finished, begun or committed is lost by the way."""
import json
import os
import sys

import pytest

from fedcl_repro.cli import main
from fedcl_repro.federation.method import METHODS
from fedcl_repro.runs import record as measures
from fedcl_repro.runs import code_digest as sources
from fedcl_repro.runs import workers
from fedcl_repro.evidence.experiments import committed_path, committed_runs, save_results
from fedcl_repro.runs.processes import Interrupted
from fedcl_repro.runs.run import Run, run_id
from fedcl_repro.runs.store import Store
from fedcl_repro.runs.train import train
from fedcl_repro.runs.workers import train_all

SMALL = dict(n_clients=2, n_rounds=2, batch_size=64, model='cnn(k=8)', scarcity='all_clients(share=0.05)',
             partition='dirichlet(concentration=1.0, test_share=0.05)')
OWN = '''
from dataclasses import replace
from fedcl_repro.federation.method import METHODS, NET, Method, Sweep, ce
FACTOR = 1.
def scaled(net, client, batch):
    "A loss."
    loss, notes = ce(net, client, batch)
    return FACTOR * loss, notes
@METHODS.add('own_scaled', title='Own', family='averaging', owner='shared')
def own_scaled(): return Method(local=(Sweep(scaled, NET),))
'''

MODULE = 'fedcl_repro.own_scaled_module' # as if of this package: an own file is part of its run's name


@pytest.fixture
def own_method(tmp_path, monkeypatch):
    "Makes the method as a new process would, with its text as part of the package's code."
    def write(text):
        monkeypatch.setattr(sources, 'package_code', lambda: sources.code_hash(text))
        workers.SAID_ONCE.clear()
        sys.modules.pop(MODULE, None)
        METHODS.pop('own_scaled', None)
        exec(text, fresh())
    yield write
    METHODS.pop('own_scaled', None)
    sys.modules.pop(MODULE, None)


def fresh():
    "The names of a new module, which is known by its name."
    import types
    module = types.ModuleType(MODULE)
    sys.modules[MODULE] = module
    return vars(module)


def trained(store, **options):
    "What becomes of the run, and its rows."
    run = Run.of('own_scaled', **SMALL)
    outcomes = train_all([run], store, jobs=1, quiet=True, **options)
    return [o.word for o in outcomes], (store.folder(run_id(run))/'rows.csv').read_bytes()


def test_a_changed_method_is_told_and_trained_anew_on_request(own_method, tmp_path, capsys):
    own_method(OWN)
    store = Store(tmp_path/'runs')
    first, rows = trained(store)
    assert first == ['done'] and trained(store) == ([], rows) and not capsys.readouterr().err
    own_method(OWN.replace('"A loss."', '"Another sentence."') + '\n# a remark\n')
    assert trained(store) == ([], rows) and not capsys.readouterr().err, 'words change no result'
    own_method(OWN.replace('FACTOR = 1.', 'FACTOR = 3.'))
    assert trained(store) == ([], rows)
    said = capsys.readouterr().err
    assert 'trained by other code' in said and '--retrain' in said
    assert trained(store) == ([], rows) and not capsys.readouterr().err, 'it is said once'
    again, other = trained(store, retrain=True)
    assert again == ['done'] and other != rows
    assert trained(store, retrain=True) == ([], other), 'it is trained anew once'
    assert not capsys.readouterr().err and not list(store.root.glob('.new-*'))


def test_a_run_begun_by_other_code_says_so(own_method, tmp_path, capsys):
    own_method(OWN)
    store, run = Store(tmp_path/'runs'), Run.of('own_scaled', **SMALL)
    def stop(done):
        if done == 2: raise KeyError
    with pytest.raises(KeyError): train(run, store, every=0., progress=stop)
    own_method(OWN.replace('FACTOR = 1.', 'FACTOR = 3.'))
    train(run, store)
    assert 'the code changed after round 1' in capsys.readouterr().err
    _, about = store.read(run_id(run))
    assert ', then ' in about['sources']
    assert workers.lacking([run], store, None) == [] and '--retrain' in capsys.readouterr().err
    assert trained(store, retrain=True)[0] == ['done']


def test_rows_without_a_digest_are_told_once(own_method, tmp_path, capsys):
    own_method(OWN)
    store = Store(tmp_path/'runs')
    trained(store)
    path = next(store.root.glob('*/run.json'))
    about = json.loads(path.read_text())
    assert len(about['sources']) == 12
    del about['sources']
    path.write_text(json.dumps(about))
    (path.parent/'SHA256SUMS').unlink() # as of a run from before files had digests
    for _ in range(3): trained(store)
    assert capsys.readouterr().err.count('trained before digests were kept') == 1


def test_git_is_asked_about_the_package_alone(tmp_path, monkeypatch):
    "A repository around a virtual environment says nothing about the package in it."
    import subprocess
    subprocess.run(['git', 'init', '-q', str(tmp_path)], check=True)
    inside = tmp_path/'venv'/'fedcl_repro'
    inside.mkdir(parents=True)
    (inside/'__init__.py').touch()
    monkeypatch.setattr(measures.fedcl_repro, '__file__', str(inside/'__init__.py'))
    measures.state_of_sources.cache_clear()
    try: assert measures.state_of_sources() == dict(commit=None, dirty=False)
    finally: measures.state_of_sources.cache_clear()


@pytest.fixture
def quick_runs(monkeypatch, tmp_path):
    "An experiment whose runs are tiny, and a folder where its rows are committed."
    monkeypatch.setenv('FEDCL_PAPERS', str(tmp_path/'papers'))
    (tmp_path/'papers').mkdir()
    from fedcl_repro.evidence import experiments as e
    runs = [Run.of('fedavg', **SMALL, seed=s) for s in range(3)]
    monkeypatch.setattr(e, 'table_runs', lambda name, profile: [e.TableRun(run) for run in runs])
    return runs


def test_what_is_committed_stays(quick_runs, tmp_path):
    "A store that lacks committed runs replaces only what it has."
    path = committed_path('fedcosr/fig8', 'quick')
    one, two = Store(tmp_path/'one'), Store(tmp_path/'two')
    for run in quick_runs[:2]: train(run, one)
    save_results('fedcosr/fig8', 'quick', one)
    before = path.read_text()
    train(quick_runs[2], two)
    save_results('fedcosr/fig8', 'quick', two, notes={'': 'of another machine'})
    assert set(before.splitlines()) < set(path.read_text().splitlines())
    assert list(committed_runs('fedcosr/fig8', 'quick')) == [run_id(r) for r in quick_runs]
    after = path.read_text()
    save_results('fedcosr/fig8', 'quick', one)
    assert path.read_text() == after, 'saved again, nothing changes'
    records = json.loads(path.with_suffix('.json').read_text())
    assert [r['note'] for r in records] == ['', '', 'of another machine']
    assert all('sources' in r for r in records)


def test_an_interrupted_reproduce_leaves_a_report(monkeypatch, tmp_path, capsys):
    from fedcl_repro.runs import processes
    from fedcl_repro.commands import train
    def interrupted(*args):
        os.kill(os.getpid(), 15)
        raise Interrupted(15)
    monkeypatch.setattr(train, 'train_as_asked', interrupted)
    folders = ['--store', str(tmp_path/'runs'), '--out', str(tmp_path/'out')]
    assert main(['reproduce', 'fedcosr/fig8', '--seeds', '1', *folders]) == 143
    html = (tmp_path/'out'/'index.html').read_text()
    assert 'fedcosr/fig8' in html and 'not executed' in html and 'interrupted before it was executed' in html
    assert 'the same command continues' in capsys.readouterr().err
    assert not processes.noted() or processes.signal.getsignal(15) == processes.signal.SIG_DFL


def test_a_report_says_what_data_it_lacks(tmp_path, monkeypatch):
    from argparse import Namespace
    from fedcl_repro.commands.train import missing_data
    page = dict(name='fedcosr/table2')
    assert missing_data(page, Namespace(profile='quick', data_root='')) == ''
    assert 'is not there' in missing_data(page, Namespace(profile='lite', data_root=str(tmp_path)))
