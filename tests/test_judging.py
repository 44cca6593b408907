"""Claims in simulated federations whose truth is known: at most 5 % are decided without a difference, and a
large difference is found, for each kind of claim."""
import numpy as np
import pandas as pd
import pytest

from fedcl_repro.evidence.intervals import Spread, moved
from fedcl_repro.evidence.claim import Claim, above, best, level, ordered
from fedcl_repro.evidence.ask import Chance, answer

COMMON, OWN = 2., .35 # points: what all methods of a replicate share, and what each has for itself
LABELS = 'ABCDEF'


def table(case:int, replicates:int, gaps=(0.,)*6):
    "Numbers of six methods in some replicates, each better by its gap."
    rng = np.random.default_rng([case, replicates])
    shape = replicates, len(LABELS)
    values = 75 + np.array(gaps) + COMMON * rng.normal(size=(replicates, 1)) + OWN * rng.normal(size=shape)
    return pd.DataFrame(values, columns=list(LABELS), index=pd.Index(range(replicates), name='seed'))


def most_above(than='A')->Claim:
    "More than half of the other methods are above one of them."
    def votes(t): return t.drop(columns=than).sub(t[than], axis=0) > 0
    return Claim('most', tuple(LABELS), lambda t: votes(t).mean(axis=1) - .5, votes=votes)


KINDS = dict(
    above=above('A', 'B'),
    best=best('A', LABELS),
    ordered=ordered('ABC', 'A, then B, then C'),
    level=level('', .0001, gap='AB'), # the smallest claim of equality: false, and not to be refuted by chance
    most=most_above(),
)


def shares(claim, replicates, gaps=(0.,)*6, cases=240):
    "How often each word is said."
    words = [answer(claim, table(case, replicates, gaps)).word for case in range(cases)]
    return {w: words.count(w) / cases for w in ('holds', 'undecided', 'fails')}


@pytest.mark.parametrize('replicates', [3, 6])
@pytest.mark.parametrize('kind', KINDS)
def test_nothing_is_decided_without_a_difference(kind, replicates):
    said = shares(KINDS[kind], replicates)
    allowed = .05 + 2 * (.05 * .95 / 240)**.5 # and two standard errors of the simulation
    assert said['holds'] <= allowed and said['fails'] <= allowed, said


@pytest.mark.parametrize('kind, gaps', [
    ('above', (3., 0, 0, 0, 0, 0)), ('best', (3., 0, 0, 0, 0, 0)), ('ordered', (6., 3., 0, 0, 0, 0)),
    ('most', (-3., 0, 0, 0, 0, 0))])
def test_a_large_difference_is_found(kind, gaps):
    said = shares(KINDS[kind], 6, gaps, 80)
    assert said['holds'] > .9, said
    turned = shares(KINDS[kind], 6, tuple(-g for g in gaps), 80)
    assert turned['fails'] > .9, turned


def test_two_standard_errors_are_found_as_often_as_promised():
    se = OWN * 2**.5 / 6**.5
    said = shares(KINDS['above'], 6, (2 * se, 0, 0, 0, 0, 0))
    assert said['holds'] > .3 and said['fails'] <= .02, said


def test_one_run_is_judged_by_the_spread_of_its_family():
    family = dict.fromkeys(LABELS, Spread(COMMON, OWN, 12))
    def word(case, gaps):
        one = table(case, 1, gaps)
        return answer(KINDS['above'], one, chance=Chance(alone={12: moved(one, family)})).word
    level_ = [word(case, (0.,)*6) for case in range(240)]
    assert np.mean([w != 'one run' for w in level_]) <= .08
    assert [word(case, (17., 0, 0, 0, 0, 0)) for case in range(5)] == ['holds']*5
    assert answer(KINDS['above'], table(0, 1, (17., 0, 0, 0, 0, 0))).word == 'one run' # no family is known
