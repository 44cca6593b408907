"""Judges of experiments take whatever part of the runs is there: what was not run is said, never an error."""
import pytest

from fedcl_repro.evidence.experiments import (
    PROFILES, committed, committed_runs, experiments, runs_of, shown_table_runs, table_runs, with_cells)
from fedcl_repro.runs.store import Store
from fedcl_repro.runs.rows import described, read_rows

TRAINED = [n for n in experiments() if runs_of(n, 'quick')]
COMMITTED = {n: profile for profile in PROFILES for n in TRAINED if committed_runs(n, profile)}


def takes_part(name, rows):
    "One run, all but one, none; and what is not there is not judged."
    ids = list(dict.fromkeys(rows.run))
    judge = experiments()[name].about['judge']
    parts = (ids[:1], 'quick'), (ids[-1:], 'paper'), (ids[1:], 'paper'), (ids[:-1], 'quick')
    for some, profile in parts: judge(rows[rows.run.isin(some)], profile)
    words = {v.word for v in judge(rows[:0], 'quick')}
    assert not any(w.startswith('stand-in') for w in words), 'a number is judged that nobody measured'


@pytest.mark.parametrize('name', COMMITTED)
def test_a_judge_takes_part_of_the_committed_runs(name): takes_part(name, committed(name, COMMITTED[name]))


@pytest.mark.nightly
@pytest.mark.parametrize('name', TRAINED)
def test_a_judge_takes_part_of_the_quick_runs(name, everything):
    rows = read_rows(runs_of(name, 'quick'), Store(everything[1]/'runs'))
    rows = with_cells(rows, table_runs(name, 'quick'))
    assert len(rows), 'nothing was trained'
    takes_part(name, rows)


@pytest.mark.parametrize('profile', PROFILES)
@pytest.mark.parametrize('name', [n for n in TRAINED if not n.endswith('/claims')])
def test_a_run_says_its_cell(name, profile):
    "It has a value for each column that identifies a setting of its table, and a label."
    for placed in shown_table_runs(name, profile):
        columns = {*placed.cell, *described(placed.run)}
        missing = {*experiments()[name].about['names'].keys, 'label'} - columns
        assert not missing, (placed.run.method, missing)


SEVERAL = { # experiment: why several committed runs are in one cell
    'mapl/fig4': 'two lengths, whose rounds are told apart', 'mapl/fig6': 'the same',
    'mfcl/table17': 'groups of channels, a column of its own',
    'mapl/table7': 'networks, told apart by its judge'}


@pytest.mark.parametrize('name', [n for n in COMMITTED if not n.endswith('/claims') and n not in SEVERAL])
def test_a_cell_has_one_committed_run_for_each_seed(name):
    "Otherwise a table would average two kinds of runs under one label."
    paper, rows = experiments()[name].about['names'], committed(name, COMMITTED[name])
    runs = rows.drop_duplicates('run').dropna(subset=list(paper.keys))
    several = runs.groupby([*paper.keys, 'label', 'seed']).run.nunique().loc[lambda n: n > 1]
    assert not len(several), several
