"""Runs over a Ray cluster end in the rows of runs at home, also when a machine or a worker dies; clients as
actors end in the bits of the loop. Skipped where Ray is not installed; nightly, as a cluster takes its time."""
import contextlib
import math
import os
import threading
import time
from pathlib import Path

import pytest
from test_methods import METHODS, assert_equal, final, made, uneven

ray = pytest.importorskip('ray', reason="Ray is an extra: pip install -e '.[ray]'")
pytestmark = pytest.mark.nightly

from fedcl_repro.cli import main
from fedcl_repro.federation.actors import RayActors, Resident, connect_ray
from fedcl_repro.federation.federation import toy
from fedcl_repro.federation.loop import Loop
from fedcl_repro.federation.rounds import State, begin, rounds
from fedcl_repro.scale.ray import MOST_DEATHS, train_on_ray
from fedcl_repro.study.runs import Run, run_id
from fedcl_repro.study.store import Store, locked
from fedcl_repro.study.training import from_checkpoint, to_checkpoint, train_all

TESTS = Path(__file__).parent


@contextlib.contextmanager
def two_machines():
    "Two nodes on this machine, with room for one run each."
    from ray.cluster_utils import Cluster
    node = dict(num_cpus=1, object_store_memory=10**8)
    nodes = Cluster(initialize_head=True, head_node_args=node | dict(include_dashboard=False))
    nodes.second = nodes.add_node(**node)
    nodes.wait_for_nodes()
    connect_ray(nodes.address)
    yield nodes
    ray.shutdown()
    nodes.shutdown()


@pytest.fixture(scope='module')
def cluster():
    before = os.environ.get('PYTHONPATH')
    os.environ['PYTHONPATH'] = os.pathsep.join([str(TESTS), str(TESTS.parent)]) # of the workers
    with two_machines() as nodes: yield nodes
    if before is None: del os.environ['PYTHONPATH']
    else: os.environ['PYTHONPATH'] = before


@pytest.fixture
def seats(cluster):
    "Makes two actors for a federation, instead of those before."
    made_of = []
    def make(fed):
        for old in made_of: old.close()
        made_of[:] = [RayActors(fed, n_seats=2)]
        return made_of[0]
    yield make
    for old in made_of: old.close()


@pytest.mark.parametrize('name', METHODS)
def test_clients_as_actors(seats, name):
    "All fields of clients and server, and bytes of messages; a client's fields stay with an actor."
    at_home, execute = final(name, uneven(name)), seats(uneven(name))
    far = final(name, uneven(name), execute)
    assert far.clients.changed and all(isinstance(c, Resident) for c in far.clients.changed.values())
    assert len({c.seat for c in far.clients.changed.values()}) == 2
    assert_equal(at_home, far)
    assert (at_home.up, at_home.down) == (far.up, far.down)


@pytest.mark.parametrize('name', ['fedcosr', 'mfcl'])
def test_a_checkpoint_of_actors_goes_on(seats, name):
    "From a checkpoint under other actors, and in the loop; tables that were sent before are sent again."
    fed, stages = uneven(name), made(name, 3)
    states = rounds(seats(fed), stages)
    first = next(states)
    checkpoint = to_checkpoint(first, [], 0., 'ray')
    state, *_ = from_checkpoint(checkpoint, 'cpu', begin(fed))
    assert isinstance(state, State) and state.round == 1
    expected = final(name, uneven(name))
    assert_equal(expected, final(name, fed, seats(fed), state=state))
    assert_equal(expected, final(name, fed, state=state))


def test_an_actor_is_killed(cluster, seats):
    "Its process ends between two rounds: it is started again, and its clients' fields are still there."
    fed, stages = toy((20, 33, 16, 0, 11), participation=.8, p=.3), made('fedcosr', 3)
    *_, at_home = rounds(Loop(fed), stages)
    execute = seats(fed)
    states = rounds(execute, stages)
    next(states)
    for seat in execute.seats: ray.kill(seat, no_restart=False)
    *_, far = states
    assert_equal(at_home, far)


def short(seed, n_rounds=3, **settings):
    return Run.of('fedavg', n_clients=4, n_rounds=n_rounds, seed=seed, **settings)


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


def test_a_worker_is_killed(cluster, tmp_path, capsys):
    "It is told, and the run goes on from its last checkpoint, not from its beginning."
    import signal
    killed = []
    def kill(run, done):
        if done < 10 or killed: return
        killed.append(done)
        for pid in pids_of_workers(): os.kill(pid, signal.SIGKILL)
    told, store, run = Told(kill), Store(tmp_path/'far'), short(0, 60)
    (outcome,) = train_on_ray([run], store, 0, OPTIONS, told, address=cluster.address)
    assert outcome.word == 'done' and killed
    assert 'tried again from the last checkpoint' in capsys.readouterr().err
    after = [done for _, done in told.items[told.items.index((run, killed[0])) + 1:]]
    assert min(after) > 1 # of the second worker too
    ends_as_at_home([run], store, tmp_path)


def test_what_always_dies_fails(cluster, tmp_path, capsys):
    "A run whose workers die again and again, without a checkpoint between, is given up."
    import signal
    def kill(run, done):
        for pid in pids_of_workers(): os.kill(pid, signal.SIGKILL)
    store, options = Store(tmp_path), OPTIONS | dict(every=1e9)
    (outcome,) = train_on_ray([short(0, 500)], store, 0, options, Told(kill), address=cluster.address)
    assert outcome.word == 'failed' and f'died {MOST_DEATHS} times in a row' in outcome.why
    assert capsys.readouterr().err.count('tried again') == MOST_DEATHS - 1


def test_what_another_process_trains_is_left_to_it(cluster, tmp_path):
    run, store = short(0), Store(tmp_path)
    with locked(store, run_id(run)):
        (outcome,) = train_on_ray([run], store, 0, OPTIONS, Told(), address=cluster.address)
    assert outcome.word == 'busy'


def test_a_deadline_leaves_a_checkpoint(cluster, tmp_path):
    runs, store = [short(seed, 500) for seed in (0, 1, 2)], Store(tmp_path/'far')
    options = OPTIONS | dict(every=1e9, deadline=time.monotonic() + 6)
    found = train_on_ray(runs, store, 2, options, Told(), address=cluster.address)
    assert [o.word for o in found] == ['out of time'] * 3
    assert 1 <= len(list(store.root.glob('*.ckpt'))) <= 2


def test_the_command(cluster, tmp_path, monkeypatch, capsys):
    "A method of one's own file, trained on a cluster by the command."
    own = tmp_path/'own_method.py'
    own.write_text('from fedcl_repro.federation.method import METHODS, Method\n'
                   "@METHODS.add('own_far', title='own', family='fedavg', owner='shared')\n"
                   'def own_far():\n    "Nothing new."\n    return Method()\n')
    common = ['--store', str(tmp_path/'far'), '--ray', cluster.address, '--set', 'n_rounds=2', '--set', 'n_clients=3']
    assert main(['run', '--use', str(own), '--method', 'own_far', *common]) == 0
    assert main(['run', '--method', 'fedcosr', '--executor', 'ray', *common]) == 0
    assert len(list((tmp_path/'far').glob('*/run.json'))) == 2
    assert main(['run', '--method', 'fedavg', '--run-gpus', '1', *common]) == 2
    assert 'no machine of the cluster has them' in capsys.readouterr().err


def test_a_machine_dies(tmp_path, capsys):
    "Two runs on two nodes, one of which is killed in the middle: the same rows, each run once."
    ray.shutdown()
    runs, found, store = [short(0, 60), short(1, 60)], [], Store(tmp_path/'far')
    told = Told()
    with two_machines() as nodes:
        def work(): found.extend(train_on_ray(runs, store, 0, OPTIONS, told, address=nodes.address))
        thread = threading.Thread(target=work)
        thread.start()
        while len({run for run, done in told.items if done > 3}) < 2: time.sleep(.05)
        assert max(done for _, done in told.items) < 60, 'too fast to be killed in the middle'
        nodes.remove_node(nodes.second, allow_graceful=False)
        thread.join()
    assert [o.word for o in found] == ['done', 'done']
    assert capsys.readouterr().err.count('tried again from the last checkpoint') == 1
    ends_as_at_home(runs, store, tmp_path)
