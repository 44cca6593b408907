"""A researcher's week: what the package shows of itself, tables for a paper, data as people have them, models
that validation chose, loggers."""
import ast
import contextlib
import doctest
import inspect
import io
import json
import math
import os
import re
import shlex
import shutil
import subprocess
import sys
from dataclasses import replace
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace

import pandas as pd
import pytest
import torch

import fedcl_repro
from fedcl_repro import cli
from fedcl_repro.commands import train as train_commands
from fedcl_repro.commands.show import without_constants
from fedcl_repro.commands.study import read_study
from fedcl_repro.evidence import experiments
from fedcl_repro.evidence.cells import cells_by_run, run_sizes, runs_in
from fedcl_repro.parts import contrastive
from fedcl_repro.publish.execute import papermill_error
from fedcl_repro.runs.models import network_input
from fedcl_repro.runs.record import MEASURE_COLUMNS
from fedcl_repro.runs.rows import read_rows
from fedcl_repro.runs.run import dataset, run_id, run_recorded
from fedcl_repro.runs.simulate import data_spec, named_data
from fedcl_repro.runs.store import Store
from fedcl_repro.runs.train import train
from fedcl_repro.runs.watch import Extras, logged_settings
from fedcl_repro.show.compare import compare, numbers_of, paper_table

ROOT = Path(__file__).parents[2]


# --- the front door

def test_completion_help_and_type_checkers_see_the_same_names():
    "The names of `__all__`, those that type checkers read, and what jedi completes."
    tree = ast.parse(Path(fedcl_repro.__file__).read_text(encoding='utf-8'))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    homes = {a.asname: node.module.removeprefix('fedcl_repro.') for node in block.body for a in node.names}
    assert homes == fedcl_repro._homes
    assert {name for name in dir(fedcl_repro) if not name.startswith('__')} == set(homes)
    for name in homes: assert getattr(fedcl_repro, name).__doc__
    jedi = pytest.importorskip('jedi')
    text = 'import fedcl_repro\nfedcl_repro.'
    assert set(homes) <= {c.name for c in jedi.Script(text, path=ROOT/'x.py').complete()}
    call = jedi.Script('from fedcl_repro import infonce\ninfonce(', path=ROOT/'x.py').get_signatures()[0]
    assert [p.name for p in call.params] == ['z', 'y', 'mean', 'have', 'temp']
    assert len(doctest.DocTestParser().get_examples(fedcl_repro.__doc__)) == 3


def test_a_register_of_the_front_door_is_full(fresh):
    names = dict(METHODS='fedper', MODELS='cnn', DATASETS='cifar10', PARTITIONS='dirichlet')
    for register, name in names.items():
        done = fresh.run(f'from fedcl_repro import {register}\nassert {name!r} in {register}')
        assert done.returncode == 0, done.stderr


def test_question_mark_shows_shapes_and_units():
    "In the sections that PyTorch's docstrings have; of functions, data classes and classes."
    doc = fedcl_repro.infonce.__doc__
    assert '\nArgs:\n    z: (b, k) representations' in doc and '\nReturns:\n    (b,) nats' in doc
    assert 'participation: share of the clients in a round' in fedcl_repro.Run.__doc__
    assert '\nArgs:\n    profile: by default the largest' in fedcl_repro.committed.__doc__
    assert 'per_group: channels in a group' in import_module('fedcl_repro.parts.twin_norm').TwinNorm.__doc__
    assert '\nArgs:\n    x, y: images or feature vectors, and labels' in fedcl_repro.own_dataset.__doc__
    mix = import_module('fedcl_repro.parts.mixing').mix.__doc__
    assert 'weights, stacked: (..., m)' in mix and 'Returns:\n    (..., ...)' in mix
    assert '\nArgs:\n    data: a name' in named_data.__doc__ and 'Returns:' not in named_data.__doc__


INNER = 'as_', 'plain_', 'view_', 'pair_', 'check_', 'at_least_float32' # what parts are made of
PARTS = 'contrastive centroids mixing proximal self_supervised simplex graph twin_norm fields'.split()


@pytest.mark.parametrize('name', PARTS)
def test_every_part_has_an_example_that_runs(name):
    module = import_module(f'fedcl_repro.parts.{name}')
    for part in module.__all__:
        made = getattr(module, part)
        if not inspect.isfunction(made) or part.startswith(INNER): continue
        examples = doctest.DocTestParser().get_doctest(made.__doc__, dict(vars(module)), part, None, 0)
        result = doctest.DocTestRunner().run(examples)
        assert result.attempted and not result.failed, part


z, y = torch.randn(4, 3), torch.tensor([0, 1, 0, 1])


@pytest.mark.parametrize('call, says', [
    (lambda: contrastive.ntxent(z.reshape(2, 2, 3), .5), r'z must be of shape \(2n, k\), got \(2, 2, 3\)'),
    (lambda: contrastive.ntxent(z, 0), 'temp, the temperature, must be above 0, got 0'),
    (lambda: contrastive.infonce(z, y[:3], z, y > 0, 1.), r'y must be of shape \(b\), b = 4, got \(3,\)'),
    (lambda: contrastive.supcon(z, y, float('nan')), 'must be above 0, got nan'),
    (lambda: contrastive.model_contrast(z, z[:, :2], z, .5), r'z_glob must be of shape \(b, k\), b = 4'),
    (lambda: contrastive.prototype_contrast(z, y, z[0], 1.), r'prototypes must be of shape \(C, k\)'),
    (lambda: contrastive.ntxent(z.long(), .5), 'z must be of floating-point numbers, got torch.int64'),
    (lambda: contrastive.infonce(z, y + 3, z, y == y, 1.), 'y, the classes, must lie in 0 to 3, got 4'),
    (lambda: contrastive.global_and_local(z, y - 1, z, y == y, 1.), 'must lie in 0 to 3, got -1'),
])
def test_a_loss_names_what_does_not_fit(call, says):
    with pytest.raises(ValueError, match=says): call()


# --- numbers say what they are

README = (ROOT/'README.md').read_text(encoding='utf-8')
BLOCKS = re.findall(r'```python\n(.*?)```', README, re.S)


@pytest.mark.parametrize('block', BLOCKS)
def test_the_readme_prints_what_it_says(block, fresh):
    "Words to the letter; numbers may differ by rounding of another processor."
    done = fresh.run(block)
    assert done.returncode == 0, done.stderr
    said = ' '.join(line[2:] for line in block.splitlines() if line.startswith('# '))
    numbers = [list(map(float, re.findall(r'\d+\.\d', text))) for text in (said, done.stdout)]
    assert re.sub(r'\d+\.\d', 'x', said) == re.sub(r'\d+\.\d', 'x', ' '.join(done.stdout.split()))
    assert numbers[0] == pytest.approx(numbers[1], abs=2)


def test_a_print_says_what_its_number_is_the_mean_of():
    for n_rounds, words in ((1, 'the last evaluation, round 1'), (5, 'the last 2 evaluations, round 5')):
        assert words in str(fedcl_repro.simulate('fedavg', n_clients=3, n_rounds=n_rounds))


def test_a_run_has_one_result_wherever_it_is_printed(tmp_path):
    "What is measured otherwise says so."
    small = dict(n_clients=3, n_rounds=12, scarcity='all_clients(share=0.2)')
    result = fedcl_repro.simulate('fedavg', store=tmp_path, **small)
    (id,) = (p.parent.name for p in tmp_path.glob('*/run.json'))
    one, many = said('show', id, '--store', tmp_path), said('show', '--store', tmp_path)
    late, last = fedcl_repro.summary(result.rows).micro[0], result.curve().micro.iloc[-1]
    lines = [line for line in many.splitlines() if not line.startswith('rows: ')] # a path may be longer
    assert max(map(len, lines)) <= 80 and lines[0].endswith(' sd')
    assert late != last and f'accuracy {late:.1f} %' in str(result)
    assert f'merged   micro {late:.2f} %' in one and f' {late:.2f} ' in many
    assert f'mean of the last 5 evaluations, round 12; the last alone: {last:.2f} %' in one
    assert 'last 10 evaluations: mean' in one
    assert 'percent, merged models, mean of the last 5 evaluations' in ' '.join(many.split())


# --- the table for the paper

@pytest.fixture(scope='module')
def store(tmp_path_factory): return tmp_path_factory.mktemp('week')


SMALL = dict(n_rounds=3, n_clients=3)
OPTIONS = [word for k, v in SMALL.items() for word in ('--set', f'{k}={v}')]


def said(*words):
    "What a command printed; it must succeed."
    out = io.StringIO()
    with contextlib.redirect_stdout(out): assert cli.main([*map(str, words)]) == 0
    return out.getvalue()


def compiled(folder, *tables):
    "Compile a manuscript with these tables by LaTeX; what it says."
    if not shutil.which('pdflatex'): pytest.skip('apt-get install texlive-latex-base')
    rules = ''.join(rf'\newcommand\{name}rule{{\hline}}' for name in ('top', 'mid', 'bottom'))
    lines = [r'\documentclass{article}',
             rf'\IfFileExists{{booktabs.sty}}{{\usepackage{{booktabs}}}}{{{rules}}}',
             r'\usepackage{graphicx,longtable}', r'\begin{document}', *tables, r'\end{document}']
    (folder/'paper.tex').write_text('\n'.join(lines))
    done = subprocess.run(['pdflatex', '-interaction=nonstopmode', '-halt-on-error', 'paper'], cwd=folder,
                          capture_output=True, text=True)
    assert done.returncode == 0 and (folder/'paper.pdf').exists(), done.stdout[-2000:]
    return done.stdout


def test_from_a_comparison_to_a_compiled_page(store, tmp_path):
    files = [word for name, file in dict(table='t.tex', csv='t.csv', figure='f.pdf').items()
             for word in (f'--{name}', tmp_path/file)]
    out = said('compare', 'fedavg', 'fedper', 'local', *OPTIONS, '--store', store, '--jobs', 1, *files)
    assert all(f'{name}: {tmp_path}' in out for name in ('table', 'csv', 'figure'))
    numbers, text = pd.read_csv(tmp_path/'t.csv'), (tmp_path/'t.tex').read_text()
    best = numbers[numbers['rank'] == 'best'].iloc[0]
    assert rf'\textbf{{{best.accuracy:.1f} $\pm$ {best.sd:.1f}}}' in text and r'\toprule' in text
    assert text.count(r'$^\dagger$ &') == (numbers['rank'] == 'not distinguishable from best').sum()
    assert r'\label{tab:t}' in text and 'mean of the last evaluation' not in text
    picture = (tmp_path/'f.pdf').read_bytes()
    assert b'/Type3' not in picture and b'/FontFile2' in picture # TrueType
    compiled(tmp_path, r'\input{t}', r'\includegraphics[width=5cm]{f.pdf}', r'See Table~\ref{tab:t}.')


def test_the_paper_table_has_the_numbers_of_the_comparison(store):
    found = compare(['fedavg', 'fedper', 'local'], store=store, jobs=1, **SMALL)
    table = numbers_of(found).set_index('method')
    by_hand = found.runs.groupby('label').micro
    assert list(table.accuracy) == pytest.approx(list(by_hand.mean()[table.index]))
    assert list(table.sd) == pytest.approx(list(by_hand.std()[table.index]))
    difference = found.table().set_index('method').difference['FedPer']
    assert table.loc['FedPer', 'difference_low'] == pytest.approx(difference.low)
    assert f'({table.low.iloc[0]:.1f} to' in str(found.table(style='paper', spread='interval'))
    with pytest.raises(ValueError, match="'' or 'paper', got 'latex'"): found.table(style='latex')
    wide = 50 * found.runs.seed # percent, farther apart than an interval of a mean can tell
    unknown = replace(found, runs=found.runs.assign(micro=wide))
    assert numbers_of(unknown).low.isna().all() and 'no interval yet' in str(paper_table(unknown, 'interval'))


@pytest.mark.parametrize(
    'name', ['fedcosr/table2', 'mfcl/table2', 'mapl/table1', 'fedcosr/fig5', 'fedssc/table1'])
def test_the_tables_of_an_artifact_compile(name, tmp_path):
    table, csv = tmp_path/'t.tex', tmp_path/'t.csv'
    said('show', name, '--table', table, '--csv', csv)
    assert len(pd.read_csv(csv)) and r'\bottomrule' in table.read_text()
    text = table.read_text()
    blocks = text.split(r'\midrule')[1:]
    explained = 'Verdict: the published number lies inside (agrees)' in text and 'is borrowed from' in text
    assert explained == ('& verdict' in text or 'verdict open' in text)
    if name == 'fedcosr/table2':
        assert r'FedGH & 88.95 & \textbf{87.01} & ' in text and r'$^\dagger$ &' in text
    assert all(block.count(r'\textbf') <= 1 for block in blocks)
    for says in ('Overfull', 'Float too large'): assert says not in compiled(tmp_path, text)


def test_what_all_lines_of_a_table_share_is_in_its_caption():
    table = pd.DataFrame(dict(method=['FedAvg', 'FedPer'], images='10 %', ours=['1.0', '2.0']))
    shown = {'A': table, 'B': table.assign(ours='3.0')}
    assert without_constants(shown)[1] == ' In all lines: images 10 %.'
    assert all(list(t) == ['method', 'ours'] for t in without_constants(shown)[0].values())
    assert without_constants({'A': table[:1]})[1] == '' # of one line, all is said in it


@pytest.mark.parametrize('words, says', [
    (('--table', 't.txt'), 'must end in .tex'), (('--csv', 't.tex'), 'must end in .csv'),
    (('--figure', 'f.doc'), 'must end in one of')])
def test_a_file_that_cannot_be_written_is_refused_before_training(words, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(['compare', 'fedavg', 'fedper', *words]) == 2
    assert says in ' '.join(capsys.readouterr().err.split())


# --- data as people have them

PATIENTS = pd.DataFrame(dict(
    age=[float(k % 7) for k in range(60)], dose=[k % 2 for k in range(60)],
    diagnosis=['healthy' if k % 2 else 'ill' for k in range(60)],
    hospital=[('Charité', 'Mayo', 'Pavlov')[k % 3] for k in range(60)]))


@pytest.mark.parametrize('suffix', ['csv', 'tsv', 'parquet', 'feather'])
def test_a_table_is_read_with_its_label_and_clients(suffix, tmp_path):
    path = tmp_path/f'patients.{suffix}'
    if suffix in ('parquet', 'feather'):
        pytest.importorskip('pyarrow', reason="pip install -e '.[tables]'")
        getattr(PATIENTS, f'to_{suffix}')(path)
    else: PATIENTS.to_csv(path, index=False, sep=',' if suffix == 'csv' else '\t')
    numbers, labels = PATIENTS[['age', 'dose']].to_numpy(), list(PATIENTS.diagnosis)
    by_hand = fedcl_repro.own_dataset(numbers, labels, clients=list(PATIENTS.hospital))
    ds = dataset(named_data(f'{path}(label=diagnosis, client=hospital)'), '')
    assert (ds.fingerprint, ds.classes) == (by_hand.fingerprint, ('healthy', 'ill'))
    assert ds.id_names == {'client': ('Charité', 'Mayo', 'Pavlov')}


@pytest.mark.parametrize('names, kept', [
    (['007', '08'], ('007', '08')), (['7', '10'], ('7', '10')), (['12e4', '3e5'], ('12e4', '3e5'))], ids=str)
def test_names_that_look_like_numbers_stay_as_they_are_written(names, kept, tmp_path):
    lines = [f'{k},{names[k % 2]},{names[k // 2 % 2]}' for k in range(40)]
    (tmp_path/'a.csv').write_text('\n'.join(['age,ward,label', *lines]))
    data = named_data(f'{tmp_path}/a.csv(label=label, client=ward)')
    read = dataset(data, '')
    assert read.id_names['client'] == kept and set(read.columns['client']) == {0, 1}
    if names[0] != '7': assert read.classes == kept


def test_large_whole_numbers_of_a_table_stay_apart():
    "As those of an array do."
    table = pd.DataFrame(dict(age=[2**25 + k for k in range(40)], b=1., label=[0, 1] * 20))
    assert len(set(dataset(data_spec(table, 'label'), '').x[:, 0])) == 40


@pytest.mark.parametrize('change, sep, says', [
    ({}, ';', "t.csv are separated by ';': write them as .csv with commas"),
    ({}, '\t', "t.csv are separated by '\\t'"),
    (dict(diagnosis='ill'), ',', "all labels are 'ill', and classification needs two classes"),
    (None, ',', 'the table has no rows')], ids=str)
def test_a_table_that_cannot_be_used_is_refused_for_what_it_is(change, sep, says, tmp_path):
    table = PATIENTS[:0] if change is None else PATIENTS.assign(**change)
    table.to_csv(tmp_path/'t.csv', sep=sep, index=False)
    with pytest.raises(ValueError, match=re.escape(says)):
        dataset(named_data(f'{tmp_path}/t.csv(label=diagnosis, client=hospital)'), '')


@pytest.mark.parametrize('column, told', [
    (range(60), True), ([5] + list(range(59)), False), ([k / 7 for k in range(60)], False)], ids=str)
def test_a_column_that_numbers_the_rows_is_told(column, told, recwarn):
    data_spec(PATIENTS.assign(patient=column).drop(columns='hospital'), 'diagnosis')
    assert told == any("'patient' has another whole number" in str(w.message) for w in recwarn)


@pytest.mark.parametrize('without', ['number', "('number', 'name')", '(number, name)', '[number, name]'])
def test_columns_are_left_out_by_name(without, tmp_path, recwarn):
    table = PATIENTS.assign(number=range(60))
    if 'name' in without: table['name'] = [f'patient {k}' for k in range(60)]
    table.to_csv(tmp_path/'t.csv', index=False)
    PATIENTS.to_csv(tmp_path/'kept.csv', index=False)
    def read(name, more=''):
        return dataset(named_data(f'{tmp_path}/{name}(label=diagnosis, client=hospital{more})'), '')
    assert read('t.csv', f', without={without}').fingerprint == read('kept.csv').fingerprint and not recwarn


@pytest.mark.parametrize('without, says', [
    ('ages', "no column 'ages' for without (did you mean 'age'?)"),
    ('7', 'without names a column, or several'),
    ('diagnosis', "no column 'diagnosis' for the label")])
def test_a_column_that_cannot_be_left_out_is_told(without, says, tmp_path):
    PATIENTS.to_csv(tmp_path/'t.csv', index=False)
    with pytest.raises(ValueError, match=re.escape(says)):
        dataset(named_data(f'{tmp_path}/t.csv(label=diagnosis, client=hospital, without={without})'), '')


def test_a_name_that_is_no_data_set_may_have_been_a_folder():
    with pytest.raises(ValueError, match="unknown dataset 'pic'.*nor is there a file or folder pic"):
        named_data('pic(side=16)')


def test_a_copy_of_a_file_is_told_whose_run_it_has(tmp_path):
    for name in 'ab': PATIENTS.to_csv(tmp_path/f'{name}.csv', index=False)
    def told(name):
        data = f'{tmp_path}/{name}.csv(label=diagnosis, client=hospital)'
        words = 'run', '--method', 'fedavg', '--set', 'n_rounds=1', '--data', data, '--store', tmp_path/'runs'
        return ' '.join(said(*words).split())
    assert 'holds the data of' not in told('a') + told('a')
    assert '--keep-models' not in told('a')
    assert f'{tmp_path}/b.csv holds the data of {tmp_path}/a.csv' in told('b')


@pytest.mark.parametrize('name', ['d.cvs', 'd.cvs(label=y)', 'd.xlsx(label=y)'])
def test_a_file_of_another_kind_is_told_the_kinds(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path/'d.xlsx').touch()
    with pytest.raises(ValueError, match='a folder of pictures or a file that ends in .npz, .csv'):
        named_data(name)


def test_a_result_is_shown_in_one_sentence():
    result = fedcl_repro.simulate('fedavg', n_clients=2, n_rounds=1)
    assert repr(result) == str(result) and repr(result).startswith('FedAvg on digits, 2 clients')


def test_a_run_with_models_is_repeated_with_models(tmp_path):
    words = 'run', '--method', 'fedavg', *OPTIONS, '--store', tmp_path
    assert 'again: ' in said(*words, '--keep-models') and ' --keep-models\n' in said(*words)


def test_rows_of_a_paper_need_an_artifact():
    with pytest.raises(ValueError, match="unknown experiment 'fedcosr' .did you mean 'fedcosr/"):
        fedcl_repro.committed('fedcosr')


def test_own_data_are_listed():
    assert '\nown  ' in said('list', 'datasets') and 'without=None' in said('list', 'datasets', 'own')


def test_an_id_is_no_run():
    with pytest.raises(ValueError, match="'996b6db0ab' is no run but an id: its rows are store.read"):
        read_rows(['996b6db0ab'], Store('runs'))


def test_a_setting_of_a_part_is_written_as_in_a_sweep(tmp_path, capsys):
    "`optimiser.lr` names the run of `optimiser='sgd(lr=...)'`, on the command line, here and in files."
    short, long = {'optimiser': 'sgd', 'optimiser.lr': .1}, dict(optimiser='sgd(lr=0.1)')
    run = fedcl_repro.Run.of('fedavg', n_clients=2, n_rounds=1, **long)
    small = ['--set', 'n_clients=2', 'n_rounds=1']
    asked = options_of('run', '--method', 'fedavg', *small, 'optimiser=sgd', 'optimiser.lr=0.1')
    assert train_commands.one_run('fedavg', asked) == run
    assert fedcl_repro.simulate('fedavg', n_clients=2, n_rounds=1, **short).run == run
    common = '[common]\noptimiser = "sgd"\nn_clients = 2\nn_rounds = 1\n'
    (tmp_path/'study.toml').write_text(common + '[[runs]]\nmethod = "fedavg"\noptimiser.lr = 0.1')
    assert read_study(tmp_path/'study.toml').runs == (run,)
    wrong = {'optimiser.rate=1': "optimiser 'adam' has no setting 'rate'", 'optimiser.lr=': 'is empty',
             'optimizer.lr=1': "did you mean 'optimiser'?", 'method.mu=1': '--method names'}
    for words, says in wrong.items():
        assert cli.main(['run', '--method', 'fedavg', '--set', words]) == 2
        assert says in ' '.join(capsys.readouterr().err.split())


def test_a_part_of_own_data_or_their_model_is_changed(tmp_path):
    "The network that fits the data, and the partition by the file's clients, with another setting."
    PATIENTS.to_csv(tmp_path/'patients.csv', index=False)
    data = '--data', f'{tmp_path}/patients.csv(label=diagnosis)', '--set', 'data.client=hospital'
    usual = train_commands.one_run('fedavg', options_of('run', '--method', 'fedavg', *data))
    asked = options_of('run', '--method', 'fedavg', *data, 'model.width=7', 'partition.test_share=0.5')
    run = train_commands.one_run('fedavg', asked)
    assert (run.model.name, usual.model.name, dict(run.model.settings)['width']) == ('mlp', 'mlp', 7)
    assert (run.partition.name, dict(run.partition.settings)['test_share']) == ('by_column', .5)
    assert run.n_clients == usual.n_clients == 3
    asked = options_of('run', '--method', 'fedavg', '--set', 'data.side=32')
    assert dict(train_commands.one_run('fedavg', asked).data.settings)['side'] == 32


def test_a_setting_of_the_grid_is_given_once(tmp_path, capsys):
    words = 'sweep --method fedavg --grid optimiser.lr=0.1,0.2 --set optimiser.lr=0.5'
    assert cli.main([*words.split(), '--store', str(tmp_path)]) == 2
    assert 'optimiser.lr is in the grid and given for all trials' in ' '.join(capsys.readouterr().err.split())


def test_results_of_a_moment_that_nothing_has_are_refused():
    result = fedcl_repro.simulate('fedavg', n_clients=2, n_rounds=1)
    with pytest.raises(ValueError, match="moment must be one of merged, trained, got 'foo'"):
        result.clients('foo')


def test_names_of_clients_stay_in_rows_tables_and_figures(tmp_path):
    path, figure = tmp_path/'patients.csv', tmp_path/'f.svg'
    PATIENTS.to_csv(path, index=False)
    columns = dict(labels='diagnosis', clients='hospital', n_rounds=2)
    result = fedcl_repro.simulate('fedavg', path, store=tmp_path/'runs', **columns)
    assert list(result.clients().client_name) == ['Charité', 'Mayo', 'Pavlov'] and result.run.n_clients == 3
    assert str(result).startswith('FedAvg on patients.csv, 3 clients, by_column: ')
    assert set(result.rows.query('client >= 0').client_name) == set(PATIENTS.hospital)
    assert {line.get_label() for line in result.plot().lines} > set(PATIENTS.hospital)
    again = fedcl_repro.simulate('fedavg', PATIENTS, **columns)
    pd.testing.assert_frame_equal(result.clients(), again.clients())
    assert str(again).startswith('FedAvg on own data, 3 clients')
    (id,) = (p.parent.name for p in (tmp_path/'runs').glob('*/run.json'))
    out = said('show', id, '--store', tmp_path/'runs', '--figure', figure)
    assert all(name in out and name in figure.read_text() for name in PATIENTS.hospital)


def test_pictures_of_mixed_sizes_need_a_side(tmp_path):
    from PIL import Image
    for k, size in enumerate([(20, 30), (40, 12)]):
        for c in 'ab':
            (tmp_path/c).mkdir(exist_ok=True)
            Image.new('RGB', size, (255, 0, 0)).save(tmp_path/c/f'{k}.png')
    with pytest.raises(ValueError, match='say side=32'): dataset(named_data(tmp_path), '')
    ds = dataset(named_data(f'{tmp_path}(side=8)'), '')
    assert ds.shape == (3, 8, 8) and (ds.x[:, 0] == 255).all()
    files = 'a/0.png a/1.png b/0.png b/1.png'.split()
    table = pd.DataFrame(dict(file=files, label=[0, 0, 1, 1], seen=1))
    table.to_csv(tmp_path/'t.csv', index=False)
    with pytest.warns(UserWarning, match='not read: seen'):
        ds = dataset(named_data(f'{tmp_path}/t.csv(side=8)'), '')
    assert ds.shape == (3, 8, 8) and list(ds.y) == [0, 0, 1, 1]


class Pairs(torch.utils.data.Dataset):
    "As torch has them."
    classes = ['zero', 'one']
    def __len__(self): return 40
    def __getitem__(self, k): return torch.full((1, 8, 8), k % 2 / 2), k % 2


def test_pairs_are_what_their_arrays_are():
    pairs = Pairs()
    x, y = torch.stack([pairs[k][0] for k in range(40)]), [pairs[k][1] for k in range(40)]
    expected = data_spec(x, y)
    loader = torch.utils.data.DataLoader(pairs, batch_size=4)
    for given in (pairs, loader, [pairs[k] for k in range(40)], (pairs[k] for k in range(40))):
        assert data_spec(given) == expected
    assert dataset(data_spec(pairs), '').classes == ('zero', 'one')
    with_clients = data_spec(pairs, clients=['a', 'b'] * 20)
    assert dataset(with_clients, '').id_names == {'client': ('a', 'b')}


def test_a_data_set_of_hugging_face():
    datasets = pytest.importorskip('datasets')
    from PIL import Image
    about = datasets.Features(dict(image=datasets.Image(), label=datasets.ClassLabel(names=['cat', 'dog']),
                                   client=datasets.Value('string')))
    images = [Image.new('L', (8, 8), 20 * (k % 4)) for k in range(40)]
    rows = dict(image=images, label=[0, 1] * 20, client=['Ann', 'Bob'] * 20)
    ds = dataset(data_spec(datasets.Dataset.from_dict(rows, features=about)), '')
    assert (ds.shape, ds.classes, ds.id_names) == ((1, 8, 8), ('cat', 'dog'), dict(client=('Ann', 'Bob')))
    vectors = datasets.Dataset.from_pandas(PATIENTS)
    found = dataset(data_spec(vectors, 'diagnosis', clients='hospital'), '')
    assert found.fingerprint == dataset(data_spec(PATIENTS, 'diagnosis', clients='hospital'), '').fingerprint


@pytest.mark.parametrize('change, given, says', [
    ({}, dict(labels='diagnose'),
     "no column 'diagnose' for the label (did you mean 'diagnosis'?), but age, dose"),
    ({}, {}, 'which column is the label? label=NAME, and client=NAME if a column says whose row it is: '
             'age, dose'),
    ({}, dict(labels='diagnosis'), 'columns hold no numbers (hospital): encode them, or leave them out'),
    (dict(sex='f'), dict(labels='diagnosis'), '(hospital, sex): encode them, or leave them out, with '
                                              '"...(without=(hospital, sex))" of a file'),
    (dict(age=math.nan), dict(labels='diagnosis', clients='hospital'), "'age' lacks 60 values"),
    (dict(hospital=None), dict(labels='diagnosis', clients='hospital'), '60 rows have no hospital'),
])
def test_a_table_that_does_not_say_enough_is_refused(change, given, says):
    with pytest.raises(ValueError, match=re.escape(says)): data_spec(PATIENTS.assign(**change), **given)


def test_of_many_columns_the_first_and_the_last_are_named():
    pixels = {f'p{k}': range(60) for k in range(64)}
    names = "66 columns: p0, p1, p2, ..., p61, p62, p63, ward, diagnosis"
    with pytest.raises(ValueError, match=names):
        data_spec(pd.DataFrame(dict(**pixels, ward=1, diagnosis=PATIENTS.diagnosis)))


@pytest.mark.parametrize('name', ['none.csv', 'none.npz', 'some/none', 'none.parquet(label=y)'])
def test_a_missing_file_is_called_missing(name, capsys):
    assert cli.main(['run', '--method', 'fedavg', '--data', name]) == 2
    path = Path.cwd()/name.partition('(')[0]
    assert f'no such file or folder: {path}' in ' '.join(capsys.readouterr().err.split())


# --- training as people do it

EARLY = dict(n_clients=4, n_rounds=60, validation=.2, patience=3, partition='quantity(minimum=40)', seed=1)


@pytest.fixture(scope='module')
def early(store):
    "A run that ends early, with its models."
    return fedcl_repro.simulate('fedper', store=store/'early', **EARLY)


def test_the_model_that_validation_chose_is_kept_beside_the_last(early):
    "The chosen models have the test accuracy of the chosen round, and the last ones that of the last."
    chosen, last = early.chosen(), early.rows['round'].max()
    assert chosen['round'] < last < 60
    predictions, images = early.predictions(), dataset(early.run.data, '').x
    for at, r in (('valid', chosen['round']), ('last', last)):
        right = 0
        for client in range(4):
            own = predictions['client'] == client
            scores = early.model(client, at=at)(network_input(images[predictions['row'][own]]))
            right += int((scores.argmax(1).numpy() == predictions['y'][own]).sum())
        expected = early.curve().set_index('round').micro[r]
        assert 100 * right / len(predictions['y']) == pytest.approx(expected, abs=1e-3)


def test_patience_ends_a_run_and_the_rows_say_so(early, tmp_path):
    "After exactly three evaluations that are no better than the chosen one; results are of the chosen round."
    valid = early.curve(split='valid').set_index('round').micro
    assert valid.idxmax() == early.chosen()['round'] == valid.index[-4] and len(valid) < 60
    (line,) = early.rows[early.rows.metric == 'chosen_round'].itertuples()
    assert (line.value, line.round) == (valid.idxmax(), valid.index[-1])
    assert f'{early.chosen().micro:.1f} %' in str(early)
    assert f'at the round that validation chose, stopped after round {valid.index[-1]} of 60' in str(early)
    shown = said('show', run_id(early.run), '--store', early.store.root)
    assert f'stopped after round {valid.index[-1]} of 60: no better' in shown


def test_a_resumed_run_has_the_same_chosen_models(early, tmp_path):
    "Interrupted after the chosen round: its models are in the checkpoint."
    class Stop(Exception): pass
    def stop(done):
        if done == early.chosen()['round'] + 1: raise Stop
    kept = Store(tmp_path)
    with pytest.raises(Stop): train(early.run, kept, every=0, progress=stop, extras=Extras(models=True))
    assert kept.checkpoint(run_id(early.run)).exists()
    again = fedcl_repro.simulate('fedper', store=tmp_path, **EARLY)
    assert run_id(again.run) == run_id(early.run) and again.chosen().equals(early.chosen())
    for a, b in zip(again.model(2, at='valid').parameters(), early.model(2, at='valid').parameters()):
        assert torch.equal(a, b)


def test_predictions_have_scores_and_true_labels(early):
    p = early.predictions()
    assert set(p) == {'client', 'row', 'y', 'merged', 'merged_scores', 'trained', 'trained_scores'}
    assert (p['merged_scores'].argmax(1) == p['merged']).mean() > .99 # of equal scores in half precision, any
    assert (p['y'] == dataset(early.run.data, '').y[p['row']]).all()
    assert 100 * (p['y'] == p['merged']).mean() == pytest.approx(early.curve().micro.iloc[-1], abs=1e-3)


def test_a_model_is_loaded_by_the_name_of_its_run(early):
    id = run_id(early.run)
    for name in (id, id[:6]):
        model = fedcl_repro.load_model(name, 1, store=early.store.root)
        for a, b in zip(model.parameters(), early.model(1).parameters()): assert torch.equal(a, b)
    with pytest.raises(ValueError, match="0 runs in .* begin with 'zzz'"):
        fedcl_repro.load_model('zzz', store=early.store)


INTERRUPTED = '''
import os, signal, sys, threading
from fedcl_repro import simulate
def log(settings):
    def tell(rows):
        if rows and rows[0][0] == 3 and not os.path.exists('interrupted'):
            open('interrupted', 'w').close()
            os.kill(os.getpid(), signal.SIGINT)
        print('rounds', sorted({row[0] for row in rows}), flush=True)
    return tell
try: result = simulate('fedavg', n_clients=3, n_rounds=6, store='runs', log=log)
except KeyboardInterrupt as e:
    print(e)
    raise
print(len(result.curve()))
'''


def test_a_model_is_found_by_the_name_of_its_client(tmp_path):
    import numpy as np
    from fedcl_repro import simulate
    x, y = np.random.default_rng(0).random((60, 1, 8, 8), np.float32), np.arange(60) % 3
    hospitals = np.array(['north', 'south', 'west'])[np.arange(60) // 20]
    result = simulate('fedper', x, y, clients=hospitals, n_rounds=1, store=tmp_path)
    named, numbered = (result.model(client).state_dict() for client in ('south', 1))
    assert all(torch.equal(v, numbered[k]) for k, v in named.items())
    with pytest.raises(ValueError, match="no client named 'soth' .did you mean 'south'"): result.model('soth')


def test_an_interrupted_simulation_goes_on(tmp_path, fresh, monkeypatch):
    monkeypatch.chdir(tmp_path)
    first = fresh.run(f'import os\nos.chdir({str(tmp_path)!r})\n' + INTERRUPTED)
    last = first.stdout.splitlines()[-1]
    assert first.returncode == 130 and last.startswith('interrupted by SIGINT: run '), first.stdout
    assert 'stopped after round 3 of 6; the same call goes on' in last
    assert list((tmp_path/'runs').glob('*.ckpt'))
    second = fresh.run(f'import os\nos.chdir({str(tmp_path)!r})\n' + INTERRUPTED)
    assert second.returncode == 0, second.stderr
    told = [f'rounds {some}' for some in ([1, 2, 3], [4], [5], [6], [6], [])]
    assert second.stdout.splitlines() == [*told, '6']


def test_a_logger_gets_the_settings_once_and_rows_as_they_come():
    calls, rows = [], []
    def log(settings):
        calls.append(settings)
        return rows.append
    result = fedcl_repro.simulate('fedper', n_clients=3, n_rounds=2, log=log)
    (settings,) = calls
    assert (settings['run'], settings['optimiser.lr']) == (run_id(result.run), .003)
    assert [sorted({row[0] for row in some}) for some in rows] == [[1], [2], [2], []]
    told = pd.DataFrame([row for some in rows for row in some], columns=MEASURE_COLUMNS)
    pd.testing.assert_frame_equal(told, result.rows[MEASURE_COLUMNS], check_dtype=False, rtol=1e-5)


def test_a_logger_without_a_function_of_rows_is_refused():
    with pytest.raises(ValueError, match='returned None: a logger is a function of the'):
        fedcl_repro.simulate('fedper', n_clients=3, n_rounds=2, log=lambda settings: None)


def test_a_finished_run_that_is_not_logged_is_told(tmp_path, capsys):
    words = 'run', '--method', 'fedavg', *OPTIONS, '--store', tmp_path/'runs', '--log', f'csv:{tmp_path}/logs'
    said(*words)
    assert 'not logged' not in capsys.readouterr().err and list((tmp_path/'logs').iterdir())
    said(*words)
    assert 'a run is finished and is not logged' in capsys.readouterr().err


def in_tensorboard(folder, id):
    "What its own reader finds: name -> round -> number, and settings."
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
    events = EventAccumulator(str(folder/id))
    events.Reload()
    curves = {name: {e.step: e.value for e in events.Scalars(name)} for name in events.Tags()['scalars']}
    (text,) = events.Tensors('settings/text_summary')
    lines = text.tensor_proto.string_val[0].decode().splitlines()
    return curves, dict(line.strip().split(': ', 1) for line in lines)


def records(log, block=32768):
    "The records of a log in LevelDB's format: parts with checksum, length and type, in blocks."
    at, whole = 7, b'' # after the magic number
    while at + 7 <= len(log):
        if at % block > block - 7: at += -at % block
        size, kind = int.from_bytes(log[at + 4:at + 6], 'little'), log[at + 6]
        whole += log[at + 7:at + 7 + size]
        at += 7 + size
        if kind in (1, 4): # complete, or its last part
            yield whole
            whole = b''


def in_wandb(folder, id):
    "What its own protocol finds in the file of the offline run."
    from wandb.proto import wandb_internal_pb2
    (path,) = folder.glob('wandb/offline-run-*/run-*.wandb')
    assert id in path.name
    curves, settings = {}, {}
    for data in records(path.read_bytes()):
        record = wandb_internal_pb2.Record()
        record.ParseFromString(data)
        settings |= {i.key: json.loads(i.value_json) for i in record.run.config.update}
        values = {i.key or '/'.join(i.nested_key): json.loads(i.value_json) for i in record.history.item}
        for name, value in values.items():
            if not name.startswith('_'): curves.setdefault(name, {})[values['_step']] = value
    return curves, settings


def in_mlflow(folder, id):
    "What its own client finds in the database."
    from mlflow import MlflowClient
    client = MlflowClient(f'sqlite:///{folder}/mlflow.db')
    (run,) = client.search_runs([client.get_experiment_by_name('fedcl_repro').experiment_id])
    assert run.info.status == 'FINISHED'
    found = {name: client.get_metric_history(run.info.run_id, name) for name in run.data.metrics}
    return {name: {m.step: m.value for m in some} for name, some in found.items()}, run.data.params


@pytest.mark.parametrize('read', [in_tensorboard, in_wandb, in_mlflow], ids=lambda f: f.__name__[3:])
def test_a_logger_has_every_curve_and_setting(read, tmp_path):
    "All that the store's rows say: means over clients, weighted by their samples, by round."
    name = read.__name__[3:]
    pytest.importorskip(name, reason=f"pip install -e '.[{name}]'")
    places = '--store', tmp_path/'runs', '--log', f'{name}:{tmp_path}', '--jobs', 1
    said('run', '--method', 'fedcosr', *OPTIONS, *places)
    (id,) = (p.parent.name for p in (tmp_path/'runs').glob('*/run.json'))
    rows, record = Store(tmp_path/'runs').read(id)
    expected = {}
    for (*what, r), some in rows[rows.value.notna()].groupby(['split', 'moment', 'metric', 'round']):
        curve = expected.setdefault('/'.join(what), {})
        curve[r] = pytest.approx((some.value * some.n).sum() / some.n.sum(), abs=1e-5)
    curves, settings = read(tmp_path, id)
    if name == 'mlflow': expected = {k.replace(' ', '_'): v for k, v in expected.items()}
    assert curves == expected and {'test/merged/accuracy', 'test/merged/silhouette'} <= curves.keys()
    def listed(v): return str(v).translate(str.maketrans('()', '[]')).replace(',]', ']')
    told = logged_settings(run_recorded(record['config']), id)
    assert {k: listed(settings[k]) for k in told} == {k: listed(v) for k, v in told.items()}


@pytest.mark.parametrize('words, says', [
    (('--patience', '3'), 'patience=3 looks at validation rows: say validation=0.1'),
    (('--log', 'tensorbord:x'), 'write one of csv:FOLDER, tensorboard:FOLDER, wandb:FOLDER, mlflow:FOLDER'),
    (('--log', 'csv'), 'write one of csv:FOLDER')])
def test_what_cannot_be_logged_or_waited_for_is_refused(words, says, capsys):
    assert cli.main(['run', '--method', 'fedavg', *words]) == 2
    assert says in ' '.join(capsys.readouterr().err.split())


# --- a file of runs

FILE = '''
[[runs]]
method = "fedavg"
n_rounds = 1
seed = [0, 1]
data = "patients.csv(label=diagnosis, client=hospital)"
'''


def test_a_file_of_runs_names_columns_of_a_table_beside_it(tmp_path, monkeypatch):
    "Not those of a table of that name where the command is called."
    for folder, table in ((tmp_path/'study', PATIENTS), (tmp_path/'here', PATIENTS[:30])):
        folder.mkdir()
        table.to_csv(folder/'patients.csv', index=False)
    (tmp_path/'study'/'study.toml').write_text(FILE)
    monkeypatch.chdir(tmp_path/'here')
    runs = read_study('../study/study.toml').runs
    assert [(run.n_clients, run.seed) for run in runs] == [(3, 0), (3, 1)]
    assert len(dataset(runs[0].data, '').y) == 60


@pytest.mark.parametrize('words, says', [
    (('a.toml', '--seeds', '1'), 'a.toml names runs, with seeds such as seed = [0, 1]: leave --seeds out'),
    (('a.toml', '--only', 'FedAvg'), 'leave --only out'),
    (('a.toml', '--set', 'n_rounds=2'), '--set changes a single run: say which with --method; a.toml has'),
    (('--method', 'fedavg', '--only', 'FedAvg'), '--only only for experiments')], ids=str)
def test_an_option_that_a_file_of_runs_does_not_follow_is_refused(words, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path/'a.toml').write_text('[[runs]]\nmethod = "fedavg"\nseed = [0, 1]')
    assert cli.main(['run', *words, '--dry']) == 2
    assert says in ' '.join(capsys.readouterr().err.split())


def test_help_is_printed_wherever_it_is_asked_for():
    assert said('run', '--metrics', 'auc', '-h').startswith('Usage: fedcl run')


# --- one cell

def options_of(*argv):
    "The options of a command line."
    verb = cli.fedcl.commands[argv[0]]
    return SimpleNamespace(**verb.make_context(argv[0], list(argv[1:])).params)


def test_one_cell_is_trained(tmp_path):
    words = 'run', 'fedcosr/table2', '--only', 'FedCoSR, practical CIFAR-10', '--seeds', '1'
    for profile in experiments.PROFILES:
        options = options_of(*words, '--profile', profile)
        (run,) = train_commands.runs_of_cell(options.names, profile, options.only[0])[:1]
        assert run.method.name == 'fedcosr' and run.partition.name == 'dirichlet'
        wanted = train_commands.available_runs(options.names, options_of(*words, '--profile', 'quick'))
    assert len(wanted) == 1 and wanted[0].seed == 0 and wanted[0].data.name == 'digits'
    dry = said(*words, '--dry', '--store', tmp_path)
    assert '1 of 1 run to train' in dry and 'digits stand in for the data of the paper' in dry
    assert 'data: cifar10' in said(*words, '--dry', '--profile', 'lite', '--store', tmp_path)
    every = train_commands.runs_of_cell(['fedcosr/table2'], 'lite', 'practical CIFAR-10')
    assert {r.data.name for r in every} == {'cifar10'} and len({r.method.name for r in every}) > 10


@pytest.mark.parametrize('more', [[], ['--dry']])
def test_an_unknown_cell_gets_suggestions(more, capsys):
    assert cli.main(['run', 'fedcosr/table2', '--only', 'FedCoSR, practical CIFAR', *more]) == 2
    assert "there is 'FedCoSR, practical CIFAR-10'" in ' '.join(capsys.readouterr().err.split())


@pytest.mark.parametrize('name', ['fedcosr/table2', 'mapl/table1', 'mfcl/table2', 'fedssc/table1'])
def test_every_published_cell_names_its_runs(name):
    "A cell with a number of ours has runs; sizes beside it are theirs."
    profile, verdicts = experiments.committed_verdicts(name)
    trained = set(experiments.committed(name).settings)
    shown = experiments.shown_table_runs(name, profile)
    runs = cells_by_run(name, [p for p in shown if p.run in trained])
    for v in verdicts:
        if v.kind != 'cell' or v.margin is None: continue
        own = runs_in(runs, v.what[v.what.index(v.label):])
        assert own, v.what
        assert run_sizes(own)['replicates'] == str(len(own))
        assert set(run_sizes(own)['rounds'].split(', ')) == {f'{r.n_rounds}' for r in own}


def test_a_committed_run_is_shown_with_the_command_that_repeats_it():
    "The command leads to the same run."
    rows = experiments.committed('fedcosr/table2')
    for id, run in list(rows[['run', 'settings']].drop_duplicates().itertuples(index=False))[::40]:
        out = said('show', id)
        (line,) = (line for line in out.splitlines() if line.startswith('again: '))
        words = shlex.split(line.removeprefix('again: fedcl '))
        assert train_commands.one_run(options_of(*words).methods[0], options_of(*words)) == run
        assert f'run {id}' in out and '-lite.csv' in out


def test_a_committed_run_whose_name_is_like_a_number_is_shown(tmp_path, monkeypatch):
    "The only one of its file, so that a column of such names would be read as numbers."
    path, name = experiments.committed_path('mapl/window', 'lite'), '00012e4567'
    record = next(r for r in json.loads(path.with_suffix('.json').read_text()) if 'config' in r)
    rows = pd.read_csv(path, dtype=str, keep_default_na=False)
    folder = tmp_path/'mapl/results'
    folder.mkdir(parents=True)
    rows[rows.run == record['run']].assign(run=name).to_csv(folder/path.name, index=False)
    (folder/path.with_suffix('.json').name).write_text(json.dumps([record | dict(run=name)]))
    monkeypatch.setenv('FEDCL_PAPERS', str(tmp_path))
    assert f'run {name}' in (out := said('show', name, '--store', tmp_path/'runs')) and 'micro ' in out


def test_the_command_that_repeats_a_run_names_the_users_file(tmp_path):
    file = tmp_path/'with a blank.py'
    file.write_text("""from fedcl_repro.federation.method import METHODS, Method
@METHODS.add('of_week', title='Of the week', family='averaging', owner='shared')
def of_week(): return Method()""")
    words = 'run', '--use', file, '--method', 'of_week', *OPTIONS, '--store', tmp_path/'runs'
    try:
        again = [line for line in said(*words).splitlines() if line.startswith('again: ')][0]
        assert shlex.split(again)[-2:] == ['--use', str(file)] and "'\"'" not in again
        assert '1 finished' in said(*shlex.split(again)[2:], '--store', tmp_path/'runs', '--dry')
    finally: fedcl_repro.METHODS.pop('of_week')
    id = next((tmp_path/'runs').glob('*/run.json')).parent.name
    assert '--use FILE.py' in said('show', id, '--store', tmp_path/'runs')


def test_tables_beside_print_say_how_large_their_runs_are(monkeypatch):
    monkeypatch.setenv('COLUMNS', '160')
    out = said('show', 'fedcosr/table2')
    assert 'images 10 %, rounds 20, replicates 1, rate 0.003' in out # EMNIST
    assert re.search(r'images +rounds|images 100 %', out)
    assert len(fedcl_repro.committed('fedcosr/table2')) and len(fedcl_repro.published('fedcosr', 'table2'))


# --- sweeps, and large stores

def test_a_sweep_prints_all_trials_in_the_order_of_the_grid(tmp_path):
    grid = '--grid', 'optimiser.lr=0.01,0.001', '--grid', 'batch_size=16,64'
    out = said('sweep', '--method', 'fedavg', *OPTIONS, *grid, '--store', tmp_path, '--jobs', 1)
    lines = [line for line in out.splitlines() if 'optimiser.lr=' in line]
    assert [re.search(r'optimiser.*', line)[0] for line in lines] == [
        f'optimiser.lr={lr}, batch_size={b}' for lr in ('0.01', '0.001') for b in (16, 64)]
    (best,) = (line for line in lines if line.startswith('*'))
    assert float(best[1:].split()[0]) == max(float(line[1:].split()[0]) for line in lines)


def test_a_part_s_setting_is_suggested(capsys):
    assert cli.main(['sweep', '--method', 'fedavg', '--grid', 'lr=0.1']) == 2
    assert "did you mean 'optimiser.lr'?" in ' '.join(capsys.readouterr().err.split())


def test_settings_behind_each_other_need_one_option(tmp_path):
    "Also where methods follow, and with what has brackets."
    words = '--set n_rounds=2 seed=1 optimiser=adam(lr=0.1) fedavg fedper(shared=("body.",))'.split()
    options = options_of('compare', *words)
    assert options.set == ('n_rounds=2', 'seed=1', 'optimiser=adam(lr=0.1)')
    assert options.methods == ('fedavg', 'fedper(shared=("body.",))')


def test_a_relative_path_of_user_code_counts_in_the_arena(tmp_path, monkeypatch):
    from fedcl_repro.commands.arena import users_methods
    from fedcl_repro.user_code import load_extensions, used_files
    (tmp_path/'mine.py').write_text(
        'from fedcl_repro.federation.method import METHODS, Method\n'
        "@METHODS.add('of_week', title='Of the week', family='averaging', owner='shared')\n"
        'def of_week(): return Method()\n')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv('FEDCL_USE', 'mine.py')
    load_extensions()
    try: assert [s.name for s in users_methods(used_files())] == ['of_week']
    finally: fedcl_repro.METHODS.pop('of_week')


def test_a_large_store_is_shown_by_its_newest_runs(store, capsys):
    "Of four runs two, without the files of the others being read."
    four = Store(store/'many')
    for seed in range(4): fedcl_repro.simulate('fedavg', store=four.root, n_clients=2, n_rounds=1, seed=seed)
    paths = sorted(four.root.glob('*/run.json'), key=lambda p: p.stat().st_mtime)
    first, *_ = ids = [p.parent.name for p in paths]
    (four.folder(first)/'rows.csv').unlink()
    for words in ((), ('fedavg',)):
        out = said('show', *words, '--store', four.root, '--last', 2)
        assert 'the newest 2 runs; --last 0 shows all' in out
        assert [id in out for id in ids] == [False, False, True, True]


COMMAND = """
import sys
from fedcl_repro import cli
sys.argv = ['fedcl', *{words}]
try: cli.entry()
except SystemExit as e: assert not e.code, e.code
from fedcl_repro.runs.run import Run, run_id
print('comments' if 'Args:' in (Run.__doc__ or '') else 'as written')
"""


@pytest.mark.parametrize('words, last', [
    (['run', '--dry', '--profile', 'quick'], 'as written'), (['list', 'settings'], 'comments')])
def test_a_command_reads_no_comments_that_it_does_not_show(words, last, tmp_path):
    "And what is missing of a whole profile is counted without a warning."
    call = [sys.executable, '-c', COMMAND.format(words=words)]
    env = dict(os.environ, FEDCL_STORE=str(tmp_path))
    out = subprocess.run(call, capture_output=True, text=True, env=env)
    assert out.stdout.splitlines()[-1] == last and not out.stderr, out.stderr


# --- what comes next is said

def test_every_setting_has_a_sentence():
    out = said('list', 'settings', '--json')
    for row in json.loads(out): assert len(row['about'].split()) > 2, row['name']
    assert 'of communication' in said('list', 'settings', 'n_rounds')


def test_simulate_and_run_have_the_same_defaults():
    run = fedcl_repro.Run.of('fedavg')
    source = inspect.getsource(fedcl_repro.simulate)
    assert 'dict(n_clients' not in source and (run.n_clients, run.n_rounds) == (20, 30)
    assert train_commands.one_run('fedavg', options_of('run', '--method', 'fedavg')) == run


def test_flower_says_its_next_two_commands(tmp_path):
    from fedcl_repro.distributed.flower import wait_for_clients
    words = '--method', 'fedavg', '--set', 'n_clients=3', '--clients', tmp_path/'clients'
    *_, missing, node, server = said('flower', tmp_path/'app', *words).splitlines()
    assert ("first: pip install 'fedcl_repro[flower]'" == missing) == (find_spec('flwr') is None)
    assert node.endswith(f'fedcl node {tmp_path}/app {tmp_path}/clients/0 --client 0')
    assert f'flwr run {tmp_path}/app local' in server and server.endswith('num-supernodes=3')
    nobody = SimpleNamespace(node_of={}, n_clients=3, meet=lambda: None)
    with pytest.raises(TimeoutError, match='(?s)fedcl node APP.*flwr run APP.*num-supernodes=3'):
        wait_for_clients(nobody, 0)


@pytest.mark.parametrize('app, words, says', [
    ('app', ['--clients', 'c', '--data', 'patients.csv(label=diagnosis, client=hospital)'],
     'nodes hold images of bytes'),
    ('full', ['--clients', 'new/c'], 'full is not empty'),
    ('new/app', ['--clients', 'full/file'], 'cannot write to the folder full/file')], ids=str)
def test_flower_leaves_nothing_if_it_refuses(app, words, says, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    PATIENTS.to_csv('patients.csv', index=False)
    (tmp_path/'full').mkdir()
    (tmp_path/'full'/'file').touch()
    before = {*tmp_path.rglob('*')}
    assert cli.main(['flower', app, '--method', 'fedavg', *words]) == 2
    assert says in ' '.join(capsys.readouterr().err.split()) and {*tmp_path.rglob('*')} == before


def test_there_is_no_app_without_the_data_of_its_clients(tmp_path, monkeypatch):
    from fedcl_repro.distributed.nodes import ClientData
    def full(*given): raise OSError(28, 'the disk is full')
    monkeypatch.setattr(ClientData, 'save', full)
    words = 'flower', str(tmp_path/'app'), '--method', 'fedavg', '--clients', str(tmp_path/'clients')
    assert cli.main([*words, '--set', 'n_clients=3']) == 2
    assert [p.name for p in tmp_path.iterdir()] == ['clients']


def test_ctrl_c_says_what_a_node_keeps(tmp_path, monkeypatch, capsys):
    from fedcl_repro.distributed import resident
    def interrupted(*given): raise KeyboardInterrupt
    monkeypatch.setattr(resident, 'serve_node', interrupted)
    places = tmp_path/'app', '--method', 'fedavg', '--set', 'n_clients=3', '--clients', tmp_path/'clients'
    said('flower', *places)
    assert cli.main(['node', str(tmp_path/'app'), str(tmp_path/'clients'/'0'), '--client', '0']) == 130
    err = capsys.readouterr().err
    assert "the client's state is beside its data" in err and 'finished runs' not in err


@pytest.mark.parametrize('command', ['nbdev_docs', 'nbdev_preview'])
def test_what_builds_another_site_names_ours_and_leaves_nothing(command, tmp_path):
    "Files that nbdev would write are there, and it stops at a setting whose text it prints."
    (tmp_path/'nbs').mkdir()
    for name in 'pyproject.toml', 'nbs/nbdev.yml', 'nbs/_quarto.yml': shutil.copy(ROOT/name, tmp_path/name)
    before = {path: path.is_file() and path.read_text() for path in tmp_path.rglob('*')}
    call = [sys.executable, '-c', f'from nbdev.quarto import {command} as it; it.__wrapped__()']
    out = subprocess.run(call, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert out.returncode and 'run `fedcl docs`' in out.stderr.splitlines()[-1], out.stderr
    assert {path: path.is_file() and path.read_text() for path in tmp_path.rglob('*')} == before


def test_a_site_without_its_extra_is_refused_first_and_leaves_nothing(tmp_path, capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, 'sphinx.application', None)
    assert cli.main(['docs', '--out', str(tmp_path/'site')]) == 2
    assert "pip install 'fedcl_repro[docs]'" in capsys.readouterr().err.splitlines()[0]
    assert not (tmp_path/'site').exists()


# --- papermill

TABLE2, COMPARE = ROOT/'nbs/papers/fedcosr/table2.ipynb', ROOT/'nbs/bench/compare.ipynb'


@pytest.mark.parametrize('page, given, says', [
    (TABLE2, dict(seed=2), "no parameter 'seed' (did you mean 'seeds'?)"),
    (TABLE2, dict(profile='light'), "unknown profile 'light'"),
    (COMPARE, dict(round=2), "no parameter 'round' (did you mean 'rounds'?)"),
    (COMPARE, dict(rounds='two'), "rounds must be like 10 (int), got 'two' (str)"),
    (TABLE2, dict(seeds='two'), "seeds must be like 0 (int), got 'two' (str)")])
def test_a_wrong_parameter_ends_a_page(page, given, says, tmp_path):
    assert says in papermill_error(str(page), str(tmp_path/'out.ipynb'), given)


def test_parameters_are_typed_and_explained():
    import papermill
    for page in (TABLE2, COMPARE):
        found = papermill.inspect_notebook(str(page)).values()
        assert {p['inferred_type_name'] for p in found} <= {'str', 'int', 'float', 'bool'}
        assert all(len(p['help']) > 3 for p in found)
        assert {'store', 'device', 'jobs', 'minutes', 'data_root'} <= {p['name'] for p in found}


def test_a_loop_over_seeds_ends_in_a_comparison(tmp_path):
    for seed in range(2):
        given = dict(seed=seed, rounds=1, methods='fedavg fedper', store=str(tmp_path/'runs'))
        assert not papermill_error(str(COMPARE), str(tmp_path/f'{seed}.ipynb'), given)
    cells = json.loads((tmp_path/'1.ipynb').read_text())['cells']
    text = ''.join(line for c in cells for o in c.get('outputs', []) for line in o.get('text', ''))
    assert '2 replicates (seed and partition)' in text and 'FedPer' in text
    assert len(list((tmp_path/'runs').glob('*/run.json'))) == 4
