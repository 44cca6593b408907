"""Wrong input is refused by name and before any work, or is rightly accepted."""
import json
import math
import os
import pwd
import struct
import sys
import zipfile
import zlib

import numpy as np
import pytest
import torch
import torch.nn as nn

from fedcl_repro import cli, simulate
from fedcl_repro.core import OneOf, Range, parse_spec
from fedcl_repro.data.datasets import DamagedData, load, read_npz
from fedcl_repro.data.partition import partition
from fedcl_repro.federation.fed import Fed, toy_images
from fedcl_repro.federation.method import METHODS
from fedcl_repro.runs import simulate as simulation
from fedcl_repro.runs import session
from fedcl_repro.runs import workers
from fedcl_repro.evidence.experiments import computed_folder, kept_verdicts, papers_folder
from fedcl_repro.runs.models import accuracy_of, adapt, load_model
from fedcl_repro.runs.run import REGISTERS, Run, load_registers, run_id
from fedcl_repro.runs.store import DamagedRun, Store, load_checkpoint, save_checkpoint
from fedcl_repro.runs.sweep import sweep
from fedcl_repro.commands import train as train_verbs

load_registers()
for tool in ('papermill', 'torchvision'): pytest.importorskip(tool)
DIGITS = load('digits')
NOTEBOOKS = papers_folder().resolve().parent


@pytest.fixture(autouse=True)
def no_work(monkeypatch):
    "Nothing may be trained, and no page executed."
    def work(*args, **kwargs): raise AssertionError('work began')
    for name in ('train', 'train_in_processes'): monkeypatch.setattr(workers, name, work)
    monkeypatch.setattr(simulation, 'train', work)
    monkeypatch.setattr(train_verbs, 'execute_pages', work)


def named(pairs): return [pytest.param(*p, id=' '.join(str(v) for v in p)[:70]) for p in pairs]


# --- runs, as the library makes them

REFUSED_RUNS = named([
    ('fedavgg', {}, "did you mean 'fedavg'?"),
    ('', {}, 'cannot read'),
    (None, {}, 'a method is named by a text'),
    (3, {}, 'a method is named by a text'),
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
    ('mapl(preset="best")', dict(augmentation='mapl'), "preset must be 'code' or 'text' or 'sane'"),
    ('mapl', {}, 'mapl compares views of an image'),
    ('mapl', dict(augmentation='mapl'), 'needs a network with'),
    ('fedavg', dict(rounds=3), "no setting 'rounds'"),
    ('fedavg', dict(executor='loop'), "no setting 'executor'"),
    ('fedavg', dict(n_rounds=0), 'n_rounds must be at least 1'),
    ('fedavg', dict(n_rounds=2.5), 'n_rounds must be like 30 (int)'),
    ('fedavg', dict(n_rounds='5'), 'n_rounds must be like 30 (int)'),
    ('fedavg', dict(n_rounds=True), 'n_rounds must be like 30 (int)'),
    ('fedavg', dict(n_rounds=None), 'n_rounds must be like 30 (int)'),
    ('fedavg', dict(n_clients=0), 'n_clients must be at least 1'),
    ('fedavg', dict(batch_size=0), 'batch_size must be at least 1'),
    ('fedavg', dict(local_epochs=0), 'local_epochs must be at least 1'),
    ('fedavg', dict(eval_every=0), 'eval_every must be at least 1'),
    ('fedavg', dict(participation=0.), 'participation must lie in (0, 1]'),
    ('fedavg', dict(participation=math.nan), 'participation must lie in (0, 1]'),
    ('fedavg', dict(client_drop=1.), 'client_drop must lie in [0, 1)'),
    ('fedavg', dict(seed=-1), 'seed must lie in [0, 4294967295]'),
    ('fedavg', dict(seed=2**40), 'seed must lie in [0, 4294967295]'),
    ('fedavg', dict(seed=.5), 'seed must be like 0 (int)'),
    ('fedavg', dict(partition_seed=-1), 'partition_seed must lie in'),
    ('fedavg', dict(beginning='random'), "beginning must be 'common' or 'own'"),
    ('fedavg', dict(buffers='mean'), "buffers must be 'average' or 'local' or 'reset'"),
    ('fedavg', dict(dtype='float16'), "dtype must be 'float32' or 'float64' or 'bfloat16'"),
    ('fedavg', dict(tf32=1), 'tf32 must be like False (bool)'),
    ('fedavg', dict(data='cifar'), "unknown dataset 'cifar'"),
    ('fedavg', dict(data=''), 'cannot read'),
    ('fedavg', dict(data='digits(side=4)'), 'side must lie in [8, 256]'),
    ('fedavg', dict(data='digits(side=1000)'), 'side must lie in [8, 256]'),
    ('fedavg', dict(data=np.zeros(3)), 'a dataset is named by a text'),
    ('fedavg', dict(model='cnnn'), "did you mean 'cnn'?"),
    ('fedavg', dict(model='cnn(dropout=1.0)'), 'dropout must lie in [0, 1)'),
    ('fedavg', dict(model='mixed(of="cnn + nothing")'), "unknown model 'nothing'"),
    ('fedavg', dict(model='mixed(of="")'), 'cannot read'),
    ('fedavg', dict(model='resnet18_cifar(norm="xn")'), "norm must be 'bn'"),
    ('fedavg', dict(optimiser='adamw'), "did you mean 'adam'?"),
    ('fedavg', dict(optimiser='sgd(momentum=1.5)'), 'momentum must lie in [0, 1)'),
    ('fedavg', dict(optimiser='sgd(lr="fast")'), 'must be like 0.05'),
    ('fedavg', dict(augmentation='crop_flip(flip=2.0)'), 'flip must lie in [0, 1]'),
    ('fedavg', dict(partition='dirichlet(concentration=0.)'), 'concentration must be above 0'),
    ('fedavg', dict(scarcity='some'), "unknown scarcity 'some'"),
    ('fedavg', dict(scarcity='all_clients(share=0.)'), 'share must lie in (0, 1]'),
    ('fedavg', dict(metrics='auc'), 'metrics must be like ()'),
    ('fedavg', dict(metrics=('auc', 'auc')), 'metrics name auc twice'),
    ('fedavg', dict(metrics=(3,)), 'a metric is named by a text'),
    ('fedavg', dict(shift='rotation(step=1e999)'), 'step must be'),
    ('fedcosr(gamma=__import__("os"))', {}, 'gamma must be like 0.8 (float)'),
])


@pytest.mark.parametrize('method, settings, says', REFUSED_RUNS)
def test_a_run_is_refused(method, settings, says):
    with pytest.raises(ValueError) as refused: Run.of(method, **settings)
    assert says in str(refused.value)


ACCEPTED_RUNS = named([
    (dict(n_rounds=np.int64(5)), dict(n_rounds=5)),
    (dict(n_clients=np.int32(5), seed=np.uint8(3)), dict(n_clients=5, seed=3)),
    (dict(participation=np.float64(.5)), dict(participation=.5)),
    (dict(participation=1), dict(participation=1.)),
    (dict(tf32=np.bool_(True)), dict(tf32=True)),
    (dict(optimiser=' adam(lr=0.01) '), dict(optimiser='adam(lr=0.01)')),
    (dict(data='digits( side=16 )'), dict()),
    (dict(model='resnet18_cifar(proj=[64, 32])'), dict(model='resnet18_cifar(proj=(64, 32))')),
    (dict(optimiser='adam(lr=0.0)'), dict(optimiser='adam(lr=0.)')),
])


@pytest.mark.parametrize('given, same', ACCEPTED_RUNS)
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
    resolve, asked = REGISTERS[kind].resolve, 0
    for name, entry in REGISTERS[kind].items():
        for setting, allowed in entry.ranges.items():
            default = entry.settings[setting]
            assert default is None or default in allowed, f'the default of {name} {setting}'
            wrong = parse_spec(name)(**{setting: beyond(allowed, default)})
            with pytest.raises(ValueError) as refused: resolve(wrong)
            assert f'{setting} {allowed.rule()}' in str(refused.value)
            asked += 1
    assert asked


# --- partitions

REFUSED_PARTITIONS = named([
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
])


@pytest.mark.parametrize('spec, n_clients, says', REFUSED_PARTITIONS)
def test_a_partition_is_refused(spec, n_clients, says):
    with pytest.raises(ValueError) as refused: partition(DIGITS, spec, n_clients, 0)
    assert says in str(refused.value)


@pytest.mark.parametrize('settings, says', named([
    (dict(partition='pathological(classes=11)'), 'cannot hold 11 of 10 classes'),
    (dict(partition='dirichlet(test_share=0.0)'), 'no client has test images'),
    (dict(n_clients=5000), 'ask for at most 1352'),
    (dict(data='digits(side=8)'), 'images of 8x8 are too small'),
    (dict(scarcity='last_clients(clients=30)'), 'the last 30 of 20 clients'),
]))
def test_an_impossible_run_is_refused_before_any_other(settings, says, tmp_path, monkeypatch, capsys):
    def all_done(runs, *rest): return [workers.Outcome(r, 'done') for r in runs]
    wrong, right = Run.of('fedavg', **settings), Run.of('fedavg')
    with pytest.raises(ValueError, match='.'): workers.train_all([wrong], Store(tmp_path), quiet=True)
    monkeypatch.setattr(workers, 'train_lacking', all_done)
    outcomes = workers.train_all([right, wrong], Store(tmp_path), quiet=True)
    assert [o.word for o in outcomes] == ['done', 'failed'] and says in outcomes[1].why
    assert says in capsys.readouterr().err


# --- federations of own arrays

X, Y, ROWS = toy_images((4, 3), 4, 0)


def own_fed(store=(X, Y), train=ROWS, test=ROWS, archs=None, arch=None, **settings):
    build = dict(net=lambda: nn.ModuleDict(dict(body=nn.Flatten(), head=nn.Linear(36, 4))))
    settings = dict(n_classes=4) | settings
    return Fed(store, train, test, build if archs is None else archs, arch, **settings)


REFUSED_FEDS = {
    'fewer labels': (dict(store=(X, Y[:6])), '7 images but 6 labels'),
    'more labels': (dict(store=(X[:5], Y)), '5 images but 7 labels'),
    'no images': (dict(store=(X[:0], Y[:0])), 'holds no images'),
    'numpy arrays': (dict(store=(X.numpy(), Y.numpy())), 'a pair of tensors'),
    'one tensor': (dict(store=X), 'a pair of tensors'),
    'floats in [0, 1]': (dict(store=(X / 255, Y)), 'must lie in [-1, 1] around 0'),
    'floats up to 255': (dict(store=(X.float(), Y)), 'must lie in [-1, 1] around 0'),
    'not finite': (dict(store=(X / 127.5 - math.nan, Y)), 'not finite'),
    'infinite features': (dict(store=(torch.full((7, 3), math.inf), Y)), 'not finite'),
    'int images': (dict(store=(X.long(), Y)), 'got torch.int64'),
    'images without channels': (dict(store=(X[..., 0], Y)), 'images are (n, H, W, C), got [7, 6, 6]'),
    'float labels': (dict(store=(X, Y.float())), 'labels are whole numbers'),
    'bool labels': (dict(store=(X, Y > 1)), 'labels are whole numbers'),
    'one-hot labels': (dict(store=(X, torch.eye(7, dtype=torch.long))), 'labels are whole numbers'),
    'a label too high': (dict(n_classes=2), 'expected 0 to 1'),
    'a negative label': (dict(store=(X, Y - 1)), 'labels go from -1'),
    'no classes': (dict(n_classes=0), 'n_classes must be at least 1'),
    'a float of classes': (dict(n_classes=4.), 'n_classes must be like 1 (int)'),
    'negative rows': (dict(train=[[-1, 3], [4]]), 'train rows of client 0 go from -1 to 3'),
    'rows beyond': (dict(test=[[0], [4, 7]]), 'test rows of client 1 go from 4 to 7'),
    'float rows': (dict(train=[[.5], [4]]), 'must be whole numbers'),
    'a short mask': (dict(train=[np.array([True, False]), [4]]), 'must be whole numbers (k,) or a mask (7,)'),
    'rows in two dimensions': (dict(train=[[[0, 1]], [4]]), 'must be whole numbers'),
    'no clients': (dict(train=[], test=[]), 'at least one client, got none'),
    'no test rows': (dict(test=[]), '2 clients have training rows but 0 test rows'),
    'no architecture': (dict(archs={}), 'at least one architecture'),
    'an unknown architecture': (dict(arch=['net', 'nett']), "unknown architecture 'nett'"),
    'too few architectures': (dict(arch=['net']), '2 clients but 1 architectures'),
    'batch 0': (dict(batch_size=0), 'batch_size must be at least 1'),
    'half a batch': (dict(batch_size=.5), 'batch_size must be like 1 (int)'),
    'no epochs': (dict(local_epochs=0), 'local_epochs must be at least 1'),
    'nobody takes part': (dict(participation=0.), 'participation must lie in (0, 1]'),
    'unknown buffers': (dict(buffers='mean'), "buffers must be 'average'"),
    'unknown beginning': (dict(beginning='any'), "beginning must be 'common' or 'own'"),
}


@pytest.mark.parametrize('case', REFUSED_FEDS)
def test_a_federation_is_refused(case):
    given, says = REFUSED_FEDS[case]
    with pytest.raises(ValueError) as refused: own_fed(**given)
    assert says in str(refused.value)


@pytest.mark.parametrize('given, sizes', named([
    (dict(), [4, 3]),
    (dict(train=[np.arange(7) < 2, np.arange(7) > 3]), [2, 3]),
    (dict(train=[torch.arange(7) < 2, torch.tensor([4])]), [2, 1]),
    (dict(train=[[], [4]]), [0, 1]),
    (dict(train=[range(3), (5, 6)]), [3, 2]),
    (dict(store=(X, Y.int())), [4, 3]),
    (dict(store=(X / 127.5 - 1, Y)), [4, 3]),
]))
def test_a_federation_is_accepted(given, sizes):
    fed = own_fed(**given)
    assert fed.sizes == sizes and all(r.dtype == torch.long for r in fed.rows['train'])


# --- files of data

SMALL = dict(x_train=np.zeros((2, 1, 8, 8), np.uint8), y_train=np.array([0, 1]),
             x_test=np.zeros((1, 1, 8, 8), np.uint8), y_test=np.array([1]))


def header_of(shape):
    "A file in npy form that promises an array and has none."
    head = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}".encode()
    head += b' ' * (63 - (10 + len(head)) % 64) + b'\n'
    return b'\x93NUMPY\x01\x00' + len(head).to_bytes(2, 'little') + head


def archive(path, **changes):
    np.savez(path, **{k: v for k, v in (SMALL | changes).items() if v is not None})


NO_TRAINING = {k: SMALL[k][:0] for k in ('x_train', 'y_train')}
FILES = {
    'empty': (lambda p: p.write_bytes(b''), 'cannot be read'),
    'no archive': (lambda p: p.write_text('hello'), 'cannot be read'),
    'a folder': (lambda p: p.mkdir(), 'is no file'),
    'a pipe that nobody fills': (lambda p: os.mkfifo(p), 'is no file'),
    'cut off': (lambda p: (archive(p), p.write_bytes(p.read_bytes()[:300])), 'cannot be read'),
    'without labels': (lambda p: archive(p, y_train=None), 'lacks y_train'),
    'float images': (lambda p: archive(p, x_train=SMALL['x_train'] / 255), 'expected uint8'),
    'other shape': (lambda p: archive(p, x_test=np.zeros((1, 8, 8), np.uint8)), 'expected uint8[n, 1, 8, 8]'),
    'float labels': (lambda p: archive(p, y_test=np.array([1.])), 'expected integers'),
    'fewer labels': (lambda p: archive(p, y_train=np.array([0])), 'holds 2 images but 1 labels'),
    'no training images': (lambda p: archive(p, **NO_TRAINING), 'no training'),
    'a label too high': (lambda p: archive(p, y_test=np.array([7])), 'labels from 0 to 7'),
    'a negative label': (lambda p: archive(p, y_test=np.array([-1])), 'labels from -1'),
    'pickled objects': (lambda p: archive(p, y_train=np.array([{}, {}], object)), 'expected integers'),
}


@pytest.mark.parametrize('case', FILES)
def test_a_data_file_is_refused(case, tmp_path):
    make, says = FILES[case]
    make(tmp_path/'own.npz')
    with pytest.raises(DamagedData) as refused: read_npz(tmp_path/'own.npz', 'own', (1, 8, 8), 2)
    assert says in str(refused.value) and 'delete' not in str(refused.value)


def test_a_header_of_ten_billion_images(tmp_path):
    archive(tmp_path/'own.npz', x_train=None)
    header = header_of((10**10, 1, 8, 8))
    with zipfile.ZipFile(tmp_path/'own.npz', 'a') as z: z.writestr('x_train.npy', header)
    with pytest.raises(DamagedData, match='promises 640000000000 bytes of x_train'):
        read_npz(tmp_path/'own.npz', 'own', (1, 8, 8), 2)


# --- what lies in a store

@pytest.mark.parametrize('text', ['', 'null', '[]', '{}', '"a"', '{"sha256": 3}', '{', '\0'])
def test_a_damaged_run_is_set_aside(text, tmp_path, capsys):
    store, run = Store(tmp_path), Run.of('fedavg')
    folder = store.folder(run_id(run))
    folder.mkdir()
    (folder/'run.json').write_text(text)
    (folder/'rows.csv').write_text('round,value\n1,0.5\n')
    with pytest.raises(DamagedRun): store.read(run_id(run))
    assert workers.lacking([run], store, None) == [run] and not folder.exists()
    assert 'is damaged' in capsys.readouterr().err and list((tmp_path/'set-aside').iterdir())


FOREIGN = [b'', b'hello', b'PK\x03\x04', None, [1], {}, dict(round='a'), 'other run']


@pytest.mark.parametrize('content', FOREIGN, ids=str)
def test_a_foreign_checkpoint_is_set_aside(content, tmp_path, capsys):
    store, run = Store(tmp_path), Run.of('fedavg')
    id = run_id(run)
    whole = dict(round=1, clients={}, servers={}, up=(), down=(), rows=[], seconds=1., executor='loop')
    if isinstance(content, bytes): store.checkpoint(id).write_bytes(content)
    else: save_checkpoint(store, id, whole | dict(run='another') if content == 'other run' else content)
    assert session.usable_checkpoint(run, store, id, False) is None
    assert not store.checkpoint(id).exists() and 'is no checkpoint of this run' in capsys.readouterr().err


def test_a_checkpoint_of_more_clients_is_set_aside(tmp_path, capsys):
    store, run = Store(tmp_path), Run.of('fedavg', n_clients=2)
    whole = dict(round=1, clients={2: {}}, servers={}, up=(), down=(), rows=[], seconds=1., executor='loop')
    save_checkpoint(store, run_id(run), whole)
    assert load_checkpoint(store, run_id(run))['round'] == 1
    assert session.usable_checkpoint(run, store, run_id(run), False) is None
    assert 'is of another run' in capsys.readouterr().err


# --- files and functions of one's own

def own_npz(**changes):
    "What writes an npz file of 40 images, changed in some arrays."
    y = np.arange(40) % 3
    arrays = dict(x=np.arange(40 * 64).reshape(40, 8, 8) % 256 / 255, y=y) | changes
    return lambda p: np.savez(p, **{k: v for k, v in arrays.items() if v is not None})


def own_pictures(change):
    "What writes two folders of pictures, one of which is changed."
    def write(folder):
        from PIL import Image
        for c in ('a', 'b'):
            (folder/c).mkdir(parents=True)
            for k in range(3):
                Image.fromarray(np.full((8, 8), 40 * k, np.uint8)).save(folder/c/f'{k}.png')
        change(folder/'a'/'0.png')
    return write


def replaced(make):
    "What puts something else in the place of a file."
    def change(path):
        path.unlink()
        make(path)
    return change


def deep_picture(path):
    from PIL import Image
    Image.fromarray(np.full((8, 8), 40_000, np.uint16)).save(path)


def other_size(path):
    from PIL import Image
    Image.new('L', (9, 8)).save(path)


def huge_picture(path):
    "A small file whose header promises 20,000 by 20,000 pixels."
    from PIL import Image
    Image.new('1', (8, 8)).save(path)
    content = path.read_bytes()
    header = content[12:16] + struct.pack('>II', 20_000, 20_000) + content[24:29]
    path.write_bytes(content[:12] + header + struct.pack('>I', zlib.crc32(header)) + content[33:])


def cut_off(path): path.write_bytes(path.read_bytes()[:len(path.read_bytes()) // 2])


IDS = np.arange(40) // 20
OWN_DATA = {
    'nothing there': (lambda p: None, 'no such file or folder'),
    'a pipe': (lambda p: os.mkfifo(p), 'neither a plain file nor a folder'),
    'a text': (lambda p: p.write_text('hello'), 'is no npz archive'),
    'an npy': (lambda p: np.save(open(p, 'wb'), np.zeros(3)), 'is no npz archive'),
    'without labels': (own_npz(y=None), 'lacks y: it holds x'),
    'no images': (own_npz(x=np.zeros((0, 8, 8)), y=IDS[:0]), 'there are no images'),
    'images without pixels': (own_npz(x=np.zeros((40, 0, 8))), 'the array has shape (40, 0, 8)'),
    'vectors without numbers': (own_npz(x=np.zeros((40, 0))), 'the array has shape (40, 0)'),
    'vectors too large': (own_npz(x=np.full((40, 3), 1e300)), 'not finite as float32'),
    'not finite': (own_npz(x=np.full((40, 8, 8), np.nan)), 'not finite'),
    'complex': (own_npz(x=np.zeros((40, 8, 8), complex)), 'must be an array of numbers'),
    'volumes': (own_npz(x=np.zeros((40, 2, 2, 2, 2))), 'got an array of shape'),
    'two channels': (own_npz(x=np.zeros((40, 8, 8, 2))), 'whether channels come first or last'),
    'out of range': (own_npz(x=np.full((40, 8, 8), 7.5)), 'images of floats must lie in'),
    'whole numbers above 255': (own_npz(x=np.full((40, 8, 8), 300)), 'must lie in 0 to 255'),
    'pickled labels': (own_npz(y=np.array([{}] * 40, object)), 'as npz'),
    'one word as labels': (own_npz(y=np.array(['a'] * 40)), 'classification needs two classes'),
    'labels from 1': (own_npz(y=IDS + 1), 'labels begin at 1'),
    'float labels': (own_npz(y=IDS / 2), 'labels must be whole numbers'),
    'one-hot labels': (own_npz(y=np.eye(2)[IDS]), 'take .argmax(1)'),
    'negative labels': (own_npz(y=IDS - 1), 'got -1 to 0'),
    'one class': (own_npz(y=IDS * 0), 'classification needs two classes'),
    'labels from 1000': (own_npz(y=IDS + 1000), 'number the classes from 0'),
    'labels of 2**63': (own_npz(y=np.full(40, 2**63, np.uint64)), 'number the classes from 0'),
    'a column of pairs': (own_npz(client=np.zeros((40, 2))), 'must have one entry for each of 40 rows'),
    'clients without ids': (own_npz(client=np.where(IDS, 1., np.nan)), '20 of 40 rows have no client id'),
    'too few clients': (own_npz(client=np.zeros(40)), '2 clients for 1 ids'),
    'an empty folder': (lambda p: p.mkdir(), 'holds no folders'),
    'texts as pictures': (own_pictures(lambda p: p.write_text('hello')), 'cannot read the picture'),
    'a cut-off picture': (own_pictures(cut_off), 'cannot read the picture'),
    'a pipe among pictures': (own_pictures(replaced(os.mkfifo)), 'it is no file'),
    'a folder among pictures': (own_pictures(replaced(os.mkdir)), 'it is no file'),
    'a picture of 16 bits': (own_pictures(deep_picture), 'more than 8 bits a channel'),
    'a picture of 400 million pixels': (own_pictures(huge_picture), 'decompression bomb'),
    'pictures of two sizes': (own_pictures(other_size), 'make them one size'),
}


@pytest.mark.parametrize('case', OWN_DATA)
def test_own_data_are_refused(case, tmp_path, capsys):
    make, says = OWN_DATA[case]
    make(tmp_path/'own.npz')
    store = '--store', str(tmp_path/'runs')
    argv = ('run', '--method', 'fedavg', '--data', str(tmp_path/'own.npz'), '--set', 'n_clients=2')
    assert cli.main([*argv, *store]) == 2
    said = capsys.readouterr().err.strip().splitlines()[-1]
    assert says in said and said.startswith('fedcl: ')


OWN_CODE = """
import torch.nn as nn
from fedcl_repro.data.partition import PARTITIONS, Shards
from fedcl_repro.federation.method import METHODS
from fedcl_repro.parts.models import MODELS
about = dict(title='mine', family='averaging', owner='shared')

@METHODS.add('bad_three', **about)
def three(): return 3
@METHODS.add('bad_key', **about)
def key(): return {}['nothing']
@MODELS.add('bad_none')
def none(shape, n_classes): return None
@MODELS.add('bad_index')
def index(shape, n_classes): return [][0]
@MODELS.add('bad_shape', reads='anything')
def shape(shape, n_classes): return nn.Sequential(nn.Flatten(), nn.Linear(7, 3)), nn.Linear(3, n_classes)
@MODELS.add('bad_classes', reads='anything')
def classes(shape, n_classes): return nn.Flatten(), nn.Linear(256, 3)
@PARTITIONS.add('bad_rows', title='mine')
def rows(dataset, n_clients, rng): return Shards([[10**9]] * n_clients, [[1]] * n_clients)
@PARTITIONS.add('bad_tests', title='mine')
def tests(dataset, n_clients, rng): return Shards([range(5)] * n_clients, [range(5)] * n_clients)
@PARTITIONS.add('bad_few', title='mine')
def few(dataset, n_clients, rng): return Shards([[1]], [[2]])
@PARTITIONS.add('bad_nothing', title='mine')
def nothing(dataset, n_clients, rng): pass
"""
OWN_FAULTS = named([
    ('--method bad_three', 'a method is a Method'),
    ('--method bad_key', "the method 'bad_key' fails in own_code.py, line 11: KeyError: 'nothing'"),
    ('--model bad_none', 'a network has the parts body, head'),
    ('--model bad_index', "the model 'bad_index' fails in own_code.py, line 15: IndexError"),
    ('--model bad_shape', 'does not read inputs of shape (1, 16, 16)'),
    ('--model bad_classes', 'let it return scores (4, 10)'),
    ('--partition bad_rows', 'rows of client 0 must be whole numbers from 0 to 1796'),
    ('--partition bad_tests', 'client 0 is tested on 5 of the rows it trains on'),
    ('--partition bad_few', 'the partition has 1 clients to train and 1 to test, and the run 20'),
    ('--partition bad_nothing', "the partition 'bad_nothing' must return a Shards, got NoneType"),
])


@pytest.fixture(scope='module')
def own_code(tmp_path_factory):
    path = tmp_path_factory.mktemp('code')/'own_code.py'
    path.write_text(OWN_CODE)
    yield path
    os.environ.pop('FEDCL_USE', None)


@pytest.mark.parametrize('option, says', OWN_FAULTS)
def test_own_code_is_refused(option, says, own_code, tmp_path, capsys):
    argv = [] if '--method' in option else ['--method', 'fedavg']
    given = '--use', str(own_code), '--store', str(tmp_path/'runs')
    assert cli.main(['run', *argv, *option.split(), *given]) == 2
    assert says in capsys.readouterr().err.strip().splitlines()[-1]


@pytest.mark.parametrize('text, says', named([
    ('import sys; sys.exit(0)', 'SystemExit: 0'),
    ('def (', 'SyntaxError'),
    ('1 / 0', 'ZeroDivisionError'),
    ('import nowhere_at_all', 'ModuleNotFoundError'),
]))
def test_a_file_that_cannot_be_used(text, says, tmp_path, capsys):
    (tmp_path/'broken.py').write_text(text)
    assert cli.main(['run', '--method', 'fedavg', '--use', str(tmp_path/'broken.py')]) == 2
    assert says in capsys.readouterr().err


STUDIES = named([
    ('', 'names no runs'),
    ('runs = [1]', 'runs has another form'),
    ('common = 3\n[[runs]]\nmethod = "fedavg"', 'common has another form'),
    ('[[run]]\nmethod = "fedavg"', 'unknown run'),
    ('[[runs]]', 'no method is named'),
    ('[[runs]]\nmethod = 3', 'a method is named by a text'),
    ('[[runs]]\nmethod = "fedavg"\nrounds = 3', "no setting 'rounds'"),
    ('[[runs]]\nmethod = "fedavg"\nseed = []', 'seed is an empty list'),
    ('[[runs]]\nmethod = "fedavg"\ndata = {a = 1}', 'cannot read'),
    ('[[runs]]\nmethod = "fedavg"\nmetrics = ["no"]', "unknown metric 'no'"),
    ('[[runs]]\nmethod = "fedavg"\nn_rounds = 1979-05-27', 'n_rounds must be like 30 (int)'),
    ('[[runs]]\nmethod = "fedavg"\npartition = "dirichlet(minimum=5000)"', 'cannot have 5000 images each'),
])


@pytest.mark.parametrize('text, says', STUDIES)
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
        with pytest.raises(ValueError, match=says): adapt(model, x, y)
    with pytest.raises(ValueError, match='does not read inputs of shape'): adapt(model, x[:, 1:], [7, 8, 9])
    for name, wrong in (('steps', -1), ('steps', 1.5), ('lr', 0.), ('lr', 'fast'), ('batch_size', 0)):
        with pytest.raises(ValueError, match=f'{name} must be'): adapt(model, x, [7, 8, 9], **{name: wrong})


def test_what_a_simulation_does_not_have(tmp_path):
    import pandas as pd
    rows = pd.DataFrame(dict(moment=['merged'], split=['test']))
    found = simulation.Simulation(Run.of('fedavg'), Store(tmp_path), rows)
    for wrong in (dict(moment='before'), dict(split='valid')):
        with pytest.raises(ValueError, match='must be one of'): found.curve(**wrong)
    with pytest.raises(ValueError, match='made with Run.of'): load_model(None, store=tmp_path)
    with pytest.raises(ValueError, match="begin with 'fedavg'"): load_model('fedavg', store=tmp_path) # an id


# --- the facade, a sweep and `train_all`

PICTURES, CLASSES = np.arange(40 * 64).reshape(40, 8, 8) % 256 / 255, np.arange(40) % 4
VECTORS = PICTURES.reshape(40, 64)
DEALT = dict(n_clients=2, partition='dirichlet(minimum=1)')


def fails(*given): return 1 / 0


SIMULATIONS = {
    'labels of a named data set': (dict(data='digits'), 'labels belong to data given as arrays'),
    'labels of a file': (dict(data='pictures.npz'), 'leave them out'),
    'an empty name': (dict(data='', labels=None), 'data is empty'),
    'nothing': (dict(data=None, labels=None), 'NoneType need labels'),
    'a dictionary': (dict(data=dict(x=PICTURES)), 'got dict of object'),
    'a generator': (dict(data=iter(PICTURES)), 'of object: convert it before'),
    'ragged lists': (dict(data=[[1, 2], [3]], labels=[0, 1]), 'must be one array of numbers'),
    'masked entries': (dict(data=np.ma.masked_less(PICTURES, .1)), 'images hold masked entries'),
    'a sparse tensor': (dict(data=torch.eye(40).to_sparse()), 'must be a dense tensor with values'),
    'a tensor without values': (dict(data=torch.zeros(40, 6, device='meta')), 'must be a dense tensor'),
    'a column of labels': (dict(labels=CLASSES[:, None]), 'take .reshape(-1)'),
    'labels that lack': (dict(labels=[None] * 40), 'labels hold missing entries'),
    'a number as clients': (dict(clients=5), 'must have one entry for each of 40 rows'),
    'more clients than ids': (dict(clients=CLASSES, n_clients=7), '7 clients for 4 ids'),
    'clients, and a partition': (dict(clients=CLASSES, partition='dirichlet'), 'leave one out'),
    'a share as test': (dict(test=.2), 'test must be a pair'),
    'three test arrays': (dict(test=(PICTURES, CLASSES, CLASSES)), 'test must be a pair'),
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
    'a model of pictures': (dict(DEALT, data=VECTORS, model='cnn'), 'these data are feature vectors'),
    'views of vectors': (dict(DEALT, data=VECTORS, augmentation='simclr'), 'is about square images'),
    'turned vectors': (dict(DEALT, data=VECTORS, shift='rotation'), "use shift='none'"),
    'a number as method': (dict(method=3), 'a method is a name such as'),
    'a method that fails': (dict(method=fails), "the method 'fails' fails in test_bad_inputs.py, line"),
    'a method of nothing': (dict(method=lambda: None), 'returns a Method, got NoneType'),
}


@pytest.mark.parametrize('case', SIMULATIONS)
def test_a_simulation_is_refused(case):
    given, says = SIMULATIONS[case]
    given = dict(method='fedavg', data=PICTURES, labels=CLASSES) | given
    with pytest.raises(ValueError) as refused: simulate(**given)
    assert says in str(refused.value)


SWEEPS = {
    'no method': (dict(names=[]), 'at least one method'),
    'a value alone': (dict(grid={'optimiser.lr': .1}), 'write [0.1]'),
    'a word alone': (dict(grid={'beginning': 'own'}), "write ['own']"),
    'no seeds': (dict(seeds=0), 'seeds must be at least 1'),
    'a negative budget': (dict(budget=-1), 'budget must be at least 0'),
    'a share above 1': (dict(validation=2), 'validation must lie in [0, 1)'),
}


@pytest.mark.parametrize('case', SWEEPS)
def test_a_sweep_is_refused(case, tmp_path):
    given, says = SWEEPS[case]
    given = dict(names=['fedavg'], grid={'optimiser.lr': [.1, .2]}, store=Store(tmp_path)) | given
    with pytest.raises(ValueError) as refused: sweep(**given)
    assert says in str(refused.value)


TRAININGS = named([
    (['fedavg'], {}, "made with Run.of('fedavg', ...), got 'fedavg'"),
    ('fedavg', {}, 'made with Run.of'),
    ([None], {}, 'got None'),
    *[([], {name: -1}, f'{name} must be at least 0') for name in ('jobs', 'minutes', 'checkpoint')],
    ([], dict(minutes=math.nan), 'minutes must be at least 0'),
    ([], dict(device='gpu'), "must be 'cpu' or 'cuda'"),
])


@pytest.mark.parametrize('runs, options, says', TRAININGS)
def test_a_training_is_refused(runs, options, says, tmp_path):
    with pytest.raises(ValueError) as refused: workers.train_all(runs, tmp_path, **options)
    assert says in str(refused.value)


@pytest.mark.parametrize('name', ['two words', '', 'a(b)', 3, None, 'a,b', 'a=b'])
def test_a_name_that_could_not_be_asked_for(name):
    with pytest.raises(ValueError, match='is called by a word'):
        METHODS.add(name, title='x', family='averaging', owner='shared')


# --- the command

ONE = ('run', '--method', 'fedavg')
SWEEP = ('sweep', '--method', 'fedavg', '--grid')
COMMANDS = named([
    (('run', '--method', 'fedavgg'), "did you mean 'fedavg'?"),
    (('run', '--method', ''), 'method is empty'),
    ((*ONE, '--data', ''), 'data is empty'),
    ((*ONE, '--partition', ''), 'partition is empty'),
    ((*ONE, '--data', 'cifar'), "unknown dataset 'cifar'"),
    ((*ONE, '--set', 'method=moon'), 'the method is what --method names'),
    ((*ONE, '--set', 'n_rounds'), 'write --set name=value'),
    ((*ONE, '--set', 'n_rounds='), 'n_rounds is empty'),
    ((*ONE, '--set', '=3'), "a run has no setting ''"),
    ((*ONE, '--set', 'rounds=3'), "no setting 'rounds'"),
    ((*ONE, '--set', 'n_rounds=3', '--set', 'n_rounds=4'), 'n_rounds is given twice'),
    ((*ONE, '--set', 'n-rounds=3', '--set', 'n_rounds=4'), 'n_rounds is given twice'),
    ((*ONE, '--data', 'digits', '--set', 'data=digits'), 'data is given twice'),
    ((*ONE, '--set', 'n_rounds=0'), 'n_rounds must be at least 1'),
    ((*ONE, '--set', 'n_rounds=many'), 'n_rounds must be like 30 (int)'),
    ((*ONE, '--set', 'optimiser=adam(lr=0.1, lr=0.2)'), 'gives lr twice'),
    ((*ONE, '--set', 'optimiser=sgd(momentum=1.5)'), 'momentum must lie in [0, 1)'),
    ((*ONE, '--set', 'augmentation=simclr(flip=2.0)'), 'flip must lie in [0, 1]'),
    ((*ONE, '--set', 'seed=-1'), 'seed must lie in'),
    ((*ONE, '--partition', 'dirichlet(minimum=5000)'), 'cannot have 5000 images each'),
    ((*ONE, '--partition', 'dirichlet(test_share=0.0)'), 'no client has test images'),
    ((*ONE, '--partition', 'pathological(classes=20)'), 'cannot hold 20 of 10 classes'),
    ((*ONE, '--set', 'n_clients=100000'), 'ask for at most 1352'),
    ((*ONE, '--data', 'digits(side=8)'), 'too small for two 5x5 stages'),
    ((*ONE, '--device', 'gpu'), "must be 'cpu' or 'cuda'"),
    ((*ONE, '--ray', 'local'), "Ray is not installed: pip install 'fedcl_repro[ray]'"),
    ((*ONE, '--executor', 'ray'), 'Ray is not installed'),
    ((*ONE, '--ray', 'local', '--log', 'csv:curves'), 'leave it out with --ray'),
    ((*ONE, '--run-cpus', '2'), 'add --ray ADDRESS'),
    ((*ONE, '--store', '/dev/null'), 'name another one with --store'),
    ((*ONE, '--store', '/proc/nowhere'), 'name another one with --store'),
    ((*ONE, '--store', '~nobody_of_this_name/runs'), 'no home folder is known'),
    ((*ONE, '--data-root', '~nobody_of_this_name/data'), 'no home folder is known'),
    ((*ONE, '--data', 'svhn', '--data-root', '/dev/null'), 'SVHN is not there'),
    ((*ONE, '--save'), '--save only for experiments'),
    ((*ONE, '--profile', 'lite'), '--profile only for experiments'),
    (('run', 'fedcosr/fig8', '--data', ''), '--data changes a single run'),
    (('run', 'fedcosr/fig8', '--set', 'seed=1'), '--set changes a single run'),
    (('run', 'fedcosr/fig88'), "did you mean 'fedcosr/fig8"),
    (('run', 'fedcsor'), "unknown paper 'fedcsor'"),
    (('run', 'fedcosr/fig4'), 'nothing to train'),
    (('run', 'fedcosr/fig8', '--note', 'x'), 'add --save'),
    (('run', 'a.toml', '--all'), 'leave --all out'),
    (('run', 'a.toml', 'fedcosr'), 'a.toml says what is trained: leave other names out'),
    (('run', 'a.toml', '--profile', 'lite'), 'leave --profile out'),
    ((*ONE, 'a.toml'), 'names of experiments only for experiments'),
    ((*ONE, '--executor', 'lop'), "unknown executor 'lop' (did you mean 'loop'?)"),
    ((*ONE, '--method', 'moon'), '`fedcl compare fedavg moon` trains and compares several'),
    (('compare', 'fedavg', 'moon', '--set', 'seed=1'), 'seed cannot be set'),
    (('compare', 'fedavg', 'fedavg'), 'FedAvg is named twice'),
    (('compare', 'fedavg'), 'a comparison needs two methods, got 1'),
    (('compare', 'fedavg', 'moon', '--out', 'curves.txt'), 'its name must end in one of .svg, .png, .pdf'),
    (('list', 'methods', 'fedavgg'), "did you mean 'fedavg'?"),
    (('run', 'fedcosr/fig4', '--dry'), 'nothing to train'),
    (('reproduce', 'fedcosr/fig4', '--out', '/dev/null'), 'name another one with --out'),
    (('reproduce', 'fedcosr/fig4', '--out', '~nobody_of_this_name/a'), 'no home folder is known'),
    (('reproduce', 'fedcosr/tabel2'), "did you mean 'fedcosr/table2'?"),
    ((*ONE, '--log', 'csv:/dev/null'), 'name another one with --log'),
    ((*ONE, '--metrics', 'no'), "unknown metric 'no'"),
    ((*ONE, '--validation', '1'), 'validation must lie in [0, 1)'),
    ((*ONE, '--use', 'none.py'), 'no such file'),
    (('show', 'fedcosr/fig4', '--out', 'curves.txt'), 'its name must end in one of .svg, .png, .pdf'),
    (('show', 'fedcosr/fig4', '--figure', '.'), 'is a folder: name a file with --figure'),
    (('show', 'fedcosr/fig4', '--figure', '/proc/none/a.png'), 'name another one with --figure'),
    (('docs', '--notebooks', '/dev/null'), 'name a new folder'),
    (('flower', '/dev/null', '--method', 'fedavg'), 'name another one with FOLDER'),
    (('flower', 'app', '--method', 'fedavgg'), "did you mean 'fedavg'?"),
    (('flower', 'app', '--method', 'fedavg', '--clients', '/dev/null'), 'name another one with --clients'),
    (('sweep', '--method', 'fedavg', '--grid', 'lr=1'), "has a setting 'lr'"),
    (('sweep', '--method', 'fedavg', '--grid', 'optimiser.lr'), 'write NAME=VALUE,VALUE'),
    (('sweep', '--method', 'fedavg', '--grid', 'optimiser.lr=-1'), 'lr must be at least 0'),
    (('sweep', '--method', 'fedavg', '--grid', 'n_rounds=0'), 'n_rounds must be at least 1'),
    (('run', 'none.toml'), 'cannot read the study'),
    ((*ONE, '--store', 'a\0b'), 'holds a character of number 0'),
    ((*ONE, '--log', 'csv:a\0b'), 'holds a character of number 0'),
    (('run', 'a\0b.toml'), 'holds a character of number 0'),
    (('list', 'datasets', '--data-root', '/dev/null'), 'is no folder: name one with --data-root'),
    ((*ONE, '--set', 'metrics=auk'), "unknown metric 'auk' (did you mean 'auc'?)"),
    ((*ONE, '--metrics', 'auc', 'auc'), 'metrics name auc twice'),
    ((*ONE, '--partition', 'by_column'), "has no column 'client'"),
    ((*ONE, '--set', 'data=3'), 'cannot read'),
    ((*ONE, '--use', '.'), 'no such file'),
    ((*ONE, '--use', '/dev/zero'), 'no such file'),
    (('show', 'fedcosr'), "'fedcosr' is a paper: name one of its artifacts, fedcosr/table2"),
    (('show', '../x'), 'unknown experiment'),
    (('docs', '--notebooks', str(NOTEBOOKS/'copy')), 'lies among the notebooks themselves'),
    (('flower', 'app', '--method', 'fedavg', '--clients', 'app/data'), 'lies in the app, which all nodes'),
    ((*SWEEP, 'optimiser.lr=0.1,0.1'), 'gives optimiser.lr the value 0.1 twice'),
    ((*SWEEP, 'optimiser.lr=,'), "gives optimiser.lr the value '' twice"),
    ((*SWEEP, 'optimiser.lr=nan'), 'lr must be like 0.003 (float)'),
    ((*SWEEP, 'seed=1,2'), 'seed cannot be in the grid'),
    ((*SWEEP, 'validation=0.1,0.2'), 'validation cannot be in the grid'),
    ((*SWEEP, 'method=moon'), "has a setting 'method'"),
    ((*SWEEP, 'optimiser.=1'), "has no setting ''"),
    ((*SWEEP, 'n_rounds=2', '--set', 'seed=3'), 'say with `seeds` how many'),
    ((*SWEEP, 'n_rounds=2', '--set', 'n_rounds=3'), 'n_rounds is in the grid and given for all trials'),
    ((*SWEEP, 'n_rounds=2', '--method', 'fedavg'), 'a method is named twice'),
    ((*SWEEP, 'n_rounds=2', '--validation', '0'), 'validation must be above 0'),
    ((*SWEEP, 'n_rounds=2', '--budget', '9'), 'use budget=1'),
])


@pytest.mark.parametrize('argv, says', COMMANDS)
def test_the_command_refuses(argv, says, tmp_path, monkeypatch, capsys):
    "One line, exit code 2, and no file."
    monkeypatch.setenv('FEDCL_STORE', str(tmp_path/'runs'))
    monkeypatch.chdir(tmp_path)
    monkeypatch.setitem(sys.modules, 'ray', None) # absent
    assert cli.main(list(argv)) == 2
    said = capsys.readouterr().err.strip().splitlines()
    assert says in said[-1] and said[-1].startswith('fedcl: ')
    assert not [p for p in tmp_path.rglob('*') if p.is_file() and p.suffix != '.lock']


def test_flower_writes_an_app_and_the_data_of_its_clients(tmp_path):
    app, clients = tmp_path/'app', tmp_path/'clients'
    run = '--method', 'fedcosr', '--set', 'n_clients=3'
    assert cli.main(['flower', str(app), *run, '--clients', str(clients)]) == 0
    assert (app/'pyproject.toml').exists() and len(list(clients.iterdir())) == 3


OPTIONS = named([
    (('run', '--seeds', '-1'), 'must be a whole number, at least 0'),
    (('run', '--minutes', 'nan'), 'must be a number, at least 0.0'),
    (('run', '--minutes', '-1'), 'must be a number, at least 0.0'),
    (('run', '--jobs', '1.5'), 'must be a whole number'),
    (('run', '--checkpoint', '-1'), 'must be a number, at least 0.0'),
    (('run', '--checkpoint', 'often'), 'must be a number'),
    (('run', '--profile', 'tiny'), 'invalid choice'),
    (('run', '--method'), 'requires an argument'),
    (('list', 'method'), 'invalid choice'),
    (('list', '--json'), "Missing argument 'LIST'"),
    (('train',), 'No such command'),
    (('flower', 'app', '--method', 'fedavg', '--method', 'moon'), '--method is given twice'),
    ((*ONE, '--data', 'digits', '--data', 'mnist'), '--data is given twice'),
    ((*ONE, '--store', 'a', '--store', 'b'), '--store is given twice'),
    ((*ONE, '--validation', 'some'), 'must be a number, from 0.0 to 1.0'),
    ((*ONE, '--state-memory', 'nan'), 'must be a number'),
    ((*ONE, '--device', ''), '--device is empty'),
    *[((*ONE, f'--{name}', ''), f'--{name} is empty') for name in ('store', 'data-root', 'ray')],
    (('reproduce', '--out', ''), '--out is empty'),
    (('docs', '--out', ''), '--out is empty'),
    (('show', '--figure', ''), '--figure is empty'),
    (('docs', '--notebooks', ''), '--notebooks is empty'),
    *[((verb,), f'`fedcl {verb}` is `{new}` now') for verb, new in cli.EARLIER.items()],
    (('flower', '', '--method', 'fedavg'), 'folder is empty'),
    (('sweep', '--method', 'fedavg', '--grid', 'n_rounds=1', '--seeds', '0'), 'at least 1'),
    (('node', 'app', 'data', '--client', '-1'), 'at least 0'),
])


@pytest.mark.parametrize('argv, says', OPTIONS)
def test_an_option_is_refused(argv, says, capsys):
    with pytest.raises(SystemExit, match='2'): cli.main(list(argv))
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
