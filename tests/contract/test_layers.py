"""Representations are tested before and after the projection, in one evaluation of one run; a comparison of
methods takes one of these layers, and a table names it."""
from dataclasses import replace

import pandas as pd
import pytest
from golden import golden_run

from fedcl_repro.evidence.ask import ask
from fedcl_repro.evidence.cells import at_layer, our_cells
from fedcl_repro.evidence.claim import above
from fedcl_repro.evidence.experiments import committed, committed_rows
from fedcl_repro.federation.evaluation import evaluate
from fedcl_repro.federation.loop import Loop
from fedcl_repro.federation.method import AFTER_PROJECTION, BEFORE_PROJECTION, BOTH_LAYERS, METHODS
from fedcl_repro.federation.rounds import rounds
from fedcl_repro.papers.mfcl.experiments import MFCL, Setting, mfcl_published, ours, rival
from fedcl_repro.runs.record import MEASURE_COLUMNS, accuracy_at, score_rows
from fedcl_repro.runs.rows import described
from fedcl_repro.runs.run import federation, stages
from fedcl_repro.show.tables import table_cells

TESTED = dict.fromkeys(('fedsimclr', 'fedu', 'fedema', 'orchestra', 'featarc'), BEFORE_PROJECTION)
TESTED |= dict(mfcl=AFTER_PROJECTION)


def trained(run):
    "The executor, stages and last state of a run."
    execute, todo = Loop(federation(run)), stages(run)
    *_, state = rounds(execute, todo)
    return execute, todo, state


def probed_at(todo, layer):
    "The same stages, tested at a layer."
    def moved(method): return replace(method, probe=replace(method.probe, tested=layer))
    return tuple(replace(stage, method=moved(stage.method)) for stage in todo)


@pytest.mark.parametrize('name', TESTED)
def test_both_layers_come_from_one_evaluation(name):
    "The count beside is that of the same state, tested at the other layer; the rows have both."
    execute, todo, state = trained(golden_run(name, 'adam', 0))
    here, other = TESTED[name], next(layer for layer in BOTH_LAYERS if layer != TESTED[name])
    scores = evaluate(execute, todo, state, 'merged')
    there = evaluate(execute, probed_at(todo, other), state, 'merged')
    assert [s.others for s in scores] == [((other, s.correct),) for s in there]
    assert [s.others for s in there] == [((here, s.correct),) for s in scores]
    assert [s.correct for s in scores] != [s.correct for s in there], 'the layers would not be told apart'
    rows = pd.DataFrame(score_rows(1, 'shared', dict(merged=scores)), columns=MEASURE_COLUMNS)
    right = rows[rows.metric == accuracy_at(other)]
    assert list((right.value * right.n).round().astype(int)) == [s.correct for s in there if s.n]


def test_which_methods_have_both_layers():
    "All that are tested by a classifier of representations; a layer that no projection follows stands alone."
    def probe_of(name): return stages(golden_run(name, 'adam', 0))[-1].method.probe
    with_projection = {name for name in METHODS if probe_of(name).project}
    assert with_projection == set(TESTED)
    for probe in 'enc', 'pixels':
        run = golden_run('mfcl', 'adam', 0)
        execute, todo, state = trained(replace(run, method=run.method(probe=probe)))
        assert {s.others for s in evaluate(execute, todo, state, 'merged')} == {()}


def run_rows(placed, *, accuracy, other=None):
    "The rows of a run of one shared model, in percent; `other`: at the layer that is not tested."
    run = placed.run
    about = dict(run=f'{hash(run):x}', **described(run) | placed.cell, round=30, client=0, owner='shared',
                 moment='merged', split='test', n=10_000)
    layer = BOTH_LAYERS[MFCL.layer(run) == BEFORE_PROJECTION]
    values = {'accuracy': accuracy} | ({accuracy_at(layer): other} if other is not None else {})
    return [about | dict(metric=metric, value=value / 100) for metric, value in values.items()]


def table_rows(both, seeds=3):
    "Rows of three methods; FedSimCLR is above MFCL(TN) before the projection, and below it behind it."
    rows = []
    for seed in range(seeds):
        setting, d = Setting('lite', 'cifar10', .01, seed), .1 * seed
        rows += run_rows(ours(setting), accuracy=50 + d, other=40 - d if both else None)
        rows += run_rows(ours(setting, dict(norm='gn')), accuracy=48 - d, other=44 + d if both else None)
        rows += run_rows(rival('fedsimclr', setting), accuracy=45 + d, other=30 - d if both else None)
        rows += run_rows(rival('fedavg', setting), accuracy=20.)
    return pd.DataFrame(rows)


def asked(high, low, both): return ask(MFCL, [above(high, low)], table_rows(both), 'lite')[0]


def test_methods_are_compared_at_one_layer_where_rows_allow():
    v = asked('MFCL(TN)', 'FedSimCLR', both=True)
    assert v.margin == pytest.approx(-5.2) and v.layers == BEFORE_PROJECTION
    assert v.turned == 'but +20.20 after projection', 'the other layer turns the sign'
    early = asked('MFCL(TN)', 'FedSimCLR', both=False)
    assert early.margin == pytest.approx(5.)
    assert early.layers == 'at different layers: MFCL(TN) after projection, FedSimCLR before projection'


def test_methods_of_one_layer_stay_there_and_a_turned_sign_is_said():
    v = asked('MFCL(TN)', 'MFCL(GN)', both=True)
    assert v.margin == pytest.approx(2.2) and not v.layers and v.turned == 'but -4.20 before projection'
    assert not asked('MFCL(TN)', 'MFCL(GN)', both=False).turned
    supervised = asked('MFCL(TN)', 'FedAvg', both=False)
    assert not supervised.layers, 'a classifier of its own has no other layer'


def test_runs_without_the_layer_are_left_out_of_a_comparison():
    "Three early runs of MFCL(TN) and one new one: only this one has the layer of FedSimCLR."
    early, new = table_rows(False), table_rows(True, seeds=1)
    rows = pd.concat([early[early.seed > 0], new])
    v = ask(MFCL, [above('MFCL(TN)', 'FedSimCLR')], rows, 'lite')[0]
    assert v.margin == pytest.approx(-5.) and 'one run' in v.evidence
    there = at_layer(MFCL, rows, BEFORE_PROJECTION)
    assert there.groupby('label').run.nunique().to_dict() == {
        'FedAvg': 3, 'FedSimCLR': 3, 'MFCL(GN)': 1, 'MFCL(TN)': 1}


def cells(rows): return our_cells(MFCL, rows, ['label']).set_index('label')


def test_tables_name_the_layer_and_show_both_where_rows_have_them():
    new, early = cells(table_rows(True)), cells(table_rows(False))
    for table in new, early:
        assert table.tested[['MFCL(TN)', 'MFCL(GN)']].eq(AFTER_PROJECTION).all()
        assert table.tested[['FedSimCLR', 'FedAvg']].tolist() == [BEFORE_PROJECTION, 'own classifier']
    assert not set(BOTH_LAYERS) & set(early)
    assert new.loc['MFCL(TN)', list(BOTH_LAYERS)].tolist() == pytest.approx([39.9, 50.1])
    assert new.loc['FedSimCLR', list(BOTH_LAYERS)].tolist() == pytest.approx([45.1, 29.9])
    assert new.loc['FedAvg', list(BOTH_LAYERS)].isna().all()
    shown = table_cells(MFCL, mfcl_published('table14'), table_rows(True), 'lite').set_index('label')
    assert shown.loc['FedSimCLR', BEFORE_PROJECTION] == pytest.approx(shown.loc['FedSimCLR', 'ours'])


def test_committed_rows_keep_both_layers_and_early_ones_have_one():
    kept = committed_rows(table_rows(True), False)
    assert kept.metric.value_counts()[accuracy_at(AFTER_PROJECTION)] == 3
    rows = committed('mfcl/table2', 'lite')
    with_both = rows.run[rows.metric.isin(map(accuracy_at, BOTH_LAYERS))]
    early = rows[~rows.run.isin(with_both)]
    assert not set(BOTH_LAYERS) & set(cells(early)) and cells(early).tested['FedSimCLR'] == BEFORE_PROJECTION
