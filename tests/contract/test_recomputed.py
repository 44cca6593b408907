"""Verdicts of different kinds, computed again from the committed files in plain numpy, without the code that
judges: words, margins and intervals agree."""
import json
from functools import cache
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy.stats import t as student

RESULTS = Path(__file__).parents[2]/'nbs'/'papers'
PUBLISHED = Path(__file__).parents[2]/'fedcl_repro'/'published'/'results.csv'


@cache
def files(paper):
    "The configurations of a paper's committed runs, and their rows of test accuracy."
    configs, tables = {}, {}
    for path in sorted((RESULTS/paper/'results').glob('*-lite.json')):
        rows = pd.read_csv(path.with_suffix('.csv'))
        rows = rows[(rows.metric == 'accuracy') & (rows.split == 'test') & (rows.n > 0)]
        known = {r['run']: r['config'] for r in json.loads(path.read_text())}
        tables |= {run: own for run, own in rows.groupby('run') if run in known and run not in configs}
        configs |= known
    return configs, tables


def curve(name, run, moment='merged'):
    "Rounds, and pooled accuracies in percent."
    own = files(name)[1][run]
    own = own[own.moment == moment]
    g = (own.value * own.n).groupby(own['round']).sum() / own.n.groupby(own['round']).sum()
    return g.index.to_numpy(), 100 * g.to_numpy()


def late(name, run, moment='merged'):
    values = curve(name, run, moment)[1]
    return values[-min(5, max(1, len(values) // 2)):].mean()


def by_seed(name, moment='merged', **wanted):
    "Late accuracies of the runs with these settings, by seed. A setting is a path: partition__concentration."
    def value(config, path):
        for part in path.split('__'): config = config.get(part, {}) if isinstance(config, dict) else {}
        return config
    return {c['seed']: late(name, run, moment) for run, c in files(name)[0].items()
            if c['partition_seed'] == c['seed'] and all(value(c, k) == v for k, v in wanted.items())}


def paired(a, b): return np.array([a[s] - b[s] for s in sorted(set(a) & set(b))])


def ends(m, alpha=.05, images=0.):
    half = student.ppf(1 - alpha / 2, len(m) - 1) * np.sqrt(m.var(ddof=1) / len(m) + images)
    return m.mean() - half, m.mean() + half


def word(low, high): return 'holds' if low > 0 else 'fails' if high < 0 else 'open'


def judged(name, begins):
    from fedcl_repro.evidence.experiments import committed_verdicts
    return next(v for v in committed_verdicts(name)[1] if v.what.startswith(begins))


def agrees(v, expected, between, margin=None, tolerance=1e-3):
    assert v.word == expected and v.interval == pytest.approx(between, abs=tolerance), (v, between)
    if margin is not None: assert v.margin == pytest.approx(margin, abs=1e-3)


TENTH = dict(scarcity__name='all_clients', scarcity__share=.1, partition__concentration=.1, n_clients=20,
             data__name='cifar10', n_rounds=100, optimiser__name='adam')


def test_one_method_above_another():
    a, b = (by_seed('fedcosr', method__name=m, **TENTH) for m in ('fedcosr', 'local'))
    m = paired(a, b)
    assert len(m) == 6
    agrees(judged('fedcosr/table2', 'FedCoSR is above Local: practical CIFAR-10, 10 %'), word(*ends(m)),
           ends(m), m.mean())


def test_above_a_model_after_its_local_epoch():
    whole = dict(scarcity__name='none', partition__concentration=.1, n_clients=20, n_rounds=100,
                 dtype='bfloat16',
                 data__name='cifar10')
    own = by_seed('fedcosr', method__name='fedcosr', **whole)
    m = paired(own, by_seed('fedcosr', 'trained', method__name='fedavg', **whole))
    assert len(m) == 3
    agrees(judged('fedcosr/table2', 'FedCoSR is above FedAvg after one local epoch: practical CIFAR-10'),
           word(*ends(m)), ends(m), m.mean())


def test_the_best_of_several():
    "Nine that share: personal methods, and shared ones after an epoch, all tested after local training."
    names = 'fedper ditto lg_fedavg fedproto fedcosr fedavg fedprox moon fedssc'.split()
    local = by_seed('arena', 'trained', method__name='local')
    rate = dict.fromkeys(('fedavg', 'fedprox', 'fedper', 'lg_fedavg'), dict(optimiser__lr=.003)) # of two
    apart = [paired(local, by_seed('arena', 'trained', method__name=m, **rate.get(m, {}))) for m in names]
    assert {len(m) for m in apart} == {5}
    low = min(ends(m, .05 / 2)[0] for m in apart) # two looks: after three replicates and after five
    high = min(ends(m, .05 / 2 / len(apart))[1] for m in apart)
    claim = judged('arena/arena', 'no method that shares and trains on one view is above training alone')
    agrees(claim, word(low, high), (low, high), min(m.mean() for m in apart))


def test_a_number_beyond_a_limit():
    beta = dict(partition__name='dirichlet', partition__protocol='personal', partition__concentration=.1,
                scarcity__name='none', n_rounds=12)
    m = np.array(list(by_seed('fedcosr', method__name='local', **beta).values())) - 69.9
    agrees(judged('fedcosr/local', 'training alone is above'), word(*ends(m)), ends(m), m.mean())


FEDSSC = dict(n_rounds=40, partition__concentration=.5, scarcity__share=.2)


def at_default(c):
    "A replicate has a partition of its own."
    return c['n_rounds'] == 40 and c['partition']['concentration'] == .5 and c['partition_seed'] == c['seed']


def images_of(a, b):
    "Variance of the mean difference over test images, from the seeds whose answers are stored."
    with np.load(RESULTS/'fedssc/results/table1-lite-hits.npz') as z:
        hits = {k.split('-')[0]: np.unpackbits(z[k], axis=1)[:, :int(k.split('-')[1])].mean(axis=0)
                for k in z}
    runs = {(c['method']['name'], c['seed']): run for run, c in files('fedssc')[0].items() if at_default(c)}
    seeds = [s for s in range(6) if all(runs.get((m, s)) in hits for m in (a, b))]
    assert len(seeds) == 6
    apart = np.mean([hits[runs[a, s]] - hits[runs[b, s]] for s in seeds], axis=0)
    return 100**2 * apart.var() / len(apart)


def test_models_on_one_test_set():
    a, b = (by_seed('fedssc', method__name=m, **FEDSSC) for m in ('fedssc', 'fedavg'))
    m = paired(a, b)
    v = images_of('fedssc', 'fedavg')
    assert v < .05
    between = ends(m, images=v)
    # 400 draws
    agrees(judged('fedssc/table1', 'FedSSC is more accurate than FedAvg'), word(*between), between, m.mean(),
           .03)


def test_two_methods_at_one_level():
    a, b = (by_seed('fedssc', method__name=m, **FEDSSC) for m in ('fedssc', 'moon'))
    m = paired(a, b)
    sides = [ends(side, images=images_of('fedssc', 'moon')) for side in (m + 2, 2 - m)]
    upper = [ends(side, .025, images_of('fedssc', 'moon'))[1] for side in (m + 2, 2 - m)]
    between = min(low for low, _ in sides), min(upper)
    agrees(judged('fedssc/table1', 'FedSSC is at the level of MOON'), word(*between), between, tolerance=.03)


def test_rounds_to_a_target():
    def first(run):
        at, values = curve('fedssc', run)
        return at[values >= 50][0] if (values >= 50).any() else np.inf
    rounds = {(c['method']['name'], c['seed']): first(run)
              for run, c in files('fedssc')[0].items() if at_default(c)}
    m = np.array([rounds['fedavg', s] - rounds['fedssc', s] for s in range(6)
                  if np.isfinite([rounds['fedavg', s], rounds['fedssc', s]]).any()])
    assert len(m) == 5 and np.isfinite(m).all() # in one replicate neither reaches it
    agrees(judged('fedssc/table1', 'FedSSC reaches 50 % in fewer rounds than FedAvg'), word(*ends(m)),
           ends(m), m.mean())


def test_below_a_trivial_baseline():
    own = dict(partition__concentration=.01, scarcity__share=.1)
    names = 'fedavg fedprox moon fsl fedsimclr orchestra fedema fedu featarc'.split()
    rivals = [a for m in names for a in by_seed('mfcl', method__name=m, **own).values()]
    twin = by_seed('mfcl', method__name='mfcl', model__norm='tn', method__positives='across',
                   method__probe='proj',
                   method__phase1=5, **own)
    random = by_seed('mfcl', method__name='mfcl', method__probe='enc', method__phase1=1,
                     optimiser__name='sgd', **own)
    assert len(twin) == 3 and np.mean(list(twin.values())) < 37
    assert max([*rivals, *twin.values()]) < min(random.values())
    best = judged('mfcl/table2', 'MFCL(TN) outperforms all other SFL and SSFL methods: CIFAR-10, ξ = 0.01')
    assert best.word == 'not learned'


def test_a_published_number():
    whole = dict(scarcity__name='none', partition__concentration=.1, n_clients=20, n_rounds=100,
                 dtype='bfloat16',
                 data__name='cifar10', method__name='local')
    m = np.array(list(by_seed('fedcosr', **whole).values()))
    low, high = ends(m)
    cells = pd.read_csv(PUBLISHED)
    cell = cells[(cells.paper == 'fedcosr') & (cells.artifact == 'table2') & (cells.method == 'Local')
                 & (cells.dataset == 'cifar10') & (cells.metric == 'accuracy')
                 & cells.setting.str.contains('dirichlet')].value.astype(float).item()
    assert not low <= cell <= high
    agrees(judged('fedcosr/table2', 'Local, practical CIFAR-10'), 'differs', (low, high), m.mean())


def test_a_claim_against_the_papers_own_table():
    cells = pd.read_csv(PUBLISHED)
    own = cells[(cells.paper == 'mfcl') & (cells.artifact == 'table14') & (cells.metric == 'accuracy')]
    own = own[own.setting.str.contains(r'xi=0\.0?1(?:;|$)')].assign(value=lambda t: t.value.astype(float))
    names = 'FedAvg FedProx MOON FSL FedSimCLR Orchestra FedEMA FedU FeatARC'.split()
    leads = [t.set_index('method').value for _, t in own.groupby(['dataset', 'setting'])]
    leads = [t['MFCL(TN)'] - t[[n for n in names if n in t]].max() for t in leads]
    assert len(leads) == 6 and min(leads) < 0 < max(leads)
    assert judged('mfcl/table2', 'as published, MFCL(TN) outperforms all other').word == 'contradicts itself'
