"""Real data sets where they are present; what must hold of any data root; what a new module adds is found."""
import numpy as np
import pytest

from fedcl_repro.data.datasets import find_root, load
from fedcl_repro.runs.run import Run, shards


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
