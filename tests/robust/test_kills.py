"""Whatever is killed, and whenever: no row is lost, none is doubled, and the same command goes on.

Twenty kills stand in the suite; `pytest -m nightly tests/robust/test_kills.py` makes 200. The processes are
forked from one that has imported everything and calculated nothing (`fresh.py`), so a start costs little."""
import errno
import json
import os
import random
import signal
import time
from pathlib import Path

import pandas as pd
import pytest
from fresh import Fresh

from fedcl_repro.publish import execute as pages

from fedcl_repro.runs import processes

from fedcl_repro.runs import workers
from fedcl_repro.runs.processes import Interrupted
from fedcl_repro.runs.run import Run, run_id
from fedcl_repro.runs.code_digest import sources
from fedcl_repro.runs.store import Store, checkpoint_progress, load_checkpoint, save_checkpoint
from fedcl_repro.runs.workers import train_all

SMALL = dict(n_clients=2, n_rounds=8, batch_size=64, eval_every=4, model='cnn(k=8)',
             scarcity='all_clients(share=0.05)', partition='dirichlet(concentration=1.0, test_share=0.05)')
RUNS = [Run.of('fedper', **SMALL, seed=seed) for seed in range(3)]
IDS = [run_id(r) for r in RUNS]
SIGNAL = dict(kill=signal.SIGKILL, interrupt=signal.SIGINT, terminate=signal.SIGTERM)

# who is killed, how, with how many jobs -> kills in the suite, kills in the nightly test
MATRIX = {
    ('parent', 'kill', 1): (3, 30),
    ('parent', 'kill', 2): (2, 25),
    ('parent', 'interrupt', 1): (2, 25),
    ('parent', 'interrupt', 2): (2, 20),
    ('parent', 'terminate', 1): (2, 25),
    ('parent', 'terminate', 2): (2, 20),
    ('worker', 'kill', 2): (3, 30),
    ('worker', 'terminate', 2): (2, 15),
    ('page', 'kill', 2): (2, 12),
}
assert sum(few for few, _ in MATRIX.values()) == 20
assert sum(many for _, many in MATRIX.values()) >= 200


def forked(function, *args):
    "The id of a process that calls a function and ends with its exit code."
    pid = os.fork()
    if pid: return pid
    code = 70
    try:
        for descriptor in (1, 2): os.dup2(os.open(os.devnull, os.O_WRONLY), descriptor)
        signal.signal(signal.SIGINT, signal.default_int_handler)
        code = function(*args)
    except Interrupted as e: code = 128 + e.number
    finally: os._exit(code)


def command(store, jobs):
    "Train everything, with a checkpoint after each round; the exit code."
    try: outcomes = train_all(RUNS, Store(store), jobs=jobs, checkpoint=0., quiet=True)
    except Interrupted as e: return 128 + e.number
    return int(any(o.word != 'done' for o in outcomes))


def prepare():
    "Do once what each process would do before it trains."
    import sklearn.metrics # noqa: F401, for the measures at the end of a run
    for run in RUNS: sources(run)


COMMAND = """
import faulthandler, signal, sys
import test_kills
faulthandler.register(signal.SIGUSR1)
signal.signal(signal.SIGINT, signal.default_int_handler)
test_kills.processes.START = 'fork'
sys.exit(test_kills.command(sys.argv[1], int(sys.argv[2])))
"""


@pytest.fixture(scope='module')
def nursery():
    "Forks the processes that are killed."
    kept = Fresh('test_kills')
    yield kept
    kept.close()


def ended(piece):
    "How a process of the nursery ended; minus the signal that ended it."
    if wait_for(lambda: gone(piece.pid), 600): return piece.wait()
    stuck = [piece.pid, *children(piece.pid)]
    states = [state(pid) for pid in stuck]
    for pid in stuck: os.kill(pid, signal.SIGUSR1) # each says where it is
    time.sleep(5)
    piece.kill()
    raise AssertionError(f'process {piece.pid} did not end; states: {states}\n{piece.said("stderr")}')


def exit_code(pid, seconds=600):
    "How a process ended; minus the signal that ended it."
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        done, status = os.waitpid(pid, os.WNOHANG)
        if done: return os.waitstatus_to_exitcode(status)
        time.sleep(.002)
    os.kill(pid, signal.SIGKILL)
    raise AssertionError(f'process {pid} did not end within {seconds} s')


def children(pid):
    "The processes that a process has started."
    try: return [int(c) for c in Path(f'/proc/{pid}/task/{pid}/children').read_text().split()]
    except OSError: return []


def state(pid):
    "R: it works, S: it waits, D: for the disk, Z: it has ended; empty if nobody remembers it."
    try: return Path(f'/proc/{pid}/stat').read_text().rpartition(')')[2].split()[0]
    except OSError: return ''


def gone(pid): return state(pid) in ('', 'Z')


def wait_for(holds, seconds=300):
    "Whether it holds at last. A machine that stood still has waited a second."
    waited, last = 0., time.monotonic()
    while waited < seconds:
        if holds(): return True
        time.sleep(.01)
        waited, last = waited + min(1., time.monotonic() - last), time.monotonic()
    return False


def progress(store):
    "Rounds of each run that will not be trained again."
    return [8 if store.has(id) else checkpoint_progress(store, id)[0] for id in IDS]


def written(store):
    "When the last checkpoint of each run was written, and which runs are finished."
    def when(path):
        try: return path.stat().st_mtime_ns
        except FileNotFoundError: return 0
    return [(store.has(id), when(store.checkpoint(id))) for id in IDS]


def bytes_of(store): return [(store.folder(id)/'rows.csv').read_bytes() for id in IDS]


@pytest.fixture(scope='module')
def uninterrupted(tmp_path_factory, nursery):
    "The bytes of all rows, and the seconds it took."
    store = Store(tmp_path_factory.mktemp('uninterrupted'))
    start = time.monotonic()
    assert ended(nursery.start(COMMAND, store.root, 1)) == 0
    return bytes_of(store), time.monotonic() - start


@pytest.fixture(autouse=True)
def workers_are_forked(monkeypatch): monkeypatch.setattr(processes, 'START', 'fork')


def one_kill(nursery, store, who, how, jobs, delay):
    "Begin, kill after a delay, and see that nothing was lost; whether the process was there to be killed."
    before, last = progress(store), written(store)
    piece = nursery.start(COMMAND, store.root, jobs)
    pid = piece.pid
    wait_for(lambda: written(store) != last or gone(pid)) # it trains
    time.sleep(delay)
    team = children(pid)
    victim = pid if who == 'parent' else random.choice(team) if team else None
    hit = victim is not None and not gone(victim)
    if hit: os.kill(victim, SIGNAL[how])
    code = ended(piece)
    assert wait_for(lambda: all(gone(c) for c in team)), 'no worker outlives the command'
    after = progress(store)
    assert all(b >= a for a, b in zip(before, after)), 'a round that was kept is not trained again'
    if who == 'worker': assert code == 0 and after == [8] * len(RUNS), 'the command goes on without a worker'
    elif code: assert code == (-9 if how == 'kill' else 128 + SIGNAL[how])
    return hit and (who == 'worker' or code != 0)


def many_kills(tmp_path, nursery, who, how, jobs, n, uninterrupted):
    "Kill n times; each store is used until its runs are finished."
    wanted, seconds = uninterrupted
    rng = random.Random(f'{who} {how} {jobs}')
    kills = attempts = 0
    store = None
    while kills < n:
        attempts += 1
        assert attempts < 6 * n + 10, 'the process was hardly ever there to be killed'
        if store is None or all(store.has(id) for id in IDS): store = Store(tmp_path/f'{attempts}')
        store.root.mkdir(exist_ok=True)
        kills += one_kill(nursery, store, who, how, jobs, rng.uniform(0, .3 * seconds))
        if all(store.has(id) for id in IDS): check_whole(store, wanted)
    assert ended(nursery.start(COMMAND, store.root, jobs)) == 0
    check_whole(store, wanted)
    return kills


def check_whole(store, wanted):
    "The rows are those of an uninterrupted training, and nothing else is left once the command looks again."
    assert workers.lacking(RUNS, store, None) == []
    assert bytes_of(store) == wanted
    left = [p.name for p in store.root.iterdir() if p.suffix != '.lock']
    assert sorted(left) == sorted(IDS), left


def leaves_after(tell):
    "A task whose process is asked to end just when it is done."
    processes.NOTED.append(signal.SIGTERM)
    return 'done'


def own_id(tell): return os.getpid()


def dies_at_first(path, tell):
    "Die at the first try; at the second, say who is there."
    if not path.exists():
        path.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return os.getpid(), children(os.getppid())


def done_by(tasks, n):
    "Results of tasks, and the deaths that were told."
    deaths = []
    def died(key, code): deaths.append((key, code))
    return processes.do_all(tasks, n, died=died), deaths


def test_a_task_that_was_not_begun_has_not_died():
    tasks = {k: (leaves_after, ()) for k in range(4)}
    assert done_by(tasks, 2) == (dict.fromkeys(range(4), 'done'), [])


def test_the_second_try_has_a_new_process_and_no_idle_one_beside_it(tmp_path):
    tasks = dict(a=(own_id, ()), b=(dies_at_first, (tmp_path/'b',)), c=(own_id, ()))
    others = children(os.getpid()) # such as a command that another test has begun
    results, deaths = done_by(tasks, 2)
    alone, team = results['b']
    assert deaths == [('b', -9)]
    assert set(team) - set(others) == {alone} and alone not in (results['a'], results['c'])


def test_a_worker_that_is_killed_before_it_says_what_it_took_keeps_nobody_busy(tmp_path, monkeypatch):
    def dies_at_its_first_claim(claims, number, claimed=processes.claimed):
        if not claimed(claims, number): return False
        if not (tmp_path/'died').exists():
            (tmp_path/'died').touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return True
    monkeypatch.setattr(processes, 'claimed', dies_at_its_first_claim)
    started = []
    class Counted(processes.WorkerProcess):
        def __init__(self, *args):
            started.append(1)
            assert len(started) < 10, 'workers are started for a task that none can take'
            super().__init__(*args)
    monkeypatch.setattr(processes, 'WorkerProcess', Counted)
    results, deaths = done_by({k: (own_id, ()) for k in range(3)}, 2)
    assert len(results) == 3 and len(set(results.values())) > 1 and not deaths


def test_those_that_can_be_started_do_the_work(monkeypatch):
    begun = []
    class Scarce(processes.WorkerProcess):
        def __init__(self, *args):
            if begun: raise OSError(errno.EAGAIN, 'Resource temporarily unavailable')
            begun.append(1)
            super().__init__(*args)
    monkeypatch.setattr(processes, 'WorkerProcess', Scarce)
    results, deaths = done_by({k: (own_id, ()) for k in range(4)}, 3)
    assert len(results) == 4 and len(set(results.values())) == 1 and not deaths
    with pytest.raises(OSError, match='no process can be started: Resource temporarily'):
        done_by(dict(a=(own_id, ())), 1)


@pytest.mark.parametrize('error', [
    MemoryError(), OSError(errno.ENOMEM, 'Cannot allocate memory'), RuntimeError("can't start new thread"),
    RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 1 bytes")])
def test_a_run_that_found_too_little_memory_is_tried_again(tmp_path, monkeypatch, error):
    "Once, alone; a checkpoint that it could not read for this reason stays."
    tried = tmp_path/'tried'
    tried.mkdir()
    def train(run, store, **options):
        (tried/f'{run.seed}-{os.getpid()}').touch()
        if run.seed and (run.seed == 2 or len(list(tried.glob(f'{run.seed}-*'))) == 1): raise error
    monkeypatch.setattr(workers, 'train', train)
    found = train_all(RUNS, Store(tmp_path/'store'), jobs=2, quiet=True)
    assert [o.word for o in found] == ['done', 'done', 'failed']
    assert 'fewer jobs (--jobs)' in found[2].why
    assert [len(list(tried.glob(f'{seed}-*'))) for seed in range(3)] == [1, 2, 2]


@pytest.mark.parametrize('minutes', [-60, 0, 60])
@pytest.mark.parametrize('code, stays', [('a', False), ('b', True), ('a, then b', True)])
def test_the_checkpoint_of_a_finished_run_does_not_stay(code, stays, minutes, tmp_path):
    """The process was killed after it had written the rows. A checkpoint of other code is of a second
    training.
    What a clock says of the files decides nothing."""
    store, id = Store(tmp_path), IDS[0]
    store.write(id, pd.DataFrame(dict(value=[1.])), dict(sources='a'))
    save_checkpoint(store, id, dict(run=id, sources=code))
    finished = (store.folder(id)/'run.json').stat().st_mtime_ns
    os.utime(store.checkpoint(id), ns=(finished, finished + minutes * 60 * 10**9))
    workers.lacking(RUNS[:1], store, None)
    assert store.checkpoint(id).exists() == stays


def test_too_little_memory_is_no_damage(tmp_path, monkeypatch):
    store = Store(tmp_path)
    store.folder('a').mkdir()
    save_checkpoint(store, 'a', dict(run='a'))
    def short(*args, **options): raise OSError(errno.ENOMEM, 'Cannot allocate memory')
    monkeypatch.setattr('torch.load', short)
    monkeypatch.setattr(Path, 'read_text', short)
    with pytest.raises(OSError): load_checkpoint(store, 'a', set_aside=True)
    with pytest.raises(OSError): workers.intact(store, 'a')
    assert store.checkpoint('a').exists() and store.folder('a').exists()


def code_cell(source):
    return dict(cell_type='code', execution_count=None, id='a', metadata={}, outputs=[], source=source)


def toy_page(folder, name):
    "A notebook that says when it is executed."
    begun = f'open({str(folder/name)!r}, "a").write("begun ")'
    source = f'import time\n{begun}\ntime.sleep(.2)\nprint("finished")'
    kernel = dict(name='python3', display_name='python3', language='python')
    path = folder/f'{name}.ipynb'
    path.write_text(json.dumps(dict(cells=[code_cell(source)], metadata=dict(kernelspec=kernel), nbformat=4,
                                    nbformat_minor=5)))
    return path


def page_kills(tmp_path, n):
    "Kill workers that execute pages; every page is executed to its end, and has its row of the report."
    first = str(toy_page(tmp_path, 'first'))
    pages.execute_page('fedcosr/fig8', first, str(tmp_path/'out.ipynb'), {}) # imports all
    names = ['fedcosr/table2', 'fedcosr/fig8', 'mapl/fig4']
    for k in range(n):
        folder = tmp_path/f'pages{k}'
        folder.mkdir()
        tasks = {}
        for j, name in enumerate(names):
            notebook, out = toy_page(folder, f'page{j}'), folder/f'out{j}.ipynb'
            tasks[name] = pages.execute_page, (name, str(notebook), str(out), {})

        def executed():
            done = pages.do_pages(tasks, 2)
            return sum(done[name]['status'] != 'ok' for name in names)

        pid = forked(executed)
        assert wait_for(lambda: list(folder.glob('page?'))), 'a page is being executed'
        victims = [c for c in children(pid) if not gone(c)]
        os.kill(random.choice(victims), signal.SIGKILL)
        assert exit_code(pid) == 0
        assert all('finished' in (folder/f'out{j}.ipynb').read_text() for j in range(3))
    return n


def kill_all(tmp_path, nursery, uninterrupted, who, how, jobs, n):
    if who == 'page': return page_kills(tmp_path, n)
    return many_kills(tmp_path, nursery, who, how, jobs, n, uninterrupted)


@pytest.mark.parametrize('who, how, jobs', MATRIX)
def test_nothing_is_lost(tmp_path, nursery, uninterrupted, who, how, jobs):
    n = MATRIX[who, how, jobs][0]
    assert kill_all(tmp_path, nursery, uninterrupted, who, how, jobs, n) == n


@pytest.mark.nightly
@pytest.mark.parametrize('who, how, jobs', MATRIX)
def test_nothing_is_lost_in_200_kills(tmp_path, nursery, uninterrupted, who, how, jobs):
    n = MATRIX[who, how, jobs][1]
    assert kill_all(tmp_path, nursery, uninterrupted, who, how, jobs, n) == n
