"""The rows of every method, and the names of committed runs, as they are now; written by
`python tests/tools/golden.py METHOD...` (all without names), and `--committed` for new committed runs.
Rows are held by a checksum, a random projection of their values: the last bits differ between processors."""
import json
import sys
import tempfile
from pathlib import Path

import numpy as np
import torch.nn as nn

from fedcl_repro.core import Spec, stream
from fedcl_repro.data.partition import PARTITIONS, Shards
from fedcl_repro.federation.method import BOTH_LAYERS
from fedcl_repro.parts.models import MODELS, Head
from fedcl_repro.parts.twin_norm import TwinNorm, Twins
from fedcl_repro.runs.record import accuracy_at
from fedcl_repro.runs.run import Run, find_root, fingerprint, methods, run_id
from fedcl_repro.runs.store import Store
from fedcl_repro.runs.train import train

ROOT = Path(__file__).parents[2]
GOLDEN = ROOT/'tests'/'contract'/'golden.json'
WAYS = ('sgd(lr=0.05, momentum=0.9)', 0), ('adam', 1) # optimiser, seed
# metrics that came later; their own pages hold them
LATER = ['balanced', 'share kept', *map(accuracy_at, BOTH_LAYERS)]


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
