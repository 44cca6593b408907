"""Judges of experiments take whatever part of the runs is there: what was not run is said, never an error."""
import pytest

from fedcl_repro.study.experiments import experiments, runs_of
from fedcl_repro.study.store import Store
from fedcl_repro.study.training import read_rows

TRAINED = [n for n in experiments() if runs_of(n, 'quick')]


@pytest.mark.parametrize('name', TRAINED)
def test_a_judge_takes_part_of_the_runs(name, report):
    rows = read_rows(runs_of(name, 'quick'), Store(report[1]/'runs'), None)
    ids = list(dict.fromkeys(rows.run))
    assert ids, 'nothing was trained'
    judge = experiments()[name].about['judge']
    for some in (ids[:1], ids[-1:], ids[1:], ids[:-1]):
        for profile in ('quick', 'paper'): judge(rows[rows.run.isin(some)], profile)
    words = {v.word for v in judge(rows[:0], 'quick')}
    assert not any(w.startswith('stand-in') for w in words), 'a number is judged that nobody measured'
