"""What stops in the middle goes on: a server of nodes after its last round, a node after it was out of file
handles, a command on a cluster whose disk is full."""
import contextlib
import io
import os
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from types import SimpleNamespace

import pytest

from fedcl_repro.distributed import flower, ray
from fedcl_repro.distributed.nodes import Node, SharedPlan, dealt
from fedcl_repro.distributed.resident import SOCKET, ask_resident
from fedcl_repro.runs.run import Run
from fedcl_repro.runs.store import Store

SMALL = dict(n_clients=3, n_rounds=4, model='cnn(k=8)', batch_size=64, scarcity='all_clients(share=0.05)')


class Killed(BaseException): "The server's process ends here."


class Courier:
    "Carries bytes to nodes that are made anew for each message, and dies at one of them."
    n_before, after = {}, False # kind -> messages that come through; whether it dies after delivery
    def __init__(self, grid, n, timeout, nodes=None):
        self.node_of, self.n_clients, self.seen = {i: i for i in range(n)}, n, Counter()
        self.failed, self.told = [], 0
    def __call__(self, kind, contents):
        self.seen[kind] += 1
        dies = self.seen[kind] > self.n_before.get(kind, 99)
        if dies and not self.after: raise Killed
        answers = {i: self.node(i).answer(kind, content) for i, content in contents.items()}
        if dies: raise Killed
        return answers


@pytest.fixture
def serve(monkeypatch, tmp_path):
    "Serves a run with nodes in a folder: (plan, folder of the server, when it dies) -> its files."
    monkeypatch.setattr(flower, 'Courier', Courier)
    def served(run, out, nodes='nodes', n_before={}, after=False):
        plan = SharedPlan.of(run)
        for i, data in enumerate(dealt(run)):
            if not (tmp_path/nodes/f'{i}').exists(): data.save(tmp_path/nodes/f'{i}')
        def node(courier, i): return Node(plan, i, str(tmp_path/nodes/f'{i}'))
        monkeypatch.setattr(Courier, 'node', node, raising=False)
        monkeypatch.setattr(Courier, 'n_before', n_before)
        monkeypatch.setattr(Courier, 'after', after)
        with contextlib.redirect_stdout(io.StringIO()), contextlib.suppress(Killed):
            flower.serve_run(None, plan.text, str(tmp_path/out))
        files = [p for p in sorted((tmp_path/out).glob('*')) if p.name != flower.STATE]
        return {p.name: p.read_bytes() for p in files}
    return served


DEATHS = dict(
    before_a_turn=[dict(n_before=dict(turn=2))],
    after_a_turn=[dict(n_before=dict(turn=2), after=True)],
    in_a_test=[dict(n_before=dict(test=1))],
    after_a_test=[dict(n_before=dict(test=1), after=True)],
    in_the_first_round=[dict(n_before=dict(turn=0), after=True)],
    twice=[dict(n_before=dict(turn=1), after=True), dict(n_before=dict(turn=1))],
    at_hello=[dict(n_before=dict(turn=1)), dict(n_before=dict(hello=0))],
)


@pytest.mark.parametrize('name', ['fedper', 'fedcosr'])
@pytest.mark.parametrize('case', DEATHS)
def test_a_server_goes_on_after_its_last_round(case, name, serve):
    "With the rows and weights of one that was not killed; the first round may begin in a new session."
    run = Run.of(name, eval_every=2, **SMALL)
    for death in DEATHS[case]: serve(run, 'out', 'nodes', **death)
    assert serve(run, 'out', 'nodes') == serve(run, 'other', 'other nodes')


def test_a_server_does_not_write_over_the_rows_of_others(serve, tmp_path):
    run = Run.of('fedper', **SMALL)
    done = serve(run, 'out')
    assert serve(run, 'out') == done, 'all rounds were there'
    with pytest.raises(ValueError, match='the rounds of another app'): serve(Run.of('fedavg', **SMALL), 'out')
    (tmp_path/'out'/flower.STATE).unlink()
    with pytest.raises(ValueError, match='has rows and no'): serve(run, 'out')
    assert (tmp_path/'out'/'rows.csv').read_bytes() == done['rows.csv']
    (tmp_path/'out'/flower.STATE).write_bytes(b'half')
    with pytest.raises(ValueError, match='no message'): serve(run, 'out')


def test_a_server_that_keeps_tables_does_not_go_on(serve):
    run = Run.of('fsl', **SMALL | dict(model='split_cnn'))
    serve(run, 'out', n_before=dict(turn=2))
    with pytest.raises(ValueError, match='tables that clients send only once'): serve(run, 'out')


NODE = '''
import resource, sys
resource.setrlimit(resource.RLIMIT_NOFILE, (40, 40))
from fedcl_repro.distributed.resident import serve_node
class Echo:
    def answer(self, kind, content): return content
serve_node(Echo(), sys.argv[1])
'''


def connect(folder, said):
    "A peer that connects, says something, and stays."
    peer = socket.socket(socket.AF_UNIX)
    peer.settimeout(1)
    try:
        peer.connect(str(folder/SOCKET))
        peer.sendall(said)
        return peer
    except OSError: peer.close()


@pytest.mark.parametrize('stays', [False, True], ids=['leave', 'stay'])
@pytest.mark.parametrize('said', [b'', b'\x00', b'\x7f\xff\xff\xff', b'0' * 1000], ids=len)
def test_a_node_out_of_file_handles_answers_again(said, stays, tmp_path):
    "60 peers of a node that may open 40 files, silent or odd: later it answers, if they leave or not."
    node = subprocess.Popen([sys.executable, '-c', NODE, str(tmp_path)], stderr=subprocess.DEVNULL)
    try:
        end = time.monotonic() + 60
        while not (tmp_path/SOCKET).exists() and time.monotonic() < end: time.sleep(.05)
        peers = [p for p in (connect(tmp_path, said) for _ in range(60)) if p]
        if not stays: [p.close() for p in peers]
        answers = []
        def ask():
            with contextlib.suppress(OSError,
                                     EOFError): answers.append(ask_resident(str(tmp_path), 'turn', b'y'))
        asking = threading.Thread(target=ask, daemon=True)
        asking.start()
        asking.join(60)
        assert answers == [(b'ok', b'y')]
        for p in peers: p.close()
    finally:
        node.kill()
        node.wait()


@pytest.mark.parametrize('error', [28, 27, 30, 13, 122], ids=os.strerror)
def test_a_checkpoint_from_a_cluster_that_cannot_be_written_is_a_warning(error, tmp_path, monkeypatch):
    def full(path): raise OSError(error, os.strerror(error))
    monkeypatch.setattr(ray, 'atomic_write', full)
    run = Run.of('fedavg')
    here = SimpleNamespace(deaths=Counter(), locks={run: None}, store=Store(tmp_path), id_of=lambda run: 'a')
    with pytest.warns(UserWarning, match='no checkpoint of run a'): ray.RunsOnRay.keep(here, run, b'x')


@pytest.mark.parametrize('before', ['nothing', 'open folder', 'link', 'file', 'own file'])
def test_files_of_a_user_are_unpacked_where_nobody_else_writes(before, tmp_path, monkeypatch):
    "Whatever somebody has put where they might go."
    monkeypatch.setattr(tempfile, 'tempdir', str(tmp_path))
    ray.own_folder.cache_clear()
    files, used = {'my_method.py': 'x = 1\n'}, []
    monkeypatch.setattr(ray, 'use_files', used.extend)
    monkeypatch.setattr(ray, 'enter_packed', lambda content: None)
    ray.unpack_luggage(dict(files=files, own=b''))
    (first,) = used
    elsewhere = tmp_path/'elsewhere'
    elsewhere.mkdir(mode=0o777)
    guess = first.parent.with_name(first.parent.name.rpartition('-')[0])
    if before == 'open folder': guess.mkdir(mode=0o777)
    if before == 'link': guess.symlink_to(elsewhere)
    if before == 'file': guess.write_text('')
    if before == 'own file': (elsewhere/'my_method.py').write_text('x = 2\n')
    ray.own_folder.cache_clear()
    used.clear()
    ray.unpack_luggage(dict(files=files, own=b''))
    assert used[0].parent not in (guess, elsewhere) and used[0].read_text() == 'x = 1\n'
    assert used[0].parent.stat().st_mode & 0o777 == 0o700 and not used[0].parent.is_symlink()
    again = list(used)
    ray.unpack_luggage(dict(files=files, own=b''))
    assert used == again * 2, 'one folder per process'
