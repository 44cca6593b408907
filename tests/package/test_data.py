"""Real data sets where they are present; what must hold of any data root; what a new module adds is found."""
import warnings

import numpy as np
import pandas as pd
import pytest

from fedcl_repro import simulate
from fedcl_repro.data.datasets import find_root, load
from fedcl_repro.data.own_data import client_column, own_dataset
from fedcl_repro.runs.models import accuracy_of, adapt
from fedcl_repro.runs.run import Run, check_federation, federation, shards
from fedcl_repro.runs.simulate import data_spec


def real(name):
    path = find_root()/f'{name}.npz'
    if not path.exists(): pytest.skip(f'{path} is not here')
    return load(name)


@pytest.mark.parametrize('name, shape, n_train, n_classes', [
    ('cifar10', (3, 32, 32), 50_000, 10),
    ('cifar100', (3, 32, 32), 50_000, 100),
    ('mnist', (1, 28, 28), 60_000, 10),
    ('fashion_mnist', (1, 28, 28), 60_000, 10),
])
def test_a_real_data_set(name, shape, n_train, n_classes):
    real(name)
    data = load(name)
    assert data.x.shape[1:] == shape and data.x.dtype == np.uint8
    assert data.n_train == n_train and data.n_classes == n_classes
    assert set(np.unique(data.y)) == set(range(n_classes))


def test_fedcosr_partition_of_cifar10():
    "About 3,000 images a client, 40 at least, a quarter of each for the test (rounded down or up)."
    real('cifar10')
    s = shards(Run.of('fedavg', data='cifar10'))
    sizes = np.array([len(a) + len(b) for a, b in zip(s.train, s.test)])
    assert sizes.sum() == 60_000 and sizes.min() >= 40
    assert all(abs(len(b) - .25*n) <= 1 for b, n in zip(s.test, sizes))


DATA_MODULE = '''
import numpy as np
from fedcl_repro.data.augment import AUGMENTATIONS, Flip, Pipeline
from fedcl_repro.data.datasets import DATASETS
from fedcl_repro.data.partition import PARTITIONS, SCARCITIES, Shards

@DATASETS.add('bars', title='Bars', n_classes=2, embedded=True, fidelity='made here')
def bars(root, *, side=8):
    "Black images and white ones."
    y = np.arange(40) % 2
    x = np.repeat(255*y, side**2).reshape(40, 1, side, side).astype(np.uint8)
    return dict(x_train=x[:30], y_train=y[:30], x_test=x[30:], y_test=y[30:])

@PARTITIONS.add('by_turns', title='by turns')
def by_turns(dataset, n_clients, rng):
    rows, test = np.arange(dataset.n_train), np.arange(dataset.n_train, len(dataset.y))
    return Shards([rows[i::n_clients] for i in range(n_clients)], [test] * n_clients)

@SCARCITIES.add('one_image', title='one image each')
def one_image(shards, y, rng): return Shards([r[:1] for r in shards.train], shards.test)

@AUGMENTATIONS.add('flip', title='flip')
def flip(*, p=.5): return Pipeline(Flip(p))
'''

MODEL_MODULE = '''
from torch import nn
from fedcl_repro.parts.models import MODELS

@MODELS.add('linear')
def linear(shape, n_classes): return nn.Linear(8, n_classes)
'''

NEW_MODULES = '''
import sys
import fedcl_repro.data, fedcl_repro.parts
fedcl_repro.data.__path__.append(sys.argv[1] + '/data')
fedcl_repro.parts.__path__.append(sys.argv[1] + '/parts')
'''


@pytest.mark.parametrize('use', [
    "from fedcl_repro.data.datasets import load; assert load('bars(side=4)').shape == (1, 4, 4)",
    "from fedcl_repro.data.datasets import present; assert 'bars' in [row['name'] for row in present()]",
    """
from fedcl_repro.data.datasets import load
from fedcl_repro.data.partition import partition
shards = partition(load('digits'), 'by_turns', 3, seed=0, scarcity='one_image')
assert [len(r) for r in shards.train] == [1, 1, 1]
""",
    "from fedcl_repro.data.augment import AUGMENTATIONS; assert AUGMENTATIONS.build('flip(p=0.0)')",
    """
from fedcl_repro.runs.run import Run
Run.of('fedavg', data='bars', partition='by_turns', scarcity='one_image', augmentation='flip', model='linear')
""",
], ids=['load', 'present', 'partition', 'augmentation', 'run'])
def test_a_new_module_is_found(tmp_path, use, fresh):
    "What a new module of `data` or `parts` registers is known in a fresh process, without another file."
    for folder, text in (('data', DATA_MODULE), ('parts', MODEL_MODULE)):
        (tmp_path/folder).mkdir()
        (tmp_path/folder/'new_module.py').write_text(text, encoding='utf-8')
    done = fresh.run(NEW_MODULES + use, tmp_path)
    assert done.returncode == 0, done.stderr


# --- names beside data

IMAGES = np.arange(12 * 64).reshape(12, 8, 8) % 256
NUMBERS = np.arange(12) % 3
WORDS = np.array(['small', 'medium', 'large'])
TABLE = pd.DataFrame(np.random.default_rng(0).random((12, 3)), columns=list('abc'))
SERIES = pd.Series(NUMBERS)

NAMED = { # what is given -> classes of the first rows, in words
    'words in an order of their own': dict(y=WORDS[NUMBERS], classes=('small', 'medium', 'large')),
    'the same, reversed': dict(y=WORDS[NUMBERS], classes=('large', 'medium', 'small')),
    'a list of words': dict(y=WORDS[NUMBERS].tolist(), classes=['medium', 'small', 'large']),
    'words alone': dict(y=WORDS[NUMBERS]),
    'numbers and their names': dict(y=NUMBERS, classes=('small', 'medium', 'large')),
    'a column of words': dict(y=pd.Series(WORDS[NUMBERS]), classes=('small', 'medium', 'large')),
    'a column of categories': dict(y=pd.Series(WORDS[NUMBERS]).astype('category')),
    'a name without images': dict(y=WORDS[NUMBERS], classes=('small', 'huge', 'medium', 'large')),
    'a test of other words': dict(y=WORDS[NUMBERS], test=(IMAGES, WORDS[(NUMBERS + 1) % 3]),
                                  classes=('small', 'medium', 'large')),
    'as many as n_classes says': dict(y=NUMBERS, classes=('small', 'medium', 'large', 'huge'), n_classes=4),
}


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('case', NAMED)
def test_names_belong_to_their_classes(case):
    ds = own_dataset(IMAGES, **NAMED[case])
    assert [ds.classes[c] for c in ds.y[:12]] == WORDS[NUMBERS].tolist() and len(ds.classes) == ds.n_classes


WITHOUT = {
    'too few names': (dict(y=NUMBERS, classes=('a', 'b')), '2 names for 3 classes'),
    'too many': (dict(y=NUMBERS, classes=tuple('abcd')), '4 names for 3 classes'),
    'one name, a class without images': (dict(y=NUMBERS * 2 % 4, classes=('a',)), '1 names for 3 classes'),
    'one name twice': (dict(y=NUMBERS, classes=('a', 'b', 'a')), 'called alike'),
    'a word without a name': (dict(y=WORDS[NUMBERS], classes=('small', 'large')), "hold 'medium', which"),
    'words and numbers': (dict(y=['a', 1, 'b'] * 4), 'mix words and numbers'),
    'missing labels': (dict(y=pd.Series([0, 1, pd.NA] * 4)), 'labels hold missing entries'),
    'missing words': (dict(y=['a', 'b', None] * 4), 'labels hold missing entries'),
    'missing numbers': (dict(y=pd.array([0, 1, None] * 4, dtype='Int64')), 'labels hold missing entries'),
    'a table with a missing entry': (dict(x=TABLE.astype(object).where(TABLE < .9, pd.NA), y=NUMBERS),
                                     'images hold missing entries'),
    'labels of other rows': (dict(x=TABLE, y=SERIES.set_axis(range(5, 17))), 'labels have another index'),
    'labels with an index twice': (dict(x=TABLE, y=SERIES.set_axis([0] * 12)), 'labels have another index'),
    'ids of other rows': (dict(x=TABLE, y=SERIES, clients=SERIES.set_axis(range(1, 13))), 'clients have'),
    'a test with another column': (dict(x=TABLE, y=SERIES, test=(TABLE.rename(columns=dict(a='z')), SERIES)),
                                   'the test table has other columns'),
    'ids of words and numbers': (dict(y=NUMBERS, clients=['1', 1] * 6), 'mix words and numbers'),
    'missing ids': (dict(y=NUMBERS, clients=pd.array([1, None] * 6, dtype='Int64')), 'have no client id'),
    'ids of floats': (dict(y=NUMBERS, clients=2.**53 + np.arange(12.)), 'floats of 2**53'),
    'ids that become floats': (dict(y=NUMBERS, clients=[2**64 - 1, -1] * 6), 'floats of 2**53'),
}


@pytest.mark.parametrize('case', WITHOUT)
def test_names_that_do_not_fit_are_refused(case):
    given, says = WITHOUT[case]
    with pytest.raises(ValueError) as refused: own_dataset(**dict(x=IMAGES) | given)
    assert says in str(refused.value)


def test_tables_are_aligned_by_their_names():
    mixed, turned = np.random.default_rng(1).permutation(12), TABLE[['c', 'a', 'b']]
    plain = own_dataset(TABLE.to_numpy(), NUMBERS, test=(TABLE.to_numpy(), NUMBERS), clients=NUMBERS)
    named = own_dataset(TABLE, SERIES[mixed], test=(turned, SERIES[mixed]), clients=SERIES[mixed])
    assert plain.fingerprint == named.fingerprint


def test_large_ids_stay_apart():
    ids = 2**60 + np.arange(12)
    assert len(set(client_column(ids, 12))) == len(set(client_column(ids.tolist(), 12))) == 12


@pytest.mark.parametrize('values', [
    1.7e9 + np.eye(12, 4), 2**26 + np.eye(12, 4, dtype=np.int64), 2.**25 + 1 + np.eye(12, 4)], ids=str)
def test_whole_numbers_beyond_float32_are_kept_or_told(values):
    data = data_spec(values, NUMBERS)
    how = dict(data=data, model='mlp', n_clients=2, partition='quantity(minimum=2)')
    exact = federation(Run.of('fedavg', dtype='float64', **how))
    assert exact.x.double().unique(dim=0).shape[0] == len(np.unique(values, axis=0))
    with pytest.warns(UserWarning, match="say dtype='float64'"): check_federation(Run.of('fedavg', **how))
    with warnings.catch_warnings(action='error'): check_federation(Run.of('fedavg', dtype='float64', **how))
    assert own_dataset(np.eye(12, 4) * 2**24, NUMBERS).x.dtype == np.float32


DIGITS = load('digits')
SCALES = { # the same images in other numbers -> from 0 to 255
    'bytes': lambda x: x, 'up to 1': lambda x: x / 255, 'from -1 to 1': lambda x: x / 127.5 - 1,
    'up to 15': lambda x: (x // 17).astype(float)}


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('case', SCALES)
def test_later_images_have_the_scale_of_the_run(case):
    "Also a few bright ones, whose smallest value is that of another scale."
    x, y = DIGITS.x[:300], DIGITS.y[:300]
    scaled = SCALES[case]
    ds = own_dataset(scaled(x), y, value_range=(0, 15) if case == 'up to 15' else ())
    model = simulate('fedavg', ds, n_clients=2, n_rounds=2).model(0)
    bright = np.maximum(x, 136)
    whole = bright // 17 * 17 if case == 'up to 15' else bright
    stored = model.eval()(federation_input(whole)).argmax(1).numpy()
    assert accuracy_of(model, scaled(bright), y) == pytest.approx((stored == y).mean())
    assert accuracy_of(adapt(model, scaled(bright), y, steps=1), scaled(bright), y) >= 0


def federation_input(x):
    "Images of bytes as a network reads them."
    import torch
    return torch.from_numpy(x).float() / 127.5 - 1
