"""The arena decides rightly, shares seeds and partitions among its methods, and lets a user's method in."""
import json

import numpy as np
import pandas as pd
import pytest

from fedcl_repro.papers.arena import experiments as arena
from fedcl_repro.evidence.experiments import EXPERIMENTS, experiments, runs_of, table_runs
from fedcl_repro.evidence.intervals import ALPHA
from fedcl_repro.runs.store import Store
from fedcl_repro.evidence.cells import owner_of
from fedcl_repro.evidence.decision import answer
from fedcl_repro.runs.rows import described
from fedcl_repro.evidence.verdict import OURS

CLAIMS = arena.arena_claims('lite')


def rows_of(profile='lite', noise=.3, **accuracy):
    "Rows of all runs of a profile, at 60 percent but for some labels; 'FedAvg after': after the epoch."
    rows, rng = [], np.random.default_rng(0)
    for placed in table_runs('arena/arena', profile):
        run = placed.run
        about = dict(run=f'{run.method.name}-{run.seed}', **described(run) | placed.cell)
        label, whose = placed.cell['label'], owner_of(run)
        for moment, owner in (('merged', whose), ('trained', 'personal')):
            name = label if owner == whose else f'{label} after'
            level = accuracy.get(name, 60.) + run.seed + noise * rng.normal()
            test = dict(owner=owner, moment=moment, split='test', metric='accuracy', n=2000)
            rows += [about | test | dict(client=i, round=r, value=level / 100)
                     for r in range(10, 110, 10) for i in range(2)]
    return pd.DataFrame(rows)


def words_of(verdicts): return {v.what.partition(':')[0]: v.word for v in verdicts}


def made_up(rng, shift=0.):
    "Five replicates in which all methods are alike; those without labels are as far below as is asked about."
    labels = {label for c in CLAIMS for label in (*c.needs, *c.rivals)}
    common = rng.normal(0, 1, (5, 1))
    table = pd.DataFrame(60 + common + rng.normal(0, .5, (5, len(labels))), columns=sorted(labels))
    return table.assign(**{name: table[name] - 2 for name in ('FedSimCLR', 'MFCL(GN)')})


@pytest.mark.parametrize('c', CLAIMS, ids=lambda c: c.statement[:40])
def test_no_difference_is_rarely_decided(c):
    rng, n = np.random.default_rng(1), 400
    decided = sum(answer(c, made_up(rng)).word in ('holds', 'fails') for _ in range(n))
    assert decided / n <= ALPHA + 2 * (ALPHA * (1 - ALPHA) / n)**.5


def answers(rows, profile='lite', also=()):
    found = arena.arena_answers(arena.arena_verdicts(rows, profile, also))
    return found.answer.tolist(), found


def test_a_large_difference_is_found():
    better = {'FedCoSR': 66., 'FedSSC after': 66., 'MAPL': 66., 'FedSimCLR': 55.}
    yes, found = answers(rows_of(**better, **{'MFCL(GN)': 55.}))
    assert yes == ['yes', 'yes', 'yes', 'yes', 'no'], found
    assert len(found) == found.question.nunique() == 5 # one answer each
    worse = dict.fromkeys(('FedPer', 'Ditto', 'LG-FedAvg', 'FedProto', 'MAPL', 'MOON'), 50.)
    worse |= dict.fromkeys(('FedProx after', 'MOON after'), 50.)
    no, found = answers(rows_of(**worse | {'FedCoSR': 44., 'FedSSC after': 44., 'FedAvg after': 57.}))
    assert no == ['no', 'no', 'no', 'no', 'yes'], found


def test_settings_are_chosen_at_the_moment_that_is_judged(tmp_path):
    "Of two rates of FedAvg, that with which clients end best after their local epoch."
    from fedcl_repro.runs.rows import chosen_rounds, read_rows
    from fedcl_repro.runs.sweep import sweep
    small = dict(data='digits', n_clients=3, n_rounds=2, partition='dirichlet(concentration=0.3)')
    grid, store = {'optimiser.lr': [.01, .0001]}, Store(tmp_path)
    chosen = {m: sweep(['fedavg'], grid, store=store, moment=m, **small).iloc[0]
              for m in ('merged', 'trained')}
    runs = [arena.run_with(arena.Spec('fedavg'), {'optimiser.lr': lr}, validation=.1, seed=0, **small)
            for lr in grid['optimiser.lr']]
    best = chosen_rounds(read_rows(runs, store), 'trained').micro.max()
    assert chosen['trained'].valid == pytest.approx(best)
    assert chosen['merged'].valid != pytest.approx(best)


def test_a_shared_model_is_tested_at_both_moments_of_one_run():
    rows = rows_of(**{'FedAvg': 40., 'FedAvg after': 70.}, noise=0.)
    runs = arena.ARENA.runs(rows)
    means = runs.groupby('label').micro.mean()
    assert (means['FedAvg'], means['FedAvg + epoch'], means['FedPer']) == pytest.approx((42., 72., 62.))
    assert len(runs) == 5 * (len(arena.ARENA_FILE['methods']) + 4) # four of the methods share their model


@pytest.mark.parametrize('profile', ['quick', 'lite'])
def test_methods_of_a_replicate_share_seed_and_partition(profile):
    runs, seeds = runs_of('arena/arena', profile), arena.ARENA_SIZES[profile]['seeds']
    parts = 'data', 'partition', 'scarcity', 'n_clients', 'n_rounds', 'batch_size', 'augmentation', 'dtype'
    assert len({tuple(getattr(r, k) for k in parts) for r in runs}) == 1
    assert {(r.seed, r.partition_seed) for r in runs} == {(k, k) for k in range(seeds)}
    for k in range(seeds): assert len({r.method for r in runs if r.seed == k}) == len(runs) / seeds
    for spec in arena.arena_specs(profile).values():
        tried = arena.arena_trials(spec, profile)
        assert len(set(tried)) == 4 and all(r.validation and r.partition_seed >= seeds for r in tried)


def test_its_questions_are_ours_and_counted_with_no_paper():
    said = EXPERIMENTS['arena/arena'].about['judge'](rows_of(), 'lite')
    assert {v.source for v in said} == {OURS} and len(said) == len(CLAIMS)
    ours = [e.about for e in experiments().values() if e.about['paper'] == 'arena']
    assert {about['kind'] for about in ours} == {'figure', 'extra'}
    assert {v.size for v in said} == {'a quarter of the images, 100 rounds'}


def test_a_spot_check_answers_nothing():
    "All images are trained for a few methods once; the answers stay those of the five replicates."
    assert set(words_of(arena.arena_verdicts(rows_of('paper'), 'paper')).values()) == {'not run'}


def test_each_choice_is_one_of_its_methods_trials():
    tuned = arena.settings_chosen(arena.arena_tuning(), 'lite')
    specs = {spec.name: spec for spec in arena.arena_specs('lite').values()}
    assert set(tuned) == set(specs)
    for name, spec in specs.items():
        grid = arena.trials([spec], arena.arena_grid(spec))[spec]
        assert tuned[name] in [dict(trial) for trial in grid], name


def test_choices_replace_those_of_their_profile(tmp_path, monkeypatch):
    (tmp_path/'arena'/'results').mkdir(parents=True)
    monkeypatch.setenv('FEDCL_PAPERS', str(tmp_path))
    def row(profile, rate):
        settings = f'optimiser.lr={rate}'
        return dict(profile=profile, method='fedper', settings=settings, valid=1., test=1.)
    for rows in ([row('lite', .01), row('quick', .01)], [row('lite', .001)]):
        arena.write_arena_tuning(pd.DataFrame(rows))
    for profile, rate in dict(lite=.001, paper=.001, quick=.01).items():
        assert arena.settings_chosen(arena.arena_tuning(), profile) == {'fedper': {'optimiser.lr': rate}}
    fedper = [p.run for p in arena.arena_runs('lite') if p.run.method.name == 'fedper']
    assert {dict(r.optimiser.settings)['lr'] for r in fedper} == {.001}


OWN = '''
import torch
from fedcl_repro.federation.method import METHODS, Method, send
from fedcl_repro.parts.fields import select
from fedcl_repro.parts.mixing import keep_part

@METHODS.add('half_and_half', title='Half and half', family='personal_layers', owner='personal')
def half_and_half(*, share=.5):
    "FedPer whose clients keep a share of their own body."
    def merge(client, message): return client | keep_part(client, select(message, 'body.'),
    torch.tensor(share))
    return Method(merge=merge, upload=send('body.'))
'''

SMALL = '''
import sys
from fedcl_repro.cli import main
from fedcl_repro.papers.arena.experiments import ARENA_FILE, ARENA_SIZES
for label in set(ARENA_FILE['methods']) - {'Local', 'FedAvg', 'FedPer'}: del ARENA_FILE['methods'][label]
ARENA_SIZES['quick']['base'] |= dict(n_rounds=2, n_clients=3, scarcity='all_clients(share=0.2)')
ARENA_SIZES['quick']['trial'] |= dict(n_rounds=1)
sys.exit(main(sys.argv[1:]))
'''


def test_a_users_method_enters_by_one_command(tmp_path, fresh):
    (tmp_path/'my_method.py').write_text(OWN)
    store = tmp_path/'runs'
    options = '--use', tmp_path/'my_method.py', '--jobs', '1'
    done = fresh.run(SMALL, 'arena', *options, FEDCL_STORE=str(store))
    assert done.returncode == 0, done.stderr
    assert 'half_and_half: optimiser.lr=' in done.stdout
    line, = (l for l in done.stdout.splitlines() if l.lstrip().startswith('Half and half'))
    assert float(line.split()[3]) > 0, 'its accuracy'
    assert max(map(len, done.stdout.splitlines())) <= 80
    for question in arena.ARENA_FILE['questions']: assert question in done.stdout
    configs = [json.loads(p.read_text())['config'] for p in store.glob('*/run.json')]
    tried = [c for c in configs if c.get('validation')]
    assert len(tried) == 4 and {c['method']['name'] for c in tried} == {'half_and_half'}
    assert {c['partition_seed'] for c in tried} == {1000}
    assert {c['method']['name'] for c in configs} == {'local', 'fedavg', 'fedper', 'half_and_half'}


@pytest.mark.parametrize('text, why', [
    ('', 'no method is registered'), (OWN.replace('Half and half', 'FedPer'), 'title')])
def test_a_file_without_a_method_is_refused(tmp_path, fresh, text, why):
    (tmp_path/'mine.py').write_text(text)
    done = fresh.run(SMALL, 'arena', '--use', tmp_path/'mine.py', FEDCL_STORE=str(tmp_path/'runs'))
    assert done.returncode == 2 and why in done.stderr
