"What names a run: the content of code, files, objects and data that a user gives, and what a builder builds."
import functools
import json
import os
import random
import sys
import types
from types import SimpleNamespace

import numpy as np
import pytest
import torch
import torch.nn as nn
from given import SMALL, X, Y, Net, Parts, each, refusal

from fedcl_repro import simulate
from fedcl_repro.core import Register, Spec
from fedcl_repro.data.datasets import DATASETS, content_of
from fedcl_repro.data.natural import SHIFTS
from fedcl_repro.data.partition import PARTITIONS, Shards
from fedcl_repro.federation.method import METHODS, NET, Method, Sweep, ce, send, take
from fedcl_repro.runs.run import Run, dataset, run_id
from fedcl_repro.runs.simulate import named_data
from fedcl_repro.user_code import UnknownContent, entry_digest, packed, source_digest, unpack, use_files

pytestmark = pytest.mark.usefixtures('registers_as_before')


def check_names(name):
    "`name(value)` is the same for the same value, and another for another."
    first, again, other = name(1), name(1), name(2)
    assert first == again != other


# --- 1. functions and objects

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
        super().__init__(scale=scale, table={'power': scale})
        self.register_buffer('hidden', torch.tensor(float(scale)), persistent=False)


def changed_module(name, value):
    module = nn.Sequential(nn.Linear(2, 2))
    for p in module.parameters(): nn.init.ones_(p)
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


@each('make', {name: [make] for name, make in CONTENTS.items()})
def test_content_decides_the_name(make):
    def digest(value):
        torch.manual_seed(0)
        return source_digest(make(value))
    check_names(digest)


@each('name, function, other', [
    ('FACTOR', reads_constant, 2.), ('FACTOR', calls_reader, 2.), ('OPTIONS', reads_options, dict(lr=2)),
    ('TABLE', reads_array, np.ones(3)), ('reads_constant', calls_reader, reads_options)])
def test_what_a_function_reads_counts(name, function, other, monkeypatch):
    before = globals()[name]
    def digest(value):
        monkeypatch.setitem(globals(), name, other if value == 2 else before)
        return source_digest(function)
    check_names(digest)


def test_words_do_not_count():
    def one(x):
        "A sentence."
        return x + 1 # a remark
    def other(x):
        """Another sentence."""

        return x + 1
    assert source_digest(one) == source_digest(other).replace('other', 'one')


class Computes(dict):
    "A mapping whose values are made when they are read, as a library's table of models that cannot be had."
    def items(self): raise ValueError('not installed')


@pytest.mark.parametrize('value', [np.random.default_rng(0), torch.Generator(), random.Random(0), Computes(),
                                   (i for i in range(2)), open(os.devnull)],
                         ids=lambda value: type(value).__name__)
def test_what_cannot_be_compared_is_not_kept(value, tmp_path):
    def mine(): return Method(upload=lambda client: client if value else client)
    with refusal('cannot be compared', UnknownContent): source_digest(mine)
    with refusal('leave out the store'): simulate(mine, X, Y, store=tmp_path/'runs', **SMALL)
    assert not list(tmp_path.glob('runs/*/rows.csv'))


@pytest.mark.parametrize('by_pip', [True, False])
def test_a_package_in_a_folder_that_pip_filled_counts_by_name(by_pip, tmp_path, monkeypatch):
    "As with `pip install --target`; a package in development counts by its content."
    def digest(value):
        folder = tmp_path/f'{value}'
        (folder/'toylib').mkdir(parents=True)
        (folder/'toylib'/'__init__.py').write_text(f'VALUE = {value}')
        if by_pip: (folder/'toylib-1.0.dist-info').mkdir()
        monkeypatch.syspath_prepend(folder)
        import toylib
        try: return source_digest(lambda: toylib.VALUE)
        finally: del sys.modules['toylib']
    assert (digest(1) == digest(2)) == by_pip


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


@pytest.fixture
def folder(tmp_path):
    "A folder whose modules are forgotten."
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if str(tmp_path) in str(getattr(module, '__file__', '')): del sys.modules[name]


@each('module, name, use, changed, text', BESIDE)
def test_a_file_beside_a_users_file_counts(module, name, use, changed, text, folder, monkeypatch):
    monkeypatch.syspath_prepend(str(folder))
    monkeypatch.setenv('FEDCL_USE', '')
    (folder/'package').mkdir()
    (folder/'package'/'__init__.py').touch()
    (folder/'late.py').write_text('def part():\n    from later import PART\n    return PART')
    (folder/'own_method_here.py').write_text(OWN_FILE.format(module=module, name=name, use=use))
    def named(value): # equal sizes, within one second
        part = ['body.', 'head.'][value - 1]
        (folder/changed).write_text(text.format(part))
        use_files([folder/'own_method_here.py'])
        taken = METHODS['mine_here'].make().merge({}, {'body.': 1, 'head.': 2})
        assert list(taken) == [part], 'the new text is used'
        return run_id(Run.of('mine_here'))
    check_names(named)


def test_a_file_is_known_by_its_content(tmp_path):
    "Also within a session, with the size and the time of before."
    path, x = tmp_path/'own.npz', X.copy()
    def named(value):
        x[0] = value
        np.savez(path, x=x, y=Y)
        os.utime(path, (10**9, 10**9))
        assert dataset(named_data(path), '').x[0, 0, 0, 0] == value
        return run_id(Run.of('fedavg', data=named_data(path), model='mlp'))
    check_names(named)


def test_a_folder_is_known_by_its_content(tmp_path):
    (tmp_path/'a').mkdir()
    empty = content_of(tmp_path)
    def named(value):
        (tmp_path/'a'/'1.txt').write_text(str(value))
        os.utime(tmp_path/'a'/'1.txt', (10**9, 10**9))
        return content_of(tmp_path)
    check_names(named)
    assert named(1) != empty


def test_a_changed_converter_makes_its_file_anew(tmp_path):
    for value in (0, 9):
        def mine(root, value=value):
            x, y = np.full((4, 1, 8, 8), value, np.uint8), np.arange(4) % 2
            return dict(x_train=x, y_train=y, x_test=x, y_test=y)
        mine.__module__ = '__main__'
        DATASETS.add('mine_here', title='mine', n_classes=2, fidelity='mine', shape=(1, 8, 8))(mine)
        assert dataset(Spec('mine_here'), str(tmp_path)).x.max() == value


def test_a_run_whose_data_change_meanwhile_is_not_kept(tmp_path):
    np.savez(tmp_path/'own.npz', x=X, y=Y)
    calls = iter(range(1, 9))
    def serve(server, inbox):
        np.savez(tmp_path/'own.npz', x=X ^ next(calls), y=Y)
        return server
    with refusal('changed while it trained'):
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


@each('read', {name: [read] for name, read in BUILT.items()})
def test_a_run_is_named_by_what_its_builder_built(read, tmp_path, monkeypatch):
    def mine(shape, n_classes):
        net = Parts()
        net.head.bias.data[0] = read(tmp_path)
        return net
    def trained(value):
        change(tmp_path, value, monkeypatch)
        rows = simulate('fedavg', X, Y, model=mine, store=tmp_path/'runs', **SMALL).rows
        values.append(rows.value.fillna(-1).tolist())
        return rows.run[0]
    values = []
    check_names(trained)
    assert values[0] == values[1] != values[2]


@pytest.mark.parametrize('kind', ['rows', 'order of rows', 'images'])
def test_a_run_is_named_by_the_rows_and_images_of_its_clients(kind):
    level = [0]
    def rows(dataset, n_clients, rng):
        train = np.arange(level[0] if kind == 'rows' else 0, 80)
        if kind == 'order of rows' and level[0]: train = train[::-1]
        return Shards(np.split(train, [40]), [np.arange(100, 120)] * 2)
    def images(images, client, n_clients, rng): return np.clip(images + level[0], 0, 255).astype(np.uint8)
    for register, make in ((PARTITIONS, rows), (SHIFTS, images)):
        make.__module__ = '__main__'
        register.add('mine_here', title='mine')(make)
    shift = 'mine_here' if kind == 'images' else 'none'
    def named(value):
        level[0] = 3 * (value - 1)
        return run_id(Run.of('fedavg', partition='mine_here', shift=shift, n_clients=2, n_rounds=1))
    check_names(named)


def test_a_whole_number_and_its_float_are_one_run():
    "Where a setting is a float, 1 and 1.0 are one id; a count stays whole; what a spec prints can be read."
    for text, other in (('fedcosr(gamma=1)', 'fedcosr(gamma=1.0)'), ('fedprox(mu=1)', 'fedprox(mu=1.0)')):
        assert run_id(Run.of(text)) == run_id(Run.of(other))
    assert dict(Run.of('mapl(views=2)', augmentation='mapl', model='cnn_proj').method.settings)['views'] == 2
    spec = METHODS.resolve('fedcosr(gamma=inf)')
    assert METHODS.resolve(str(spec)) == spec
