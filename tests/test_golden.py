"""Nothing moves: the rows of every method, and the names of all committed runs, are what they were.

A change of what a method computes raises that method's `revision` and writes its lines anew, by
`python tests/test_golden.py`.
Rows are held by a checksum, a random projection of their values: the last bits differ between processors."""
import json
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn as nn

from fedcl_repro.core import Spec, stream
from fedcl_repro.data.partition import PARTITIONS, Shards
from fedcl_repro.federation.method import BOTH_LAYERS
from fedcl_repro.parts.models import MODELS, Head
from fedcl_repro.parts.twin_norm import TwinNorm, Twins
from fedcl_repro.runs.record import accuracy_at
from fedcl_repro.runs.run import Run, changed_settings, config, find_root, fingerprint, methods, run_id
from fedcl_repro.runs.store import Store
from fedcl_repro.runs.train import train

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT/'tests'/'golden.json'
WAYS = ('sgd(lr=0.05, momentum=0.9)', 0), ('adam', 1) # optimiser, seed
LATER = ['balanced', 'share kept', *map(accuracy_at, BOTH_LAYERS)] # metrics that came later; their own pages hold them


def as_ours(make):
    "Let a function count as part of the package: then its source is not part of a run's name."
    make.__module__ = 'fedcl_repro.golden'
    return make


@PARTITIONS.add('golden', title='five clients, one of them empty')
@as_ours
def uneven(dataset, n_clients, rng):
    "Unequal clients with classes of their own, tested on what each has most of."
    rows = rng.permutation(np.flatnonzero(np.isin(dataset.y, range(4))))
    sizes = (40, 66, 32, 0, 22)[:n_clients]
    train = np.split(rows[:sum(sizes)], np.cumsum(sizes)[:-1])
    return Shards(train, [rows[200 + 20*i:220 + 20*i] for i in range(n_clients)], notes={})


@MODELS.add('golden', parts='body head proj pred rot enc dec aux chi')
@as_ours
def small_network(shape, n_classes, *, norm=True):
    "A network that has whatever part some method asks for."
    channels, width = shape[-1] if shape[-1] in (1, 3) else shape[0], 8
    conv = lambda i, o: nn.Conv2d(i, o, 3, padding=1)
    mlp = lambda: nn.Sequential(nn.Linear(width, 8), nn.ReLU(), nn.Linear(8, width))
    pool = nn.ReLU(), nn.AdaptiveAvgPool2d(4), nn.Flatten()
    flat = lambda: nn.Sequential(*pool, nn.Linear(64, width), nn.ReLU())
    return nn.ModuleDict(dict(
        body=nn.Sequential(conv(channels, 4), *([nn.BatchNorm2d(4)] if norm else []), flat()),
        head=Head(width, n_classes, .3),
        proj=mlp(), pred=mlp(), rot=nn.Linear(width, 4),
        enc=Twins(conv(channels, 4), TwinNorm(4, 2), nn.ReLU()), dec=Twins(conv(4, channels)),
        aux=nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, n_classes)), chi=flat()))


def golden_run(name, opt, seed):
    model = 'golden(norm=False)' if name == 'perfedavg' else 'golden' # it looks ahead with weights alone
    views = 'crop_flip(pad=1)' if 'views' in methods()[name].about['needs'].split() else 'none'
    method = Spec.of(name, **methods()[name].about['trial'].get('cheap', {})) # for slow servers
    return Run.of(method, data='digits', partition='golden', model=model, augmentation=views, optimiser=opt,
                  seed=seed, n_clients=5, n_rounds=2, batch_size=8, participation=.8, dtype='float64')


def checksum(rows):
    "How many rows, and a projection of their values; one weight a row, drawn from what the row is about."
    rows = rows[rows.value.notna() & ~rows.metric.isin(LATER)]
    weights = [stream(0, *key).random() for key in rows.drop(columns=['value']).itertuples(index=False)]
    return len(rows), float(np.dot(weights, rows.value))


def lines_of(name):
    "run id -> [settings, number of rows, checksum]"
    lines = {}
    with tempfile.TemporaryDirectory() as folder:
        for opt, seed in WAYS:
            id = train(golden_run(name, opt, seed), Store(folder))
            lines[id] = [f'{name}, {opt}, seed {seed}', *checksum(Store(folder).read(id)[0])]
    return lines


def committed_records():
    "run id -> record, of all committed results"
    paths = sorted((ROOT/'nbs'/'papers').glob('*/results/*.json'))
    return {about['run']: about for path in paths for about in json.loads(path.read_text())}


def committed_ids():
    "run id -> configuration, of all committed results"
    return {id: about['config'] for id, about in committed_records().items()}


def run_of(config):
    "The run that a committed configuration describes."
    def setting(v): return tuple(v) if isinstance(v, list) else v
    def spec(v): return Spec.of(v['name'], **{k: setting(x) for k, x in v.items() if k != 'name'})
    fields = {k: spec(v) if isinstance(v, dict) else v for k, v in config.items()}
    return Run.of(fields.pop('method'), **fields)


def golden(): return json.loads(GOLDEN.read_text())


@pytest.mark.parametrize('name', sorted(methods()))
def test_rows_of_a_method(name):
    told = {id: line for id, line in golden()['methods'].items() if line[0].startswith(f'{name},')}
    assert told, f'{name} has no lines: write them with `python tests/test_golden.py {name}`'
    found = lines_of(name)
    assert found.keys() == told.keys(), 'a run has another name'
    for id, (what, n, total) in found.items():
        assert n == told[id][1], what
        assert total == pytest.approx(told[id][2], rel=1e-6, abs=1e-6), what


def id_of(run, fingerprint, monkeypatch):
    "The run's name where its data have this fingerprint."
    monkeypatch.setattr('fedcl_repro.runs.run.fingerprint', lambda spec, root: fingerprint)
    return run_id(run)


def test_committed_runs_keep_their_names(monkeypatch):
    "Each committed configuration is still a run, says the same of itself, and keeps its name unless revised."
    told = golden()['committed']
    for id, said in committed_ids().items():
        assert id in told, f'{id} is new: add its name with `python tests/test_golden.py --committed`'
        run = run_of(said)
        assert changed_settings(config(run)) == changed_settings(said), id
        if methods()[run.method.name].about['revision'] != told[id]['revision']: continue
        assert id_of(run, told[id]['fingerprint'], monkeypatch) == id


def test_a_run_has_its_name_in_a_process_that_has_just_started():
    "As in a worker, which gets the run and knows no register yet."
    run = Run.of('fedcosr', data='digits(side=16)', n_rounds=3)
    code = f'import pickle; run = pickle.loads({pickle.dumps(run)!r})\n' \
           'from fedcl_repro.runs.run import run_id\nprint(run_id(run))'
    assert subprocess.check_output([sys.executable, '-c', code], text=True).split() == [run_id(run)]


def test_rows_of_an_earlier_revision_say_so():
    "A committed row that the method would not give today has a note, which its page shows."
    told, records = golden()['committed'], committed_records()
    silent = [id for id, about in records.items()
              if methods()[about['method']].about['revision'] != told[id]['revision']
              and 'earlier revision' not in about['note']]
    assert not silent


def test_an_earlier_network_has_rows_only_until_the_present_one_has():
    "Otherwise both stand under one label."
    from fedcl_repro.papers.mfcl.experiments import before_its_norm
    networks = {about['config']['model']['name'] for about in committed_records().values()
                if about['method'] == 'orchestra'}
    assert networks == {r.model.name for r in before_its_norm('lite')}, 'drop `before_its_norm`'


def written(id, said):
    "What has to be known of a committed run to find its name without its data."
    run = run_of(said)
    revision = methods()[run.method.name].about['revision']
    told = dict(fingerprint=fingerprint(run.data, str(find_root(None))), revision=revision)
    if run_id(run) != id: print(f'{id} has another name today: {run_id(run)} ({run.method.name})')
    return told


if __name__ == '__main__':
    if any(a.startswith('-') and a != '--committed' for a in sys.argv[1:]): sys.exit(__doc__)
    told = golden() if GOLDEN.exists() else dict(methods={}, committed={})
    names = [a for a in sys.argv[1:] if not a.startswith('-')]
    if not names and '--committed' not in sys.argv: names = sorted(methods())
    for name in names:
        others = {id: line for id, line in told['methods'].items() if not line[0].startswith(f'{name},')}
        told['methods'] = others | lines_of(name)
    old = told['committed']
    told['committed'] = {id: old.get(id) or written(id, said) for id, said in committed_ids().items()}
    GOLDEN.write_text(json.dumps(told, indent=0, sort_keys=True) + '\n')
