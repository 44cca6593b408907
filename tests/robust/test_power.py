"""What a power cut, a full disk, a second process or a clock may do to a store: nothing that was finished is
lost, and what cannot be kept is said."""
import errno
import hashlib
import io
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

import fedcl_repro
from fedcl_repro import core
from fedcl_repro.cli import main
from fedcl_repro.commands import show
from fedcl_repro.evidence import experiments
from fedcl_repro.federation.clients import Stored, client_folder, training_notes
from fedcl_repro.federation.fed import toy
from fedcl_repro.federation.rounds import begin
from fedcl_repro.runs import workers
from fedcl_repro.runs.run import Run, run_id
from fedcl_repro.runs.session import from_checkpoint, to_checkpoint
from fedcl_repro.runs.store import (
    DamagedRun, Store, file_digest, load_checkpoint, locked, save_checkpoint)
from fedcl_repro.runs.train import OutOfTime, train
from fedcl_repro.runs.workers import train_all

SMALL = dict(n_clients=2, n_rounds=4, batch_size=64, model='cnn(k=8)', scarcity='all_clients(share=0.05)')
RUN = Run.of('fedper', **SMALL)
ID = run_id(RUN)


# --- power

class Disk:
    """What would be on the disk of a store if the power went now: of a file that was not forced since its
    last change, nothing; of a store whose names were not forced, the names from before. Learned from the
    system calls that force, rename and delete, as they are made."""
    def __init__(self, root, look):
        self.root, self.look, self.forced, self.names, self.cuts = root, look, {}, {}, 0
        self.recording = False

    def state(self, path):
        s = os.stat(path)
        return s.st_ino, s.st_size, s.st_mtime_ns

    def note_fsync(self, descriptor):
        path = Path(os.readlink(f'/proc/self/fd/{descriptor}'))
        if path.is_dir(): self.names[path] = {p.name: p.stat().st_ino for p in path.iterdir()}
        else: self.forced[os.fstat(descriptor).st_ino] = self.state(path)

    def cut(self, event, args):
        "Before each call that shows or removes a name: what is left if the power goes."
        if not self.recording or event not in ('os.rename', 'os.remove', 'os.rmdir', 'sync'): return
        self.recording = False
        self.cuts += 1
        for unsafe in ('names as they are', 'names that were forced'):
            with tempfile.TemporaryDirectory() as left:
                self.write(self.root, Path(left)/'runs', unsafe != 'names as they are')
                self.look(Store(Path(left)/'runs'))
        self.recording = True

    def write(self, folder, to, forced_names):
        to.mkdir()
        paths = {path.name: path for path in folder.iterdir()}
        if forced_names and folder in self.names: # a new name is lost, and an old one still there
            here = {path.stat().st_ino: path for path in folder.rglob('*')}
            paths = {name: here[inode] for name, inode in self.names[folder].items() if inode in here}
        for name, path in paths.items():
            if path.is_dir(): self.write(path, to/name, False)
            elif self.forced.get(path.stat().st_ino) == self.state(path): shutil.copy(path, to/name)
            else: (to/name).touch()


@pytest.fixture
def disk(tmp_path, monkeypatch):
    "Watches a store; `look` is called with what each power cut leaves of it."
    made = []
    def watch(root, look):
        disk = Disk(root, look)
        real = os.fsync
        def fsync(descriptor):
            real(descriptor)
            disk.note_fsync(descriptor)
        monkeypatch.setattr(os, 'fsync', fsync)
        sys.addaudithook(disk.cut)
        made.append(disk)
        return disk
    yield watch
    for disk in made: disk.recording = False


def progress_of(store):
    "Rounds that are not lost; a damaged run is an error."
    if store.has(ID):
        assert len(store.read(ID)[0])
        return RUN.n_rounds
    found = load_checkpoint(store, ID)
    assert found or not store.checkpoint(ID).exists() or not store.checkpoint(ID).stat().st_size
    return found['round'] if found else 0


def test_a_power_cut_loses_no_round_that_a_checkpoint_had(disk, tmp_path):
    told = [0]
    def look(store): assert progress_of(store) >= told[-1], 'what was said to be saved is there'
    watched = disk(tmp_path/'runs', look)
    watched.root.mkdir()
    watched.names[watched.root] = {} # it is empty
    watched.recording = True
    train(RUN, Store(watched.root), every=0., saved=told.append)
    watched.recording = False
    assert told[-1] == RUN.n_rounds - 1 and watched.cuts >= 2 * RUN.n_rounds
    watched.look(Store(watched.root))


def test_a_power_cut_leaves_the_old_rows_or_the_new(disk, tmp_path):
    "A run is replaced by a second training; a half-replaced one is put back when the run is locked."
    store, values = Store(tmp_path/'runs'), []
    store.write('a', pd.DataFrame(dict(metric=['x'], value=[1.])), {})
    def look(left):
        with locked(left, 'a'): pass
        values.append(left.read('a')[0].value.tolist())
    watched = disk(store.root, look)
    for path in store.folder('a').iterdir(): core.force(path)
    core.force(store.root)
    watched.recording = True
    store.write('a', pd.DataFrame(dict(metric=['x'], value=[2.])), {})
    watched.recording = False
    look(store)
    assert set(map(tuple, values)) == {(1.,), (2.,)} and values[-1] == [2.]


def test_forcing_costs_little(tmp_path, monkeypatch):
    "Once for a finished run and for a checkpoint."
    calls, real = [], os.fsync
    def timed(descriptor):
        start = time.perf_counter()
        real(descriptor)
        calls.append(time.perf_counter() - start)
    monkeypatch.setattr(os, 'fsync', timed)
    train(RUN, Store(tmp_path))
    n_files = len(list(Store(tmp_path).folder(ID).iterdir()))
    assert len(calls) == n_files + 2, 'each file, their folder, and the folder of its name'


# --- many clients

@pytest.mark.parametrize('before, after', [(1., 1.), (1., math.inf), (math.inf, 1.), (math.inf, math.inf)])
def test_a_checkpoint_takes_clients_one_by_one(before, after, tmp_path, monkeypatch):
    """One that is on disk is not read to be written, and with a limit to memory stays in the checkpoint, also
    when another one has taken its name."""
    fed, store, rng = toy((4,) * 6), Store(tmp_path), torch.Generator().manual_seed(0)
    def changed(i):
        notes = {'train.loss': torch.tensor(float(i)), 'train.rows': torch.tensor(4.)}
        return fed.client(i) | dict(own=torch.randn(5, generator=rng), part=torch.arange(9.)[2:4]) | notes
    state = begin(fed, memory=before)
    for i in (4, 0, 5, 2): state = replace(state, clients=state.clients.replaced({i: changed(i)}))
    read, real = [], Stored.fields
    monkeypatch.setattr(Stored, 'fields', lambda stored: read.append(stored) or real(stored))
    content = to_checkpoint(state, [], 1., 'loop')
    save_checkpoint(store, 'a', content)
    assert not read
    again, *_ = from_checkpoint(load_checkpoint(store, 'a'), 'cpu', begin(fed, memory=after))
    assert all(isinstance(c, Stored) == (after < math.inf) for c in again.clients.changed.values())
    save_checkpoint(store, 'a', content | dict(clients={}))
    assert list(again.clients.changed) == list(state.clients.changed)
    assert training_notes(again.clients) == training_notes(state.clients)
    for a, b in zip(again.clients, state.clients):
        assert a.keys() == b.keys() and all(torch.equal(a[k], b[k]) for k in a)


def test_a_checkpoint_of_an_earlier_version_goes_on(tmp_path):
    "It had all clients in one piece, and no place where they begin."
    store, client = Store(tmp_path), dict(w=torch.ones(2))
    content = dict(round=3, servers={}, up=(), down=(), rows=[], seconds=1., executor='loop')
    rest = io.BytesIO()
    torch.save(content | dict(clients={1: client}), rest)
    head = dict(sha256=hashlib.sha256(rest.getvalue()).hexdigest(), bytes=len(rest.getvalue()), round=3)
    head = json.dumps(head).encode().ljust(511) + b'\n'
    store.checkpoint('a').write_bytes(head + rest.getvalue())
    assert torch.equal(load_checkpoint(store, 'a')['clients'][1]['w'], client['w'])


def test_a_run_with_a_limit_to_memory_goes_on_with_the_same_bits(tmp_path):
    plain, limited = Store(tmp_path/'plain'), Store(tmp_path/'limited')
    train(RUN, plain)
    for _ in range(RUN.n_rounds - 1):
        with pytest.raises(OutOfTime): train(RUN, limited, state_memory=1., deadline=time.monotonic() + .01)
    train(RUN, limited, state_memory=1.)
    assert (limited.folder(ID)/'rows.csv').read_bytes() == (plain.folder(ID)/'rows.csv').read_bytes()


# --- many runs

def rewrite(store):
    rows, about = store.read('b')
    store.write('b', rows.assign(value=.125), {k: v for k, v in about.items() if k not in ('run', 'sha256')})

def edit(store):
    "In place, with as many bytes and the same times."
    path = store.folder('b')/'run.json'
    before = path.stat()
    path.write_text(path.read_text().replace('"seed": 0', '"seed": 7'))
    sums = [f'{file_digest(p)}  {p.name}' for p in sorted(store.folder('b').iterdir())
            if p.name != 'SHA256SUMS']
    (store.folder('b')/'SHA256SUMS').write_text('\n'.join(sums))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))

def lines_of(store): return (store.root/'index.jsonl').read_text().splitlines(keepends=True)
def drop_a_line(store): (store.root/'index.jsonl').write_text(''.join(lines_of(store)[1:]))
def cut(store): (store.root/'index.jsonl').write_text(''.join(lines_of(store))[:-20])
def fill(store): (store.root/'index.jsonl').write_text('[]\n' * 3)
def delete(store): (store.root/'index.jsonl').unlink()
def remove_a_run(store): shutil.rmtree(store.folder('c'))
def of_another_version(store):
    (store.root/'index.jsonl').write_text(''.join(lines_of(store)).replace(fedcl_repro.__version__, '0', 1))
def block(store):
    delete(store)
    (store.root/'index.jsonl').mkdir()


@pytest.mark.parametrize('change', [
    rewrite, edit, drop_a_line, cut, fill, delete, remove_a_run, of_another_version, block])
def test_the_index_of_a_store_is_made_anew_where_it_disagrees(change, tmp_path, monkeypatch):
    "What it says is what the rows say, and rows are read only for the lines that it lacks."
    monkeypatch.setattr(show, 'FEW', 1)
    store = Store(tmp_path)
    train(RUN, store)
    rows, about = store.read(ID)
    about = {k: v for k, v in about.items() if k not in ('run', 'sha256')}
    for k, id in enumerate('abc'): store.write(id, rows.assign(value=rows.value / (k + 1)), about)
    ids, read, real = list('abc'), [], show.rows_of
    def noted(store, ids): return read.extend(ids) or real(store, ids)
    monkeypatch.setattr(show, 'rows_of', noted)
    def check(ids, n_read):
        read.clear()
        found = show.results_in(store, ids)
        assert len(read) == n_read
        pd.testing.assert_frame_equal(found, show.table_of_runs(real(store, ids)))
    check(ids, 3)
    check(ids, 0)
    change(store)
    ids = [id for id in ids if store.has(id)]
    n_lost = dict(cut=3, fill=3, delete=3, block=3, remove_a_run=0).get(change.__name__, 1)
    check(ids, n_lost)
    check(ids, 0)


@pytest.mark.parametrize('options, n_shown', [((), 20), (('--last', '3'), 3), (('--last', '0'), 23)])
def test_as_many_runs_are_shown_as_were_asked_for(options, n_shown, tmp_path, capsys):
    store = Store(tmp_path)
    train(RUN, store)
    rows, about = store.read(ID)
    about = {k: v for k, v in about.items() if k not in ('run', 'sha256')}
    for k in range(22): store.write(f'{k:010}', rows, about)
    assert main(['show', '--store', str(tmp_path), *options]) == 0
    assert sum(line.startswith((ID, '0000000')) for line in capsys.readouterr().out.splitlines()) == n_shown


# --- two processes

def test_a_reader_never_sees_half_a_run(tmp_path):
    "While another thread replaces a run, its rows are those of its provenance, and nothing is set aside."
    store, stop = Store(tmp_path), threading.Event()
    def write(k): store.write('a', pd.DataFrame(dict(metric=['x'] * 300, value=[float(k)] * 300)), dict(k=k))
    write(0)
    def replace():
        k = 0
        while not stop.is_set(): write(k := k + 1)
    thread = threading.Thread(target=replace)
    thread.start()
    try:
        for _ in range(150):
            rows, about = store.read('a')
            assert set(rows.value) == {float(about['k'])}
            workers.intact(store, 'a')
    finally:
        stop.set()
        thread.join()
    assert not (store.root/'set-aside').exists()


def test_a_damaged_run_is_set_aside_by_who_holds_its_lock(tmp_path, capsys):
    store = Store(tmp_path)
    store.write('a', pd.DataFrame(dict(metric=['x'], value=[1.])), {})
    (store.folder('a')/'rows.csv').write_text('metric,value\nx,2\n')
    with locked(store, 'a'): assert workers.intact(store, 'a') is None
    assert store.folder('a').exists(), 'another process has it'
    assert workers.intact(store, 'a') is None and not store.folder('a').exists()


@pytest.mark.parametrize('name', ['rows.csv', 'run.json', 'predictions.npz', 'hits.npz', 'models.pt'])
def test_a_file_that_is_listed_and_missing_is_noticed(name, tmp_path):
    store = Store(tmp_path)
    arrays = dict(predictions=dict(a=np.arange(3)), hits=dict(a=np.arange(3)))
    store.write('a', pd.DataFrame(dict(metric=['x'], value=[1.])), {}, dict(w=torch.ones(2)), **arrays)
    (store.folder('a')/name).unlink()
    with pytest.raises(DamagedRun, match=name): store.check('a')
    if name.endswith('npz'):
        with pytest.raises(DamagedRun, match=name): store.arrays('a', name.removesuffix('.npz'))


@pytest.mark.parametrize('error', ['ENOLCK', 'ENOSYS', 'ENOTSUP'])
def test_a_file_system_without_locks_is_named_with_the_way_out(error, tmp_path, monkeypatch):
    def flock(*args): raise OSError(getattr(errno, error), os.strerror(getattr(errno, error)))
    monkeypatch.setattr('fcntl.flock', flock)
    with pytest.raises(ValueError, match='has no locks .* on a local disk with --store'):
        with locked(Store(tmp_path), 'a'): pass
    core.write_text(tmp_path/'a.txt', 'written without a lock')
    assert os.listdir(tmp_path/'') and not list(tmp_path.glob('.new-*'))


# --- what is left

HOLD = """
import os, sys
from pathlib import Path
from fedcl_repro.core import atomic_write
from fedcl_repro.federation.clients import Stored, client_folder, training_notes
from fedcl_repro.federation.fed import toy
from fedcl_repro.federation.rounds import begin
what, root = sys.argv[1], Path(sys.argv[2])
held = client_folder() if what == 'clients' else None
path = Path(held.name)/'x.pt' if held else None
if path: path.write_bytes(bytes(1000))
with atomic_write(root/'other') as new:
    new.mkdir() if what == 'folder' else new.write_text('half')
    print('there', flush=True)
    sys.stdin.readline()
    os._exit(9)
"""


@pytest.mark.parametrize('what', ['file', 'folder', 'clients'])
def test_what_a_killed_process_was_writing_is_swept_and_nothing_of_a_living_one(what, tmp_path, monkeypatch):
    monkeypatch.setenv('TMPDIR', str(tmp_path/'tmp'))
    (tmp_path/'tmp').mkdir()
    monkeypatch.setattr(tempfile, 'tempdir', None)
    def left(): return [*tmp_path.glob('.new-*'), *(tmp_path/'tmp').glob('fedcl-clients-*')]
    pipes = dict(stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    process = subprocess.Popen([sys.executable, '-c', HOLD, what, str(tmp_path)], **pipes)
    assert process.stdout.readline() == 'there\n'
    n_left = len(left())
    assert n_left == 1 + (what == 'clients')
    def sweep():
        with locked(Store(tmp_path), 'a'): pass
        client_folder().cleanup()
    sweep()
    assert len(left()) == n_left, 'its process lives'
    process.communicate('\n')
    sweep()
    assert not left()


@pytest.mark.parametrize('error', ['ENOSPC', 'EDQUOT', 'EFBIG'])
@pytest.mark.filterwarnings('ignore:models.pt of run')
def test_models_that_were_asked_for_and_are_not_kept_fail(error, tmp_path, monkeypatch, capsys):
    "The rows are there, and the same command writes the models from the checkpoint, without another round."
    from fedcl_repro.runs import train as training
    from fedcl_repro.runs.watch import Extras
    store, real, rounds = Store(tmp_path), torch.save, []
    def full(content, file, **how):
        if isinstance(file, Path): raise OSError(getattr(errno, error), os.strerror(getattr(errno, error)))
        real(content, file, **how)
    monkeypatch.setattr('torch.save', full)
    how = dict(jobs=1, quiet=True, extras=Extras(models=True))
    (outcome,) = train_all([RUN], store, **how)
    assert outcome.word == 'failed' and 'models.pt' in outcome.why
    rows = store.read(ID)[0]
    monkeypatch.setattr('torch.save', real)
    advance = training.Session.advance
    monkeypatch.setattr(training.Session, 'advance', lambda s: rounds.append(1) or advance(s))
    (outcome,) = train_all([RUN], store, **how)
    assert outcome.word == 'done' and store.models(ID).exists() and not rounds
    assert store.read(ID)[0].equals(rows) and not store.checkpoint(ID).exists()


# --- rows beside the notebooks

@pytest.mark.parametrize('n_written', range(4))
def test_a_save_that_was_ended_between_its_files_is_told(n_written, tmp_path, monkeypatch):
    "A reader gets rows and provenance of one save, or an error that says what to do."
    (tmp_path/'papers').mkdir()
    monkeypatch.setenv('FEDCL_PAPERS', str(tmp_path/'papers'))
    monkeypatch.setattr(experiments, 'in_package', lambda path: False)
    name, store = 'fedcosr/fig8', Store(tmp_path/'runs')
    run = experiments.runs_of(name, 'quick')[0]
    train_all([run], store, jobs=1, quiet=True)
    rows, about = store.read(run_id(run))
    def save(value, sources):
        more = {k: v for k, v in about.items() if k not in ('run', 'sha256')} | dict(sources=sources)
        store.write(run_id(run), rows.assign(value=rows.value + value), more)
        experiments.save_results(name, 'quick', store)
    def read():
        ((_, _, told),) = experiments.committed_runs(name, 'quick').values()
        return round(experiments.committed(name, 'quick').value.sum(), 3), told['sources']
    save(0., 'first')
    first, real, written = read(), experiments.write_text, []
    class Ended(BaseException): pass
    def write(path, text):
        if len(written) == n_written: raise Ended
        written.append(path)
        real(path, text)
    monkeypatch.setattr(experiments, 'write_text', write)
    try: save(.01, 'second')
    except Ended: pass
    monkeypatch.setattr(experiments, 'write_text', real)
    try: between = read()
    except ValueError as e: between = str(e)
    save(.01, 'second')
    second = read()
    assert second[1] == 'second' and second != first
    assert between in (first, second) or 'the same `fedcl run` with --save' in between


def test_a_save_keeps_runs_of_others_and_drops_those_of_former_settings(tmp_path, monkeypatch):
    "Others: another store, and another experiment of the paper."
    (tmp_path/'papers').mkdir()
    monkeypatch.setenv('FEDCL_PAPERS', str(tmp_path/'papers'))
    monkeypatch.setattr(experiments, 'in_package', lambda path: False)
    name, stores = 'fedcosr/fig8', [Store(tmp_path/'first'), Store(tmp_path/'second')]
    asked = experiments.runs_of(name, 'quick')[:2]
    for run, store in zip(asked, stores): train_all([run], store, jobs=1, quiet=True)
    others = experiments.runs_of('fedcosr/fig7', 'quick')[-1]
    former = replace(asked[0], n_rounds=1)
    assert others not in experiments.runs_of(name, 'quick')
    train_all([former, others], stores[0], jobs=1, quiet=True)
    with monkeypatch.context() as patch: # as if the experiment had asked for it
        patch.setattr(experiments, 'runs_of', lambda name, profile: [former, asked[0], others])
        experiments.save_results(name, 'quick', stores[0])
    def saved(): return set(pd.read_csv(experiments.committed_path(name, 'quick')).run)
    assert saved() == {run_id(r) for r in (former, asked[0], others)}
    experiments.save_results(name, 'quick', stores[1])
    assert saved() == {run_id(r) for r in (*asked, others)}
    assert set(experiments.committed_runs(name, 'quick')) == {run_id(r) for r in asked}
