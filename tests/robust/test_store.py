"""Runs survive being killed, and two processes share a store."""
import os
import time

import pytest
from fresh import COMMAND

from fedcl_repro.cli import main
from fedcl_repro.core import HeldFolder
from fedcl_repro.evidence.experiments import EXPERIMENTS
from fedcl_repro.evidence.majority import committed_scores, what_decides
from fedcl_repro.runs.run import Run, run_id
from fedcl_repro.runs.store import Store
from fedcl_repro.runs.train import train

RUN = dict(n_rounds=12, seed=7, n_clients=5, scarcity='all_clients(share=0.3)')
CODE = f'''
import sys
from fedcl_repro.runs.run import Run
from fedcl_repro.runs.store import Store
from fedcl_repro.runs.train import train
tell = lambda done: print(done, flush=True)
train(Run.of('fedcosr', **{RUN}), Store(sys.argv[1]), every=0., progress=tell)
'''


@pytest.fixture(scope='module')
def uninterrupted(tmp_path_factory):
    "The bytes of `rows.csv` after training without interruption."
    store = Store(tmp_path_factory.mktemp('uninterrupted'))
    id = train(Run.of('fedcosr', **RUN), store)
    return (store.folder(id)/'rows.csv').read_bytes()


def test_killed_and_started_again(tmp_path, uninterrupted, fresh):
    "After two times kill -9, the third start ends with the rows of an uninterrupted run, none twice."
    seen = []
    for stop in (4, 8):
        p = fresh.start(CODE, tmp_path)
        for line in p.lines():
            seen.append(int(line))
            if seen[-1] >= stop:
                p.kill()
                break
        assert p.wait() == -9
    last = fresh.start(CODE, tmp_path)
    rest = [int(line) for line in last.lines()]
    assert last.wait() == 0 and rest[-1] == 12
    assert rest[0] >= 7, 'a checkpoint a round: at most the round since the last is trained again'
    id = run_id(Run.of('fedcosr', **RUN))
    assert (tmp_path/id/'rows.csv').read_bytes() == uninterrupted
    assert not list(tmp_path.glob('*.ckpt'))
    assert not list(tmp_path.glob('.new-*')), 'what a killed process was writing is cleaned up'


def test_two_processes_on_one_store(tmp_path, uninterrupted, fresh):
    "Both are asked for the same runs; each run is trained once, and both end well."
    settings = [word for k, v in RUN.items() for word in ('--set', f'{k}={v}')]
    asked = ['run', '--method', 'fedcosr', *settings, '--store', tmp_path, '--jobs', '1']
    both = [p.done() for p in [fresh.start(COMMAND, *asked) for _ in range(2)]]
    assert [p.returncode for p in both] == [0, 0], both[0].stderr + both[1].stderr
    out = [p.stdout for p in both]
    assert all('micro' in o for o in out)
    id = run_id(Run.of('fedcosr', **RUN))
    assert (tmp_path/id/'rows.csv').read_bytes() == uninterrupted


def test_a_time_budget_stops_cleanly(tmp_path, capsys):
    asked = ['--method', 'fedavg', '--set', 'n_rounds=5000', '--store', str(tmp_path), '--minutes', '0.08']
    assert main(['run', *asked]) == 0
    assert 'out of time' in capsys.readouterr().err
    assert len(list(tmp_path.glob('*.ckpt'))) == 1


def test_a_failed_run_is_told_by_the_exit_code_and_keeps_the_rest(tmp_path, capsys):
    asked = ['--method', 'fedavg', '--set', 'optimiser=sgd(lr=1e30)', '--store', str(tmp_path)]
    assert main(['run', *asked]) == 1
    assert 'FedAvg: the loss of client' in capsys.readouterr().err


@pytest.mark.skipif(not os.path.exists('/proc/self/task'), reason='needs /proc to see children')
def test_no_worker_outlives_a_killed_command(tmp_path, fresh):
    p = fresh.start(COMMAND, 'run', 'fedcosr/table2', '--seeds', 1, '--jobs', 2, '--store', tmp_path)
    until(lambda: len(workers(p.pid)) >= 3, 'two workers beside their helper')
    children = workers(p.pid)
    p.kill()
    p.wait()
    until(lambda: not any(alive(c) for c in children), 'the end of the workers')


def workers(pid):
    with open(f'/proc/{pid}/task/{pid}/children') as f: return f.read().split()


def alive(pid):
    "Whether a process runs; a zombie does not."
    try:
        with open(f'/proc/{pid}/stat') as f: return f.read().rpartition(')')[2].split()[0] != 'Z'
    except OSError: return False


def until(holds, what, seconds=600):
    for _ in range(10 * seconds):
        if holds(): return
        time.sleep(.1)
    raise AssertionError(f'waited {seconds} s for {what}')


def test_saved_rows_bring_their_majority_classes(tmp_path, monkeypatch):
    "`--save` writes the majority classes' accuracy, once, for clients that are tested one by one."
    papers, store = tmp_path/'papers', str(tmp_path/'runs')
    (papers/'toys'/'results').mkdir(parents=True)
    monkeypatch.setenv('FEDCL_PAPERS', str(papers))
    run = Run.of('local', n_clients=3, n_rounds=1)
    about = dict(paper='toys', artifact='own', kind='table', title='a toy', judge=lambda rows, profile: [])
    EXPERIMENTS.add('toys/own', **about)(lambda profile: [run])
    committed_scores.cache_clear()
    try:
        assert main(['run', 'toys/own', '--save', '--store', store, '--jobs', '1']) == 0
        written = (papers/'majority.csv').stat().st_mtime_ns
        assert list(committed_scores()) == [what_decides(run)]
        assert len(committed_scores()[what_decides(run)]) == 3
        assert main(['run', 'toys/own', '--save', '--store', store, '--jobs', '1']) == 0
        assert (papers/'majority.csv').stat().st_mtime_ns == written, 'nothing new, nothing written'
    finally:
        del EXPERIMENTS['toys/own']
        committed_scores.cache_clear()


def test_a_folder_that_was_swept_before_it_was_locked_is_made_again(tmp_path, monkeypatch):
    "A sweeper takes a new folder for a dead process's in the moment between making and opening it."
    import tempfile
    made, make = [], tempfile.mkdtemp

    def swept_once(**where):
        made.append(make(**where))
        if len(made) == 1: os.rmdir(made[0])
        return made[-1]

    monkeypatch.setattr(tempfile, 'mkdtemp', swept_once)
    held = HeldFolder('one-', tmp_path)
    assert len(made) == 2 and held.name == made[1] and os.path.isdir(held.name)
    held.cleanup()
    assert not os.path.exists(held.name)
