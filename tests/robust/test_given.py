"""What a user gives is what is used: the test set, the network, pictures and arrays, and a run's identity."""
import copy
import functools
import json
import os
import pickle
import random
import subprocess
import sys
import types
import warnings
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from PIL import Image

from fedcl_repro import cli, simulate
from fedcl_repro.data.datasets import DATASETS, content_of, load
from fedcl_repro.data.natural import SHIFTS
from fedcl_repro.data.partition import PARTITIONS, Shards
from fedcl_repro.user_code import (
    UnknownContent, entry_digest, packed, source_digest, unpack, use_files)
from fedcl_repro.core import Register, Spec
from fedcl_repro.federation.fed import toy
from fedcl_repro.federation.loop import Loop
from fedcl_repro.federation.method import METHODS, NET, Method, Sweep, build_method, ce, send, stages_of, take
from fedcl_repro.data.own_data import client_column, own_dataset, own_inputs, own_labels, read_own
from fedcl_repro.federation import rounds
from fedcl_repro.parts.models import Dropout
from fedcl_repro.evidence.experiments import PAGE_OPTIONS, read_option
from fedcl_repro.runs.run import (
    Run, check_federation, dataset, methods, run_id, shards, without_effect)
from fedcl_repro.runs.session import precision_switches, run_precision
from fedcl_repro.runs.simulate import data_spec, fitting, model_spec, named_data
from fedcl_repro.runs.sweep import sweep

DIGITS = load('digits')
X, Y = DIGITS.x[:160], DIGITS.y[:160]
X_TEST, Y_TEST = DIGITS.x[160:200], DIGITS.y[160:200]
WHOSE = np.arange(160) // 40
SMALL = dict(n_clients=3, n_rounds=1, partition='quantity(minimum=8)')


def told(make):
    "What a call returns, and its warnings as one text."
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter('always')
        found = make()
    return found, ' '.join(str(w.message) for w in said)


# --- 1. the test set

def as_arrays(folder): return data_spec(X, Y, (X_TEST, Y_TEST))
def as_object(folder): return data_spec(replace(DIGITS, x=DIGITS.x[:200], y=DIGITS.y[:200], n_train=160))


def as_file(folder):
    np.savez(folder/'own.npz', x_train=X, y_train=Y, x_test=X_TEST, y_test=Y_TEST)
    return named_data(folder/'own.npz')


def as_short_file(folder):
    np.savez(folder/'own.npz', x=X, y=Y, x_test=X_TEST, y_test=Y_TEST, client=WHOSE)
    return named_data(folder/'own.npz')


def as_folder(folder):
    for part, x, y in (('train', X, Y), ('Test', X_TEST, Y_TEST)):
        for i, (image, c) in enumerate(zip(x, y)):
            (folder/part/str(c)).mkdir(parents=True, exist_ok=True)
            Image.fromarray(image[0]).save(folder/part/str(c)/f'{i:03}.png')
    return named_data(folder)


def with_clients(folder): return data_spec(X, Y, (X_TEST, Y_TEST), clients=WHOSE)
def with_masks(folder): return data_spec(X, Y, (X_TEST, Y_TEST), clients=[WHOSE == i for i in range(4)])


def with_rows(folder):
    return data_spec(X, Y, (X_TEST, Y_TEST), clients=[np.flatnonzero(WHOSE == i) for i in range(4)])


def registered(folder):
    def mine(root): return dict(x_train=X, y_train=Y, x_test=X_TEST, y_test=Y_TEST)
    mine.__module__ = '__main__'
    DATASETS.add('mine_here', title='mine', n_classes=10, fidelity='mine', embedded=True)(mine)
    return Spec('mine_here')


GIVEN_TESTS = [as_arrays, as_object, as_file, as_short_file, as_folder, with_clients, with_masks, with_rows,
               registered]
SPLITS = [None, 'quantity(minimum=2)', 'dirichlet(concentration=9.0)', 'by_column',
          'random_pathological(classes=5)',
          'equal_dirichlet(concentration=9.0)', 'moon_dirichlet(minimum=2)']


def run_on(data, partition, **more):
    settings = more if partition is None else dict(more, partition=partition)
    return Run.of('fedavg', data=data, **(dict(n_clients=4) | fitting(data, settings)))


@pytest.mark.parametrize('partition', SPLITS, ids=str)
@pytest.mark.parametrize('give', GIVEN_TESTS, ids=lambda f: f.__name__)
def test_a_given_test_set_is_for_testing(give, partition, tmp_path):
    data = give(tmp_path)
    columns = dataset(data, str(tmp_path)).columns
    if partition == 'by_column' and not columns: pytest.skip('there are no clients to go by')
    split = shards(run_on(data, partition, validation=.1))
    assert all((r < 160).all() for r in (*split.train, *split.valid))
    assert all(r.tolist() == list(range(160, 200)) for r in split.test)
    DATASETS.pop('mine_here', None)


def test_ids_of_test_rows_say_who_is_tested_on_them():
    data = data_spec(X, Y, (X_TEST, Y_TEST), clients=np.append(WHOSE, np.arange(40) // 10))
    split = shards(run_on(data, None))
    assert [r.tolist() for r in split.test] == [list(range(160 + 10*i, 170 + 10*i)) for i in range(4)]
    assert [len(r) for r in split.train] == [40] * 4


def test_a_test_set_is_dealt_out_by_name_alone():
    data = as_arrays(None)
    assert sum(map(len, shards(run_on(data, 'quantity(minimum=2, protocol="pooled")')).test)) < 60
    for asked in ('quantity(protocol="personal")', 'dirichlet(protocol="personal", concentration=9.0)'):
        with pytest.raises(ValueError, match="protocol='pooled'"): shards(run_on(data, asked))
    with pytest.raises(ValueError, match='40 test images'):
        check_federation(Run.of('fedavg', data=data, n_clients=4))


def test_named_data_are_dealt_as_papers_deal_them():
    split = shards(Run.of('fedavg', n_clients=4))
    assert max(r.max() for r in split.train) >= DIGITS.n_train


# --- 2. the network

def body(*more): return nn.Sequential(nn.Flatten(), nn.Linear(256, 8), *more)


class Net(nn.Module):
    "A network as a user writes it; `forward` says what the subclasses change."
    def __init__(self, **parts):
        super().__init__()
        self.body, self.head = body(), nn.Linear(8, 10)
        for k, part in parts.items(): setattr(self, k, part)


class WithRelu(Net):
    def forward(self, x): return self.head(torch.relu(self.body(x)))


class WithTemperature(Net):
    def forward(self, x): return self.head(self.body(x)) / .5


class OfTwo(Net):
    def forward(self, x):
        z = self.body(x)
        return z, self.head(z)


class OnlyInTraining(Net):
    def forward(self, x): return self.head(self.body(x) * (2 if self.training else 1))


class Skips(Net):
    def __init__(self):
        super().__init__()
        self.extra = nn.Linear(256, 10)

    def forward(self, x): return self.head(self.body(x)) + self.extra(x.flatten(1))


class OfMasks(Net):
    def forward(self, x, mask): return self.head(self.body(x) * mask)


class StaysInEval(Net):
    def train(self, mode=True): return super().train(False)


class Drawing(nn.Module):
    "A layer that draws or remembers what the library does not know of."
    def __init__(self, how):
        super().__init__()
        self.how, self.calls = how, 0

    def forward(self, x):
        self.calls += 1
        return self.how(self, x)


def functional(m, x): return F.dropout(x, .5, m.training)
def noise(m, x): return x + torch.randn(x.shape[1])
def rare(m, x): return x if random.random() < .99 else 0 * x
def numpy_noise(m, x): return x * float(np.random.random())
def memory(m, x): return x * m.calls
def feature_noise(m, x): return F.feature_alpha_dropout(x[..., None], .5, m.training)[..., 0]
def only_in_eval(m, x): return x if m.training else x + torch.rand_like(x)


def shared_weights():
    layer = nn.Linear(8, 8)
    return Net(body=body(layer), head=nn.Sequential(layer, nn.Linear(8, 10)))


def half_in_eval():
    net = Net(body=body(nn.BatchNorm1d(8)))
    net.body[2].eval()
    return net


def drawing(how): return Net(body=body(Drawing(how)))


REFUSED_NETWORKS = {
    'a ReLU in forward': (WithRelu, 'WithRelu.forward'),
    'a temperature in forward': (WithTemperature, 'WithTemperature.forward'),
    'forward gives two': (OfTwo, 'OfTwo.forward'),
    'forward of training alone': (OnlyInTraining, 'OnlyInTraining.forward'),
    'a branch beside the parts': (Skips, 'Skips.forward'),
    'forward of two arguments': (OfMasks, 'OfMasks.forward fails'),
    'a train() of its own': (StaysInEval, 'has a method train()'),
    'a norm in eval mode': (half_in_eval, 'are in eval mode'),
    'one weight in two parts': (shared_weights, 'are one parameter'),
    'a lazy layer': (lambda: Net(body=nn.Sequential(nn.Flatten(), nn.LazyLinear(8))), 'has no values yet'),
    'complex weights': (lambda: Net(body=body(nn.Linear(8, 8, dtype=torch.cfloat))), 'is complex'),
    'a norm that counts': (lambda: Net(body=body(nn.BatchNorm1d(8, momentum=None))), 'momentum=None'),
    **{f'draws: {f.__name__}': (functools.partial(drawing, f), 'global random generator')
       for f in (functional, noise, rare, numpy_noise, feature_noise, only_in_eval)},
    'a memory': (lambda: Net(body=body(Drawing(memory))), 'body.2.calls changes in forward'),
    'dropout of torch': (lambda: Net(body=body(nn.Dropout(.5))), 'body.2 (Dropout) draws from a global'),
    'a spectral norm': (lambda: Usual(body=body(nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8)))),
                        'belongs to no network'),
}


def rehearsed(model, **settings):
    "A run with a model, checked as where it starts."
    data = data_spec(X, Y)
    check_federation(Run.of('fedavg', data=data, **fitting(data, SMALL | settings, model, kept=False)))


@pytest.mark.parametrize('as_function', [False, True], ids=['module', 'function'])
@pytest.mark.parametrize('case', REFUSED_NETWORKS)
def test_a_network_that_would_not_be_trained_as_written_is_refused(case, as_function):
    make, says = REFUSED_NETWORKS[case]
    model = make() if not as_function else lambda shape, n: make()
    with pytest.raises(ValueError) as refused: rehearsed(model)
    assert says in str(refused.value)


class Usual(Net):
    def forward(self, x): return self.head(self.body(x))


ACCEPTED_NETWORKS = dict(
    usual=Usual,
    without_forward=Net,
    in_eval=lambda: Usual().eval(),
    dropout=lambda: Net(body=body(Dropout(8, .5))),
    dropout_of_nothing=lambda: Net(body=body(nn.Dropout(0.))),
    norm=lambda: Usual(body=body(nn.BatchNorm1d(8))),
    a_tuple=lambda: (body(), nn.Linear(8, 10)),
    a_dict=lambda: nn.ModuleDict(dict(body=body(), head=nn.Linear(8, 10))),
)


@pytest.mark.parametrize('case', ACCEPTED_NETWORKS)
def test_a_usual_network_is_accepted(case):
    for model in ACCEPTED_NETWORKS[case](), lambda shape, n: ACCEPTED_NETWORKS[case]():
        if isinstance(model, tuple): continue
        with warnings.catch_warnings(action='error'): rehearsed(model)


def freeze(*names):
    net = Net(body=body(nn.BatchNorm1d(8), nn.Linear(8, 8)))
    for name, p in net.named_parameters():
        if name.startswith(names): p.requires_grad_(False)
    return net


@pytest.mark.parametrize('method', ['fedavg', 'fedper', 'fedcosr', 'ditto', 'moon'])
@pytest.mark.parametrize('names', [('body.',), ('body.1',), ('body.1', 'head.weight')], ids=str)
def test_frozen_weights_stay_as_they_are(method, names):
    net = freeze(*names)
    start = {k: p.clone() for k, p in net.named_parameters()}
    more = dict(augmentation='crop_flip') if method == 'moon' else {}
    result = simulate(method, X, Y, model=net, **SMALL, **more)
    for client in range(2):
        now = dict(result.model(client).named_parameters())
        for k, p in start.items():
            same = [v for name, v in now.items() if name == k or name == 'field_' + k.replace('.', '__')]
            if k.startswith(names): assert all(torch.equal(v, p) for v in same), k
            elif method == 'fedavg': assert not torch.equal(same[0], p), k


def test_all_frozen_is_refused():
    with pytest.raises(ValueError, match='has nothing|no parameter'):
        simulate('fedavg', X, Y, model=freeze('body.', 'head.'), **SMALL)


def test_models_and_the_callers_module_share_nothing():
    net = Usual(body=body(nn.BatchNorm1d(8)))
    before = copy.deepcopy(net.state_dict())
    result = simulate('fedavg', X, Y, model=net, **SMALL)
    first, second = result.model(0), result.model(0)
    for p in first.parameters(): p.data.zero_()
    assert all(torch.equal(net.state_dict()[k], v) for k, v in before.items()) and net.training
    assert net.body[2].num_batches_tracked is not None
    for module in second, net: assert any(p.abs().sum() > 0 for p in module.parameters())
    for p in net.parameters(): p.data.zero_()
    assert any(p.abs().sum() > 0 for p in result.model(1).parameters())


def test_a_function_that_returns_one_module_gives_copies():
    one = Usual()
    before = copy.deepcopy(one.state_dict())
    def build(shape, n_classes): return one
    result = simulate('fedavg', X, Y, model=build, **SMALL)
    again = simulate('fedavg', X, Y, model=build, **SMALL)
    assert all(torch.equal(one.state_dict()[k], v) for k, v in before.items())
    assert result.rows.value.tolist() == again.rows.value.tolist()


def test_a_module_has_its_own_beginning():
    with pytest.raises(ValueError, match="beginning='own'"):
        simulate('fedavg', X, Y, model=Usual(), beginning='own', **SMALL)


# --- 3. pictures and arrays

GREY = np.arange(40 * 64).reshape(40, 8, 8) % 256
CLASSES = np.arange(40) % 4
ARRAYS_TOLD = {
    'bytes of 0 and 1': (dict(x=(GREY > 99).astype(np.uint8)), 'go from 0 to 1'),
    'whole numbers of 0 and 1': (dict(x=(GREY > 99).astype(np.int64)), 'go from 0 to 1'),
    'bytes up to 16': (dict(x=(GREY // 16).astype(np.uint8)), 'value_range=(0, 15)'),
    'whole floats up to 16': (dict(x=(GREY // 16).astype(float)), 'value_range=(0, 15)'),
    'percent': (dict(x=GREY * 100 // 255), 'value_range=(0, 100)'),
    'floats divided twice': (dict(x=GREY / 255 / 255), 'go from 0 to 0.003'),
    'a class of the test alone': (dict(test=(GREY, CLASSES + 1)), 'the test part has images of 1 classes: 4'),
    'a class of training alone': (dict(test=(GREY, CLASSES % 3)), 'training part has images of 1 classes: 3'),
    'a class without images': (dict(y=CLASSES * 2), '3 of 7 classes have no images: 1, 3, 5'),
    'a class of words': (dict(y=['cat', 'dog'] * 20, test=(GREY, ['cat'] * 40)), 'of 1 classes: dog'),
}


@pytest.mark.parametrize('case', ARRAYS_TOLD)
def test_arrays_are_warned_of(case):
    given, says = ARRAYS_TOLD[case]
    given = dict(x=GREY.astype(np.uint8), y=CLASSES) | given
    assert says in told(lambda: own_dataset(**given))[1]


@pytest.mark.parametrize('x', [GREY, GREY.astype(np.uint8), GREY / 255, GREY / 127.5 - 1, GREY > 99,
                               np.full((40, 8, 8), 7)], ids=str)
def test_usual_arrays_are_not_warned_of(x):
    assert told(lambda: own_dataset(x, CLASSES))[1] == ''


@pytest.mark.parametrize('dtype', [np.uint8, np.int64, float])
def test_a_range_that_is_given_is_used(dtype):
    found, said = told(lambda: own_inputs((GREY // 16).astype(dtype), value_range=(0, 15)))
    assert (found[:, 0] == GREY // 16 * 17).all() and not said
    with pytest.raises(ValueError, match='must lie in'): own_inputs(GREY.astype(dtype), value_range=(0, 15))


def test_both_parts_have_one_range():
    "Floats in [-1, 1] whose test part happens to have none below 0 are not read as [0, 1]."
    x = GREY / 127.5 - 1
    bright = np.abs(x)
    assert (own_dataset(x, CLASSES, test=(bright, CLASSES)).x[40:] >= 127).all()
    mixed = own_dataset(GREY.astype(np.uint8), CLASSES, test=(GREY / 255, CLASSES))
    assert (mixed.x[:40] == mixed.x[40:]).all()


def test_labels_keep_their_names():
    ds = own_dataset(GREY, ['dog', 'cat', 'cat', 'emu'] * 10)
    assert (ds.classes, ds.y[:4].tolist()) == (('cat', 'dog', 'emu'), [1, 0, 0, 2])
    for y in (CLASSES + 1, CLASSES + 3):
        with pytest.raises(ValueError, match='labels begin at'): own_labels(y, 40)
    assert own_labels(CLASSES + 1, 40, 5)[1] == 5


def test_a_copy_is_trained_on():
    x, y = GREY.astype(np.uint8), CLASSES.copy()
    spec = data_spec(x, y)
    x[:], y[:] = 0, 0
    assert dataset(spec, '').x.any() and dataset(spec, '').y.any()
    ds = own_dataset(GREY, CLASSES)
    assert data_spec(ds) != data_spec(replace(ds, x=255 - ds.x)) # whatever fingerprint it claims


def test_client_ids():
    assert client_column(['a', 'b'], 3, 2).tolist() == [0, 1, -1]
    assert client_column([[True, False], [False, True]], 3, 2).tolist() == [0, 1, -1]
    ds = own_dataset(X, Y, clients=[range(80), range(80, 160), []])
    settings = fitting(data_spec(ds), {})
    assert settings['n_clients'] == 3
    split = shards(Run.of('fedavg', data=data_spec(ds), **settings))
    assert [len(r) for r in split.train] == [60, 60, 0]


def picture(value, mode='L', size=(8, 8)): return Image.new(mode, size, value)


def save(folder, *names, image=None):
    for name in names:
        (folder/name).parent.mkdir(parents=True, exist_ok=True)
        if not (folder/name).suffix: (folder/name).mkdir(exist_ok=True)
        elif (folder/name).suffix == '.txt': (folder/name).write_text('hello')
        else: (image or picture(200)).convert('L').save(folder/name)


FOLDERS = {
    'another format': (['a/1.bmp', 'b/1.tif', 'b/2.webp'], 7, ('a', 'b'), ''),
    'capitals': (['a/1.PNG', 'a/2.JPEG'], 6, ('a', 'b'), ''),
    'no picture': (['a/notes.txt'], 4, ('a', 'b'), 'not read below'),
    'a file beside the classes': (['labels.txt', 'x.png'], 4, ('a', 'b'), 'labels.txt, x.png'),
    'a subfolder': (['a/more/1.png'], 4, ('a', 'b'), 'a/more/'),
    'a hidden folder': (['.ipynb_checkpoints/1.png'], 4, ('a', 'b'), '.ipynb_checkpoints/'),
    "a Mac's folder": (['__MACOSX/1.png', 'a/._1.png'], 4, ('a', 'b'), '__MACOSX/, a/._1.png'),
    'an empty folder': (['c'], 4, ('a', 'b'), 'c/'),
    'a folder of texts': (['c/1.txt'], 4, ('a', 'b'), 'c/, c/1.txt'),
    'a class called train': (['train/1.png'], 5, ('a', 'b', 'train'), ''),
    'numbers': (['2/1.png', '10/1.png'], 6, ('10', '2', 'a', 'b'), ''),
}


@pytest.mark.parametrize('case', FOLDERS)
def test_a_folder_is_read_or_named(case, tmp_path):
    more, n, classes, says = FOLDERS[case]
    save(tmp_path, 'a/0.png', 'b/0.png', 'a/00.png', 'b/00.png', *more, image=picture(0))
    save(tmp_path, 'a/0.png', image=picture(255))
    ds, said = told(lambda: read_own(tmp_path))
    assert (len(ds.y), ds.classes) == (n, classes)
    assert says in said and (says or not said)


PARTS = {
    'val beside train and test': (['val/a/0.png'], ('a', 'b'), 'not read below', 'val/'),
    'a class of the test alone': (['test/c/0.png'], ('a', 'b', 'c'), 'only the test part has images', ': c'),
    'a class of training alone': (['train/c/0.png'], ('a', 'b', 'c'), 'only the training part has', ': c'),
    'an empty class of the test': (['test/c'], ('a', 'b'), 'not read below', 'test/c/'),
}


@pytest.mark.parametrize('case', PARTS)
def test_parts_of_a_folder_are_read_or_named(case, tmp_path):
    more, classes, *says = PARTS[case]
    save(tmp_path, *[f'{part}/{c}/0.png' for part in ('train', 'test') for c in 'ab'], *more)
    ds, said = told(lambda: read_own(tmp_path))
    assert ds.classes == classes and all(s in said for s in says)
    assert all(c in ''.join(ds.classes) for c in 'ab') and ds.n_test == 2 + ('test/c/0.png' in more)


def test_numbered_classes_are_in_the_order_of_numbers(tmp_path):
    save(tmp_path, '2/0.png', '10/0.png')
    ds = read_own(tmp_path)
    assert (ds.classes, ds.y.tolist()) == (('2', '10'), [1, 0])


@pytest.mark.parametrize('names, says', [
    (['test/a/0.png', 'test/b/0.png', 'a/0.png'], "none called 'train'"),
    (['a/0.png', 'a/1.png'], 'one class alone'),
    (['a/b/0.png', 'c/d/0.png'], 'holds no pictures'),
])
def test_an_unclear_folder_is_refused(names, says, tmp_path):
    save(tmp_path, *names)
    with pytest.raises(ValueError, match=says): read_own(tmp_path)


def transparent(mode): # black ink in the alpha channel's upper half
    image = picture(0).convert(mode)
    alpha = np.zeros((8, 8), np.uint8)
    alpha[:4] = 255
    image.putalpha(Image.fromarray(alpha))
    return image


def by_key(mode):
    image = Image.fromarray(np.repeat([0, 9], 32).astype(np.uint8).reshape(8, 8)).convert(mode)
    return image, dict(transparency=9 if mode != 'RGB' else (9, 9, 9))


CLEAR = {
    'LA': lambda p: transparent('LA').save(p),
    'RGBA': lambda p: transparent('RGBA').save(p),
    'a grey key': lambda p: by_key('L')[0].save(p, **by_key('L')[1]),
    'a colour key': lambda p: by_key('RGB')[0].save(p, **by_key('RGB')[1]),
    'a palette': lambda p: transparent('RGBA').convert('P').save(p, transparency=0),
}


@pytest.mark.parametrize('case', CLEAR)
def test_transparency_is_laid_on_white(case, tmp_path):
    save(tmp_path, 'b/0.png', image=picture(0))
    (tmp_path/'a').mkdir()
    CLEAR[case](tmp_path/'a'/'0.png')
    ds, said = told(lambda: read_own(tmp_path))
    assert '1 of 2 pictures' in said and ds.x[0].max() == 255 and ds.x[1].max() == 0
    if case != 'a palette': assert ds.x[0][:, :4].max() == 0


def test_full_alpha_is_no_transparency(tmp_path):
    for c in 'ab':
        (tmp_path/c).mkdir()
        picture((40, 200, 90, 255), 'RGBA').save(tmp_path/c/'0.png')
    ds, said = told(lambda: read_own(tmp_path))
    assert ds.shape == (3, 8, 8) and 'transparent' not in said


@pytest.mark.parametrize('ending', ['jpg', 'png', 'tif', 'webp'])
@pytest.mark.parametrize('turn', [2, 3, 6, 8])
def test_pictures_are_upright(ending, turn, tmp_path):
    x = np.zeros((8, 8), np.uint8)
    x[:4, 4:] = 220
    stored = dict([(2, x[:, ::-1]), (3, x[::-1, ::-1]), (6, np.rot90(x)), (8, np.rot90(x, -1))])[turn]
    tags = Image.Exif()
    tags[274] = turn
    save(tmp_path, 'b/0.png')
    (tmp_path/'a').mkdir()
    Image.fromarray(np.ascontiguousarray(stored)).convert('RGB').save(tmp_path/'a'/f'0.{ending}', exif=tags)
    read = read_own(tmp_path).x[0].mean(0)
    assert read[:4, 4:].mean() > 150 > 60 > read[4:].mean()


def test_several_pictures_in_a_file_are_refused(tmp_path):
    save(tmp_path, 'a/0.png', 'b/0.png')
    picture(0).save(tmp_path/'a'/'1.gif', save_all=True, append_images=[picture(255)])
    with pytest.raises(ValueError, match='holds 2 pictures'): read_own(tmp_path)


# --- 4. identity

FACTOR, OPTIONS, TABLE = 1., dict(lr=1), np.zeros(3)


def reads_constant(): return FACTOR
def reads_options(): return OPTIONS['lr']
def reads_array(): return TABLE
def calls_reader(): return [reads_constant() for _ in range(2)]
def closes_over(value): return lambda: value
def by_default(value=1, *, other=2): return value, other
def loss_of(value): return Method(local=(Sweep(functools.partial(weighted, by=value), NET),))


def weighted(net, client, batch, by):
    loss, notes = ce(net, client, batch)
    return by * loss, notes


class Scaled(Net):
    def __init__(self, scale):
        super().__init__()
        self.scale, self.table = scale, {'power': scale}
        self.register_buffer('hidden', torch.tensor(float(scale)), persistent=False)


def changed_module(name, value):
    module = copy.deepcopy(nn.Sequential(nn.Linear(2, 2)))
    torch.nn.init.ones_(module[0].weight)
    torch.nn.init.ones_(module[0].bias)
    if name == 'attribute': module[0].scale = value
    if name == 'weight': module[0].bias.data[0] = value
    if name == 'frozen': module[0].bias.requires_grad_(value == 1)
    if name == 'hook': module.register_forward_hook(closes_over(value))
    if name == 'buffer': module.register_buffer('b', torch.tensor(float(value)), persistent=False)
    if name == 'dtype': module.to([torch.float32, torch.float64][value - 1])
    return module


def class_of(value):
    class Mine:
        power = value
        def __call__(self): return self.power
    return Mine


# name -> (what makes a value that uses 1 or 2), each with other content
CONTENTS = {
    'a closure': closes_over,
    'a closure in a closure': lambda v: closes_over(closes_over(v)),
    'an argument of a partial': lambda v: functools.partial(by_default, v),
    'a keyword of a partial': lambda v: functools.partial(by_default, other=v),
    'a default': lambda v: eval(f'lambda x={v}: x', globals()),
    'a keyword default': lambda v: eval(f'lambda *, x={v}: x', globals()),
    'a number in the code': lambda v: eval(f'lambda: {v}', globals()),
    'a number in a nested function': lambda v: eval(f'lambda: [{v} for _ in range(2)]', globals()),
    'a method': loss_of,
    'a share of a method': lambda v: Method(merge=take(['body.', 'head.'][v - 1])),
    'an upload': lambda v: Method(upload=send(['body.', 'head.'][v - 1])),
    'an attribute of an object': lambda v: SimpleNamespace(a=[v]),
    'a class': class_of,
    'an object of a class': lambda v: class_of(v)(),
    'a bound method': lambda v: class_of(v)().__call__,
    'a cached function': lambda v: functools.cache(closes_over(v)),
    'an attribute of a network': Scaled,
    'an array': lambda v: closes_over(np.array([v])),
    'a tensor': lambda v: closes_over(torch.tensor([v])),
    'a set': lambda v: closes_over({'a', 'b', v}),
    **{f'{k} of a module': functools.partial(changed_module, k)
       for k in ('attribute', 'weight', 'frozen', 'hook', 'buffer', 'dtype')},
}


@pytest.mark.parametrize('case', CONTENTS)
def test_content_decides_the_name(case):
    torch.manual_seed(0)
    make = CONTENTS[case]
    found = []
    for v in (1, 1, 2):
        torch.manual_seed(0)
        found.append(source_digest(make(v)))
    assert found[0] == found[1] != found[2]


@pytest.mark.parametrize('name, function, other', [
    ('FACTOR', reads_constant, 2.), ('FACTOR', calls_reader, 2.), ('OPTIONS', reads_options, dict(lr=2)),
    ('TABLE', reads_array, np.ones(3)), ('reads_constant', calls_reader, reads_options)])
def test_what_a_function_reads_counts(name, function, other, monkeypatch):
    before = source_digest(function)
    monkeypatch.setitem(globals(), name, other)
    assert source_digest(function) != before
    monkeypatch.undo()
    assert source_digest(function) == before


def test_words_do_not_count():
    def one(x):
        "A sentence."
        return x + 1 # a remark
    def other(x):
        """Another sentence."""

        return x + 1
    assert source_digest(one) == source_digest(other).replace('other', 'one')


@pytest.mark.parametrize('value', [np.random.default_rng(0), torch.Generator(), random.Random(0),
                                   (i for i in range(2)), open(os.devnull)], ids=str)
def test_what_cannot_be_compared_is_not_kept(value, tmp_path):
    def mine(): return Method(upload=lambda client: client if value else client)
    with pytest.raises(UnknownContent, match='cannot be compared'): source_digest(mine)
    with pytest.raises(ValueError, match='leave out the store'):
        simulate(mine, X, Y, store=tmp_path/'runs', **SMALL)
    assert not list(tmp_path.glob('runs/*/rows.csv'))


def test_without_a_store_it_is_trained_anew():
    chance = np.random.default_rng(0)
    def mine(): return Method(upload=lambda client: client if chance else {})
    assert len(simulate(mine, X, Y, **SMALL).rows)


OWN_FILE = '''
from fedcl_repro.federation.method import METHODS, Method, send, take
from {module} import {name}
@METHODS.add('mine_here', title='Mine', family='averaging', owner='shared')
def mine(): return Method(merge=take({use}))
'''
BESIDE = {
    'a constant': ('beside', 'PART', 'PART', 'beside.py', 'PART = {!r}'),
    'a function': ('beside', 'part', 'part()', 'beside.py', 'def part(): return {!r}'),
    'a class': ('beside', 'Part', 'Part().it', 'beside.py', 'class Part:\n    it = {!r}'),
    'a list': ('beside', 'PARTS', 'PARTS[0]', 'beside.py', 'PARTS = [{!r}]'),
    'a module of a package': ('package.inner', 'PART', 'PART', 'package/inner.py', 'PART = {!r}'),
    'a package': ('package', 'PART', 'PART', 'package/__init__.py', 'PART = {!r}'),
    'a module itself': ('package', 'inner', 'inner.PART', 'package/inner.py', 'PART = {!r}'),
    'a computed value': ('beside', 'PART', 'PART', 'beside.py', 'PART = "".join([{!r}])'),
    'a lazy import': ('late', 'part', 'part()', 'later.py', 'PART = {!r}'),
}


@pytest.mark.parametrize('case', BESIDE)
def test_a_file_beside_a_users_file_counts(case, tmp_path, monkeypatch):
    module, name, use, changed, text = BESIDE[case]
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv('FEDCL_USE', '')
    (tmp_path/'package').mkdir()
    (tmp_path/'package'/'__init__.py').touch()
    (tmp_path/'late.py').write_text('def part():\n    from later import PART\n    return PART')
    (tmp_path/'own_method_here.py').write_text(OWN_FILE.format(module=module, name=name, use=use))
    found = []
    try:
        for part in ('body.', 'body.', 'head.'): # equal sizes, within one second
            (tmp_path/changed).write_text(text.format(part))
            use_files([tmp_path/'own_method_here.py'])
            found.append(run_id(Run.of('mine_here')))
            taken = METHODS['mine_here'].make().merge({}, {'body.': 1, 'head.': 2})
            assert list(taken) == [part], 'the new text is used'
        assert found[0] == found[1] != found[2]
    finally:
        METHODS.pop('mine_here', None)
        mine = 'used_own_method_here', 'beside', 'package', 'late', 'later'
        for k in [k for k in sys.modules if k.split('.')[0] in mine]: del sys.modules[k]


def test_a_file_is_known_by_its_content(tmp_path):
    "Also within a session, with the size and the time of before."
    path, x = tmp_path/'own.npz', X.copy()
    ids = []
    for value in (0, 255, 0):
        x[0] = value
        np.savez(path, x=x, y=Y)
        os.utime(path, (10**9, 10**9))
        ids.append(run_id(Run.of('fedavg', data=named_data(path), model='mlp')))
        assert dataset(named_data(path), '').x[0, 0, 0, 0] == value
    assert ids[0] == ids[2] != ids[1]


def test_a_picture_is_known_by_its_content(tmp_path):
    save(tmp_path, 'a/0.png', 'b/0.png')
    before = content_of(tmp_path)
    (tmp_path/'a'/'1.txt').write_text('one')
    os.utime(tmp_path/'a'/'1.txt', (10**9, 10**9))
    one = content_of(tmp_path)
    (tmp_path/'a'/'1.txt').write_text('two')
    os.utime(tmp_path/'a'/'1.txt', (10**9, 10**9))
    assert len({before, one, content_of(tmp_path)}) == 3


def test_a_changed_converter_makes_its_file_anew(tmp_path):
    try:
        for value in (0, 9):
            def mine(root, value=value):
                x = np.full((4, 1, 8, 8), value, np.uint8)
                return dict(x_train=x, y_train=np.arange(4) % 2, x_test=x, y_test=np.arange(4) % 2)
            mine.__module__ = '__main__'
            DATASETS.add('mine_here', title='mine', n_classes=2, fidelity='mine', shape=(1, 8, 8))(mine)
            assert dataset(Spec('mine_here'), str(tmp_path)).x.max() == value
    finally: DATASETS.pop('mine_here', None)


def test_a_run_whose_data_change_meanwhile_is_not_kept(tmp_path):
    np.savez(tmp_path/'own.npz', x=X, y=Y)
    calls = iter(range(1, 9))
    def serve(server, inbox):
        np.savez(tmp_path/'own.npz', x=X ^ next(calls), y=Y)
        return server
    with pytest.raises(ValueError, match='changed while it trained'):
        simulate(Method(serve=serve), tmp_path/'own.npz', store=tmp_path/'runs', **SMALL)
    assert not list((tmp_path/'runs').glob('*/rows.csv'))


def test_entries_of_all_origins_are_sent():
    register = Register('thing')
    def inner(): return 7
    inner.__module__ = 'somewhere_else'
    register.add('mine')(inner)
    there = Register('thing')
    unpack(packed([register]), [there])
    assert there['mine'].make() == 7 and entry_digest(there['mine']) == entry_digest(register['mine'])


def test_what_cannot_be_sent_keeps_nothing_else_back(monkeypatch):
    "A parametrised layer, given as it is, is not pickled; a module may be missing where it is read."
    layer = nn.utils.parametrizations.spectral_norm(nn.Linear(8, 8))
    register, there = Register('model'), Register('model')
    register.add('mine')(lambda: 7)
    register.add('theirs')(lambda: layer)
    elsewhere = types.ModuleType('only_here')
    exec('def make(): return 1', vars(elsewhere))
    monkeypatch.setitem(sys.modules, 'only_here', elsewhere)
    register.add('of_a_file')(elsewhere.make)
    content = packed([register])
    monkeypatch.delitem(sys.modules, 'only_here')
    unpack(content, [there])
    assert there['mine'].make() == 7 and 'of_a_file' not in there
    with pytest.raises(ValueError, match=r"model 'theirs' cannot be sent .*jobs=1.*parametrized"):
        there['theirs'].make()


BUILT = { # what a builder reads, changed by `change(folder, k)`
    'weights from a file': lambda folder: torch.load(folder/'w.pt'),
    'a number from a text': lambda folder: float((folder/'w.txt').read_text()),
    'the environment': lambda folder: float(os.environ['FEDCL_TESTED']),
    'a variable': lambda folder: VARIED[0],
    'an attribute of a class': lambda folder: Varied.level,
    'JSON': lambda folder: json.loads((folder/'w.json').read_text())['level'],
    'an array': lambda folder: float(np.load(folder/'w.npy')),
    'a module': lambda folder: SimpleNamespace(**vars(sys.modules['varied_here'])).level,
    'the command line': lambda folder: float(sys.argv[-1]),
    'the working folder': lambda folder: float(os.path.basename(os.getcwd())),
}
VARIED = [0.]


class Varied: level = 0.


def change(folder, k, monkeypatch):
    "Let everything that a builder may read be k."
    torch.save(float(k), folder/'w.pt')
    (folder/'w.txt').write_text(str(k))
    (folder/'w.json').write_text(json.dumps(dict(level=k)))
    np.save(folder/'w.npy', k)
    monkeypatch.setenv('FEDCL_TESTED', str(k))
    VARIED[0], Varied.level = k, k
    monkeypatch.setitem(sys.modules, 'varied_here', SimpleNamespace(level=k))
    monkeypatch.setattr(sys, 'argv', ['x', str(k)])
    (folder/str(k)).mkdir(exist_ok=True)
    monkeypatch.chdir(folder/str(k))


@pytest.mark.parametrize('case', BUILT)
def test_a_run_is_named_by_what_its_builder_built(case, tmp_path, monkeypatch):
    read = BUILT[case]
    def mine(shape, n_classes):
        net = Net()
        net.head.bias.data[0] = read(tmp_path)
        return net
    found = []
    for k in (1, 1, 2):
        change(tmp_path, k, monkeypatch)
        result = simulate('fedavg', X, Y, model=mine, store=tmp_path/'runs', **SMALL)
        found.append((result.rows.run[0], result.rows.value.fillna(-1).tolist()))
    assert found[0] == found[1] and found[0][0] != found[2][0] and found[0][1] != found[2][1]


@pytest.mark.parametrize('kind', ['rows', 'order of rows', 'images'])
def test_a_run_is_named_by_the_rows_and_images_of_its_clients(kind, tmp_path):
    content = tmp_path/'content.json'
    def rows(dataset, n_clients, rng):
        level = json.loads(content.read_text())
        train = np.arange(level if kind == 'rows' else 0, 80)
        if kind == 'order of rows' and level: train = train[::-1]
        return Shards([r for r in np.split(train, [40])], [np.arange(100, 120)] * 2)
    def images(images, client, n_clients, rng):
        return np.clip(images + json.loads(content.read_text()), 0, 255).astype(np.uint8)
    try:
        for register, name, f in ((PARTITIONS, 'mine_here', rows), (SHIFTS, 'mine_here', images)):
            f.__module__ = '__main__'
            register.add(name, title='mine')(f)
        ids = []
        for k in (0, 0, 3):
            content.write_text(str(k))
            shift = 'mine_here' if kind == 'images' else 'none'
            ids.append(run_id(Run.of('fedavg', partition='mine_here', shift=shift, n_clients=2, n_rounds=1)))
        assert ids[0] == ids[1] != ids[2]
    finally:
        for register in (PARTITIONS, SHIFTS): register.pop('mine_here', None)


# --- 5. errors

def test_a_sweep_takes_a_path(tmp_path):
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


def lost(monkeypatch, is_lost):
    "Lose the messages (client, round) of which this says so."
    heard = rounds.receive
    def receive(fed, method, server, messages, roster):
        kept = {i: m for i, m in messages.items() if not is_lost(i, roster.round)}
        return heard(fed, method, server, kept, roster)
    monkeypatch.setattr(rounds, 'receive', receive)


@pytest.mark.parametrize('name', sorted(methods()))
def test_a_round_in_which_nobody_answers(name, monkeypatch):
    "The first rounds, and the one in which a method of several stages changes its stage."
    fed = toy((12, 15, 9), needs=METHODS[name].about['needs'])
    stages = stages_of(build_method(METHODS.resolve(name), None), 4)
    for silent in (0, 1), (2,):
        lost(monkeypatch, lambda i, r: r in silent)
        *_, last = rounds.rounds(Loop(fed), stages)
        for client in last.clients:
            weights = {k: v for k, v in client.items() if k.startswith(('body.', 'head.'))}
            assert all(v.isfinite().all() for v in weights.values())
            assert all(v.any() for k, v in weights.items() if k.startswith('body.') and k.endswith('.weight'))
        monkeypatch.undo()


def test_pfedsim_leaves_a_client_alone_whose_messages_are_lost(monkeypatch):
    fed = toy((12, 15, 9))
    lost(monkeypatch, lambda i, r: i == 0)
    *_, last = rounds.rounds(Loop(fed), stages_of(build_method(METHODS.resolve('pfedsim'), None), 4))
    assert last.clients[0]['body.0.weight'].any()


@pytest.mark.parametrize('method, settings, names', [
    ('fedcosr(contrast_weight=1e38)', {}, 'contrast_weight=1e+38'),
    ('fedavg', dict(optimiser='sgd(lr=1e30)'), 'lower the learning rate'),
])
def test_an_extreme_setting_is_named(method, settings, names):
    with pytest.raises(FloatingPointError) as failed:
        simulate(method, X, Y, **(dict(SMALL, n_rounds=3) | settings))
    assert names in str(failed.value)


def test_a_kept_run_of_arrays_says_how_to_load_it(tmp_path):
    result = simulate('fedavg', X, Y, store=tmp_path, **SMALL)
    DATASETS.pop(result.run.data.name)
    with pytest.raises(ValueError, match='give simulate the same again'): result.model(0)


@pytest.mark.parametrize('ask', [lambda r: r.model(0), lambda r: r.predictions()],
                         ids=['model', 'predictions'])
def test_a_result_of_another_process_has_its_models_or_says_how_to_keep_them(ask, tmp_path, monkeypatch):
    lost, stored = (simulate('fedavg', X, Y, store=store, **SMALL) for store in ('', tmp_path))
    lost, stored = map(pickle.loads, map(pickle.dumps, (lost, stored)))
    monkeypatch.setattr(os, 'getpid', lambda: -1)
    assert ask(stored)
    with pytest.raises(ValueError, match="another process.*store='runs'"): ask(lost)


def test_an_ascii_terminal_loses_no_listing(tmp_path):
    env = dict(os.environ, PYTHONIOENCODING='ascii')
    command = 'import sys; from fedcl_repro.cli import main; sys.exit(main(["list", "methods"]))'
    out = subprocess.run([sys.executable, '-c', command], capture_output=True, text=True, env=env)
    assert out.returncode == 0 and 'fedavg' in out.stdout, out.stderr


def test_a_sweep_with_a_failed_trial_exits_1(tmp_path, capsys):
    argv = ['sweep', '--method', 'fedavg', '--grid', 'optimiser=adam,sgd(lr=1e30)', '--set', 'n_rounds=2',
            '--set', 'n_clients=2', '--store', str(tmp_path), '--jobs', '1']
    assert cli.main(argv) == 1 and 'failed' in capsys.readouterr().err


# --- 6. batch norm with batches of one image

@pytest.mark.parametrize('settings, n', [(dict(batch_size=1), 3), ({}, 0)])
def test_batch_norm_on_single_images_is_warned_of(settings, n):
    run = Run.of('fedavg', data=data_spec(X, Y), model=model_spec(Net(body=body(nn.BatchNorm1d(8))), DIGITS),
                 **SMALL, **settings)
    said = told(lambda: check_federation(run))[1]
    assert (f'{n} of 3 clients learn nothing' in said) == bool(n)
    plain = replace(run, model=Spec.of('mlp', layers=2, width=8))
    assert 'learn nothing' not in told(lambda: check_federation(plain))[1]


# --- 7. settings without effect, and what a session keeps

WITHOUT_EFFECT = [
    (dict(metrics=('top_k',), n=3), 'top_k is 1 for every model, with 3 classes'),
    (dict(metrics=('top_k(k=3)',), n=3), 'top_k(k=3) is 1'),
    (dict(optimiser='sgd(cosine_over=2)', n_rounds=6), 'the learning rate is 0 in the last 4 of 6 rounds'),
    (dict(optimiser='clipped_sgd(cosine_over=2)', n_rounds=3), 'the learning rate is 0 in the last 1 of 3'),
    (dict(method='mapl', n_rounds=100), 'warmup=100: what begins after it is not reached'),
    (dict(method='mapl(warmup=7)', n_rounds=7), 'warmup=7: what begins after it is not reached'),
    (dict(method='fedssc(warm=2.0)'), 'warm=2: the weight does not reach its end'),
    (dict(eval_every=9, n_rounds=6), 'only the last of 6 rounds is tested'),
    (dict(eval_clients=30, n_clients=4), 'there are 4 clients, and all of them are tested'),
    (dict(participation=.05, n_clients=5), 'is less than one: one takes part'),
    (dict(patience=5, validation=.1, n_rounds=9, eval_every=2), 'patience=5: the run cannot end early'),
    (dict(patience=4, validation=.1, n_rounds=9, eval_every=2), ''),
    (dict(metrics=('top_k(k=2)', 'auc'), n=3), ''),
    (dict(optimiser='sgd(cosine_over=6)', n_rounds=6), ''),
    (dict(method='mapl(warmup=7)', n_rounds=8), ''),
    (dict(method='mapl(warmup=7, graph=False)', n_rounds=7), ''),
    (dict(eval_every=6, n_rounds=6, eval_clients=4, n_clients=4, participation=.2), ''),
]


@pytest.mark.parametrize('given, says', WITHOUT_EFFECT, ids=str)
def test_a_setting_without_effect_is_told(given, says):
    given = dict(given)
    method, n = given.pop('method', 'fedavg'), given.pop('n', 10)
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
        with pytest.raises(ValueError, match='must be like'): read_option(option, value, default)


def test_a_file_with_a_separator_in_its_name_is_refused(tmp_path):
    (tmp_path/'a:b.py').write_text('')
    with pytest.raises(ValueError, match='separates files in FEDCL_USE'): use_files([tmp_path/'a:b.py'])
