"""The numbers are the same under every version of pandas and NumPy that the requirements allow: no order
rests on a call whose order they changed. `.ci/run` runs this file, and those of statistics and store, under
the lowest and the newest versions."""
import ast
import itertools
import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]

LABELS = dict(sorted='ABC', turned='CBA', mixed='BCA', numbers=(10, 9, 2))
SEEDS = dict(sorted=(0, 1, 2), turned=(7, 3, 1), mixed=(2, 10, 1))
ABSENT = dict(none=(), first=((0, 0),), middle=((1, 1),), diagonal=((0, 0), (1, 1), (2, 2)))
VALUES = np.array([[52., 53., 55.], [62., 64., 67.], [72., 78., 90.]]) # seed x label


@pytest.mark.parametrize('labels, seeds, absent, sort',
                         [*itertools.product(LABELS, SEEDS, ABSENT, (True, False))])
def test_a_table_of_means_is_the_one_by_hand(labels, seeds, absent, sort):
    from fedcl_repro.runs.rows import table_of_means
    labels, seeds, absent = LABELS[labels], SEEDS[seeds], ABSENT[absent]
    lines = [dict(label=label, seed=seed, value=VALUES[i, k] + part)
             for k, label in enumerate(labels) for i, seed in enumerate(seeds) if (i, k) not in absent
             for part in (-1, 1)] # a cell counts with its mean
    table = table_of_means(pd.DataFrame(lines), 'seed', 'label', 'value', sort)
    for which, names in (('seed', table.index), ('label', table.columns)):
        met = list(dict.fromkeys(line[which] for line in lines))
        assert list(names) == (sorted(met) if sort else met) and names.name == which
    for (i, seed), (k, label) in itertools.product(enumerate(seeds), enumerate(labels)):
        value = table.loc[seed, label]
        assert np.isnan(value) if (i, k) in absent else value == VALUES[i, k]


def test_nan_and_names_that_are_missing_are_left_out():
    from fedcl_repro.runs.rows import table_of_means
    lines = dict(seed=[1, 0, 0, 1], label=['B', 'A', 'B', None], value=[1., np.nan, 2., 3.])
    table = table_of_means(pd.DataFrame(lines), 'seed', 'label', 'value')
    assert table.to_dict() == dict(B={1: 1., 0: 2.})


OF_TENSORS = 'inbox', 'sealed'

# What is called, what makes it wrong under some version, and what to write.
def is_sort(node): return any(k.arg == 'sort' for k in node.keywords)
def is_bare(node): return not node.args and getattr(node.func.value, 'id', '') not in OF_TENSORS
def is_unstable(node): return not any(k.arg == 'kind' for k in node.keywords)

CHANGED = dict(
    unstack=(is_sort, 'pandas 2 sorts names and not values: runs.rows.table_of_means'),
    pivot_table=(is_sort, 'it rests on unstack(sort=...): sort, or runs.rows.table_of_means'),
    stack=(is_bare, 'pandas 2 leaves out nan: melt and dropna'),
    sort_values=(is_unstable, "ties are in any order: kind='stable'"),
)


def changed_calls(source):
    "The calls of a cell or module whose result depends on a version, each with what to write."
    for node in ast.walk(ast.parse(source)):
        name = getattr(getattr(node, 'func', None), 'attr', None)
        if name in CHANGED and CHANGED[name][0](node): yield f'{name}: {CHANGED[name][1]}'


def test_no_order_rests_on_a_call_that_versions_changed():
    for path in sorted((ROOT/'nbs').rglob('*.ipynb')):
        if '.ipynb_checkpoints' in path.parts: continue
        for cell in json.loads(path.read_text(encoding='utf-8'))['cells']:
            source = ''.join(cell['source'])
            if cell['cell_type'] != 'code' or source.startswith('%'): continue
            assert not (found := list(changed_calls(source))), f'{path.stem} {cell["id"]}: {found}'


@pytest.mark.parametrize('source, n', [
    ("t.unstack('a', sort=False)", 1), ("t.unstack('a')", 0), ('t.pivot_table(sort=False)', 1),
    ("t.sort_values('a')", 1), ("t.sort_values('a', kind='stable')", 0), ('t.stack()', 1),
    ('torch.stack(a)', 0), ('inbox.stack()', 0)])
def test_such_calls_are_found(source, n): assert len(list(changed_calls(source))) == n


@pytest.mark.parametrize('error', [
    RuntimeError('operator torchvision::nms does not exist'), OSError('undefined symbol: _ZN3c10'),
    ImportError('cannot import name')], ids=lambda e: type(e).__name__)
@pytest.mark.parametrize('use', ['models', 'images'])
def test_a_torchvision_that_does_not_fit_torch_is_named(use, error, monkeypatch, tmp_path):
    from importlib.metadata import version

    from fedcl_repro.data.datasets import cifar10
    from fedcl_repro.parts.backbones import torchvision_models
    def fail(name): raise error
    monkeypatch.setattr('importlib.import_module', fail)
    with pytest.raises(ValueError,
                       match=f'torchvision {re.escape(version("torchvision"))} and torch .* do not fit'):
        torchvision_models() if use == 'models' else cifar10(tmp_path)
