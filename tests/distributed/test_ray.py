"""Runs over a Ray cluster end in the rows of runs at home, also when a machine or a worker dies; clients as
actors end in the bits of the loop. Skipped where Ray is not installed; nightly, as clusters start slowly."""
import contextlib
import math
import os
import signal
import threading
import time
from pathlib import Path

import pytest
from test_actors import assert_at_actors
from federations import METHODS, assert_equal, final, made, uneven

ray = pytest.importorskip('ray', reason="Ray is an extra: pip install -e '.[ray]'")
pytestmark = pytest.mark.nightly

from fedcl_repro.cli import main
from fedcl_repro.federation.actors import RAY_SETTINGS, RayActors, connect_ray
from fedcl_repro.federation.loop import Loop
from fedcl_repro.federation.rounds import begin, rounds
from fedcl_repro.distributed.ray import MOST_DEATHS, train_on_ray
from fedcl_repro.runs import processes
from fedcl_repro.runs.run import Run, run_id
from fedcl_repro.runs.store import Store, locked
from fedcl_repro.runs.session import from_checkpoint, to_checkpoint
from fedcl_repro.runs.workers import train_all

TESTS = Path(__file__).parents[1]
os.environ.update(RAY_SETTINGS)


@contextlib.contextmanager
def paths_of_workers():
    "Workers import what the tests import."
    with pytest.MonkeyPatch.context() as patch:
        folders = TESTS/'tools', TESTS/'distributed', TESTS.parent
        patch.setenv('PYTHONPATH', os.pathsep.join(map(str, folders)))
        yield


@pytest.fixture(scope='module')
def cluster():
    "Two cores of this machine."
    with paths_of_workers():
        ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=2 * 10**8)
        yield
        ray.shutdown()


SMALL = dict(n_clients=2, batch_size=64, eval_every=4, model='cnn(k=8)',
             scarcity='all_clients(share=0.05)', partition='dirichlet(concentration=1.0, test_share=0.05)')


def short(seed, n_rounds=3): return Run.of('fedper', n_rounds=n_rounds, seed=seed, **SMALL)


def rows_of(store, run): return (store.folder(run_id(run))/'rows.csv').read_bytes()


OPTIONS = dict(device='cpu', data_root=None, executor='auto', deadline=math.inf, every=0.)


class Told:
    "Progress as a list of (run, rounds done); `saw` is called with each."
    def __init__(self, saw=None): self.items, self.saw = [], saw
    def put(self, item):
        self.items.append(item)
        if self.saw: self.saw(*item)


def pids_of_workers():
    "The processes that train runs."
    found = []
    for path in Path('/proc').glob('[0-9]*/cmdline'):
        with contextlib.suppress(OSError):
            if b'ray::train_far' in path.read_bytes(): found.append(int(path.parent.name))
    return found


def ends_as_at_home(runs, store, tmp_path):
    "Each run once, with the rows of a run at home; nothing half done is left."
    here = Store(tmp_path/'here')
    train_all(runs, here, quiet=True, jobs=1)
    for run in runs: assert rows_of(store, run) == rows_of(here, run)
    assert len(list(store.root.glob('*/run.json'))) == len(runs)
    assert not list(store.root.glob('*.ckpt'))


def test_a_machine_dies(tmp_path, capsys):
    """Two runs on two nodes, one of which is killed in the middle: the same rows, each run once.
    Each node has two CPUs and one GPU (in Ray's books, as a resource to be counted): room for one run."""
    from ray.cluster_utils import Cluster
    runs, found, store, told = [short(0, 200), short(1, 200)], [], Store(tmp_path/'far'), Told()
    node = dict(num_cpus=2, num_gpus=1, object_store_memory=10**8)
    with paths_of_workers():
        nodes = Cluster(initialize_head=True, head_node_args=node | dict(include_dashboard=False))
        second = nodes.add_node(**node)
        connect_ray(nodes.address)
        takes = dict(address=nodes.address, cpus=1., gpus=1.)
        def work(): found.extend(train_on_ray(runs, store, 0, OPTIONS, told, **takes))
        thread = threading.Thread(target=work)
        thread.start()
        while thread.is_alive() and len({run for run, done in told.items if done > 3}) < 2: time.sleep(.05)
        assert max(done for _, done in told.items) < 200, 'too fast to be killed in the middle'
        nodes.remove_node(second, allow_graceful=False)
        thread.join()
        ray.shutdown()
        nodes.shutdown()
    assert [o.word for o in found] == ['done', 'done']
    assert capsys.readouterr().err.count('tried again from the last checkpoint') == 1
    ends_as_at_home(runs, store, tmp_path)


def test_a_worker_is_killed(cluster, tmp_path, capsys):
    "It is told, and the run goes on from its last checkpoint, not from its beginning."
    killed = []
    def kill(run, done):
        if done < 10 or killed: return
        killed.append(done)
        for pid in pids_of_workers(): os.kill(pid, signal.SIGKILL)
    told, store, run = Told(kill), Store(tmp_path/'far'), short(0, 100)
    (outcome,) = train_on_ray([run], store, 0, OPTIONS, told)
    assert outcome.word == 'done' and killed
    assert 'tried again from the last checkpoint' in capsys.readouterr().err
    after = [done for _, done in told.items[told.items.index((run, killed[0])) + 1:]]
    assert min(after) > 1 # of the second worker too
    ends_as_at_home([run], store, tmp_path)


def test_what_always_dies_fails(cluster, tmp_path, capsys):
    "A run whose workers die again and again, without a checkpoint between, is given up."
    def kill(run, done):
        for pid in pids_of_workers(): os.kill(pid, signal.SIGKILL)
    store, options = Store(tmp_path), OPTIONS | dict(every=1e9)
    (outcome,) = train_on_ray([short(0, 2000)], store, 0, options, Told(kill))
    assert outcome.word == 'failed' and f'died {MOST_DEATHS} times in a row' in outcome.why
    assert capsys.readouterr().err.count('tried again') == MOST_DEATHS - 1


def test_a_signal_stops_at_a_checkpoint(cluster, tmp_path, monkeypatch):
    "The run that is on its way stops at a checkpoint and goes on later; one that waits does not begin."
    monkeypatch.setattr(processes, 'NOTED', [])
    def interrupt(run, done):
        if done >= 10: processes.NOTED.append(signal.SIGINT)
    runs, store, options = [short(0, 100), short(1, 100)], Store(tmp_path/'far'), OPTIONS | dict(every=1e9)
    found = train_on_ray(runs, store, 1, options, Told(interrupt))
    assert [o.word for o in found] == ['interrupted'] * 2
    (checkpoint,) = store.root.glob('*.ckpt')
    assert checkpoint.stem == run_id(runs[0])
    processes.NOTED.clear()
    told = Told()
    assert [o.word for o in train_on_ray(runs, store, 0, options, told)] == ['done'] * 2
    assert min(done for run, done in told.items if run == runs[0]) >= 10
    ends_as_at_home(runs, store, tmp_path)


def test_what_another_process_trains_is_left_to_it(cluster, tmp_path):
    run, store = short(0), Store(tmp_path)
    with locked(store, run_id(run)):
        (outcome,) = train_on_ray([run], store, 0, OPTIONS, Told())
    assert outcome.word == 'busy'


def test_a_deadline_leaves_a_checkpoint(cluster, tmp_path):
    runs, store = [short(seed, 20000) for seed in (0, 1, 2)], Store(tmp_path/'far')
    options = OPTIONS | dict(every=1e9, deadline=time.monotonic() + 6)
    found = train_on_ray(runs, store, 2, options, Told())
    assert [o.word for o in found] == ['out of time'] * 3
    assert 1 <= len(list(store.root.glob('*.ckpt'))) <= 2


def test_the_command(cluster, tmp_path, monkeypatch, capsys):
    "A method of one's own file, trained on a cluster by the command."
    for name in ('FEDCL_USE', 'FEDCL_RAY'): monkeypatch.setenv(name, '')
    own = tmp_path/'own_method.py'
    own.write_text('from fedcl_repro.federation.method import METHODS, Method\n'
                   "@METHODS.add('own_far', title='own', family='averaging', owner='shared')\n"
                   'def own_far():\n    "Nothing new."\n    return Method()\n')
    common = ['--store', str(tmp_path/'far'), '--ray', 'local', '--set', 'n_rounds=2', '--set', 'n_clients=3']
    assert main(['run', '--use', str(own), '--method', 'own_far', *common]) == 0
    assert main(['run', '--method', 'fedcosr', '--executor', 'ray', *common]) == 0
    assert len(list((tmp_path/'far').glob('*/run.json'))) == 2
    assert main(['run', '--method', 'fedavg', '--run-gpus', '1', *common]) == 2
    assert 'no machine of the cluster has them' in capsys.readouterr().err


def give(seat, fed): seat.__init__(fed)


def pid_of(seat): return os.getpid()


@pytest.fixture(scope='module')
def seats(cluster):
    "Two actors, made once; asked with a federation, they take that one instead of the last."
    kept = RayActors(uneven('fedcosr'), n_seats=2)
    kept.first = kept.there # what an actor begins with when it is started again
    def make(fed):
        kept.fed, kept.tables, kept.local, kept.there = fed, {}, Loop(fed), ray.put(fed)
        ray.get([seat.__ray_call__.remote(give, [kept.there]) for seat in kept.seats])
        return kept
    yield make
    kept.close()


@pytest.mark.parametrize('name', METHODS)
def test_clients_as_actors(seats, name):
    "All fields of clients and server, and bytes of messages; a client's fields stay with an actor."
    at_home, execute = final(name, uneven(name)), seats(uneven(name))
    far = final(name, uneven(name), execute)
    assert_at_actors(at_home, far)


@pytest.mark.parametrize('name', ['fedcosr', 'mfcl'])
def test_a_checkpoint_of_actors_goes_on(seats, name):
    "Under other actors; tables that were sent before are sent again."
    fed, stages = uneven(name), made(name, 4)
    *_, expected = rounds(Loop(fed), stages)
    *_, third, _ = rounds(seats(fed), stages)
    checkpoint = to_checkpoint(third, [], 0., 'ray')
    state, *_ = from_checkpoint(checkpoint, 'cpu', begin(fed))
    assert_equal(expected, final(name, fed, seats(fed), 4, state))


def test_an_actor_is_killed(cluster, seats):
    "Its process ends between two rounds: it is started again, and its clients' fields are still there."
    fed, stages = uneven('fedcosr'), made('fedcosr', 3)
    *_, at_home = rounds(Loop(fed), stages)
    execute = seats(fed)
    states = rounds(execute, stages)
    next(states)
    pids = ray.get([seat.__ray_call__.remote(pid_of) for seat in execute.seats])
    for seat in execute.seats: ray.kill(seat, no_restart=False)
    *_, far = states
    assert_equal(at_home, far)
    assert not set(pids) & set(ray.get([seat.__ray_call__.remote(pid_of) for seat in execute.seats]))
