"""Real data sets where they are present; what must hold of any data root."""
import time

import numpy as np
import pytest

from fedcl_repro.data.datasets import find_root, load
from fedcl_repro.study.runs import Run, shards


def real(name):
    path = find_root()/f'{name}.npz'
    if not path.exists(): pytest.skip(f'{path} is not here')
    return load(name)


@pytest.mark.parametrize('name, shape, n_train, n_classes', [('cifar10', (3, 32, 32), 50_000, 10), ('cifar100', (3, 32, 32), 50_000, 100), ('mnist', (1, 28, 28), 60_000, 10), ('fashion_mnist', (1, 28, 28), 60_000, 10)])
def test_a_real_data_set(name, shape, n_train, n_classes):
    real(name)
    start = time.perf_counter()
    data = load(name)
    assert time.perf_counter() - start < 5
    assert data.x.shape[1:] == shape and data.n_train == n_train and data.n_classes == n_classes and data.x.dtype == np.uint8
    assert set(np.unique(data.y)) == set(range(n_classes))


def test_fedcosr_partition_of_cifar10():
    "About 3,000 images a client, 40 at least, a quarter of each for the test (rounded down or up)."
    real('cifar10')
    s = shards(Run.of('fedavg', data='cifar10'))
    sizes = np.array([len(a) + len(b) for a, b in zip(s.train, s.test)])
    assert sizes.sum() == 60_000 and sizes.min() >= 40
    assert all(abs(len(b) - .25*n) <= 1 for b, n in zip(s.test, sizes))
