"""Runs over a Ray cluster end in the rows of runs at home, also when a node dies; clients as actors end
in the bits of the loop. Skipped where Ray is not installed; marked slow, as a cluster takes its time."""
import math
import os
import threading
import time
from pathlib import Path

import pytest
from test_methods import assert_equal

ray = pytest.importorskip('ray', reason="Ray is an extra: pip install -e '.[ray]'")
pytestmark = pytest.mark.slow

from fedcl_repro.federation.executors import EXECUTORS
from fedcl_repro.federation.federation import toy
from fedcl_repro.federation.loop import Loop
from fedcl_repro.federation.method import METHODS, stages_of
from fedcl_repro.federation.rounds import rounds
from fedcl_repro.scale.ray import connect_ray, train_on_ray
from fedcl_repro.study.runs import Run, run_id
from fedcl_repro.study.store import Store
from fedcl_repro.study.training import train_all

TESTS = Path(__file__).parent


@pytest.fixture(scope='module')
def cluster():
    "Two nodes on this machine, with room for one run each."
    from ray.cluster_utils import Cluster
    os.environ['PYTHONPATH'] = os.pathsep.join([str(TESTS), str(TESTS.parent)]) # of the workers
    node = dict(num_cpus=1, object_store_memory=10**8)
    nodes = Cluster(initialize_head=True, head_node_args=node | dict(include_dashboard=False))
    nodes.second = nodes.add_node(**node)
    nodes.wait_for_nodes()
    connect_ray(nodes.address)
    yield nodes
    ray.shutdown()
    nodes.shutdown()


def short(seed, n_rounds=3):
    return Run.of('fedavg', n_clients=4, n_rounds=n_rounds, partition='iid', seed=seed)


def rows_of(store, run): return (store.folder(run_id(run))/'rows.csv').read_bytes()


def test_clients_as_actors(cluster):
    "All fields of clients and server; a client's fields stay with an actor."
    fed, stages = toy((20, 33, 16, 0, 11), participation=.8, p=.3), stages_of(METHODS.build('fedcosr'), 3)
    *_, at_home = rounds(Loop(fed), stages)
    execute = EXECUTORS['ray'].make(fed, 2)
    *_, far = rounds(execute, stages)
    assert not any(isinstance(c, dict) for c in far.clients.changed.values())
    assert_equal(at_home, far)
    assert at_home.up == far.up and at_home.down == far.down
    execute.close()


def test_a_node_dies(cluster, tmp_path):
    "Two runs on two nodes, one of which is killed in the middle: the same rows, each run once."
    runs, told = [short(0, 30), short(1, 30)], {}
    class Progress:
        def put(self, item): told[item[0]] = item[1]
    options = dict(device='cpu', data_root=None, executor='auto', deadline=math.inf, every=0.)
    store, found = Store(tmp_path/'far'), []
    def work(): found.extend(train_on_ray(runs, store, options, Progress(), cluster.address))
    thread = threading.Thread(target=work)
    thread.start()
    while len(told) < 2 or min(told.values()) < 2: time.sleep(.05)
    assert max(told.values()) < 30, 'too fast to be killed in the middle'
    cluster.remove_node(cluster.second, allow_graceful=False)
    thread.join()
    assert [o.word for o in found] == ['done', 'done']
    here = Store(tmp_path/'here')
    train_all(runs, here, quiet=True, jobs=1)
    for run in runs: assert rows_of(store, run) == rows_of(here, run)
    assert len(list((tmp_path/'far').glob('*/run.json'))) == 2
