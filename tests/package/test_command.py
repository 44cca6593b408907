"""The command explains itself: help at once, suggestions, lists and bars that fit, comparisons, citations."""
import json
import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pandas as pd
import pytest

from fedcl_repro import cli
from fedcl_repro.show import compare as comparing
from fedcl_repro.evidence import experiments
from fedcl_repro.runs import train as train_module
from fedcl_repro.runs import workers
from fedcl_repro.evidence.citations import citations, citations_of, reference_text
from fedcl_repro.show.compare import Comparison, replicates
from fedcl_repro.runs.rows import read_rows, summary
from fedcl_repro.runs.run import Run, config, methods, run_id
from fedcl_repro.runs.store import Store, save_checkpoint
from fedcl_repro.commands import train as train_commands
from fedcl_repro.commands.list import registers
from fedcl_repro.commands.show import command_of, fitted_text, tables_beside_published
from fedcl_repro.show.result_page import card_claim, sentence_and_answer

ROOT = Path(__file__).parents[2]
VERBS = list(cli.fedcl.commands)


def said(capsys, *argv):
    "Exit code, standard output and standard error of a command."
    try: code = cli.main(argv)
    except SystemExit as e: code = e.code
    told = capsys.readouterr()
    return code, told.out, told.err


# --- help

@pytest.mark.parametrize('argv', [('list',), ('compare',), ('--help',), ('run', '--help')])
def test_a_verb_without_what_it_needs_prints_help(argv, capsys):
    code, out, err = said(capsys, *argv)
    assert (code, err) == (0, '') and out.startswith('Usage: fedcl') and 'fedcl' in out.partition('\n')[2]


def test_the_command_alone_fits_a_screen(capsys):
    code, out, err = said(capsys)
    assert (code, err) == (0, '') and 'fedcl reproduce' in out and len(out.splitlines()) <= 24


@pytest.mark.parametrize('verb', VERBS)
def test_every_verb_has_help_with_an_example(verb, capsys):
    code, out, _ = said(capsys, verb, '--help')
    assert code == 0 and f'  fedcl {verb}' in out.partition('examples:')[2]
    options = out.partition('Options:')[2].partition('examples:')[0]
    assert max(map(len, options.splitlines())) <= 80


LIGHT = '''
import sys
from fedcl_repro.cli import main
try: code = main(sys.argv[1:])
except SystemExit as e: code = e.code
heavy = {'torch', 'pandas', 'numpy', 'matplotlib'} & set(sys.modules)
print(code, sorted(heavy))
'''


@pytest.mark.parametrize('argv', [('--version',), (), ('list',), ('run', '--help'), ('reprodcue',)])
def test_what_needs_no_training_imports_no_torch(argv):
    env = os.environ | dict(PYTHONPATH=str(ROOT))
    done = subprocess.run([sys.executable, '-c', LIGHT, *argv], env=env, capture_output=True, text=True)
    assert done.stdout.splitlines()[-1].endswith(' []'), done.stdout + done.stderr


def test_the_shell_completes_verbs_and_options():
    def completed(*words):
        asked = dict(_FEDCL_COMPLETE='bash_complete', COMP_WORDS=' '.join(('fedcl', *words)),
                     COMP_CWORD=str(len(words)), PYTHONPATH=str(ROOT))
        done = subprocess.run([sys.executable, '-m', 'fedcl_repro.cli'], env=os.environ | asked,
                              capture_output=True, text=True)
        return [line.partition(',')[2] for line in done.stdout.splitlines()]
    assert completed('rep') == ['reproduce', 'report']
    assert completed('run', '--prof') == ['--profile'] and completed('run', '--profile', 'l') == ['lite']


# --- suggestions

@pytest.mark.parametrize('argv, says', [
    (('reprodcue',), "Did you mean 'reproduce'?"),
    (('run', '--metod', 'fedavg'), "'--method'"),
    (('run', '--profile', 'light'), "Did you mean 'lite'?"),
    (('list', 'metods'), "Did you mean 'methods'?"),
    (('list', 'methods', 'fedavgg'), "did you mean 'fedavg'?"),
    (('list', 'fedcosr'), 'fedcl list methods fedcosr'),
    (('run', '--method', 'fedavgg'), "did you mean 'fedavg'?"),
    (('run', '--method', 'fedavg', '--set', 'round=3'), "did you mean 'n_rounds'?"),
    (('run', '--method', 'fedcosr(gama=1.0)'), "did you mean 'gamma'?"),
    (('run', '--method', 'fedavg', '--executor', 'lop'), "did you mean 'loop'?"),
    (('run', 'fedcsor'), "did you mean 'fedcosr'?"),
    (('show', 'fedcosr/tabel2'), "did you mean 'fedcosr/table2'?"),
])
def test_an_unknown_word_gets_a_suggestion(argv, says, capsys):
    code, _, err = said(capsys, *argv)
    assert code == 2 and says in err


# --- widths

@pytest.mark.parametrize('columns', [60, 80, 120])
@pytest.mark.parametrize('argv', [
    *[('list', what) for what in cli.LISTS], ('list', 'methods', 'fedcosr'),
    ('show', 'fedcosr/table2'), ('show', 'fedcosr/fig5'), ('list',), ()])
def test_listings_fit_the_terminal(argv, columns, monkeypatch, capsys):
    if columns < 80 and argv in [('list',), ()]: return # examples stay as they are typed
    monkeypatch.setenv('COLUMNS', str(columns))
    code, out, _ = said(capsys, *argv)
    lines = [line for line in out.splitlines() if not line.startswith(('rows: ', 'data folder: ', '  fedcl'))]
    assert code == 0 and max(map(len, lines)) <= columns, max(lines, key=len)
    if argv[:1] == ('show',): assert not re.search(r'\bnan\b', out, re.IGNORECASE)


def test_every_list_is_named(): assert {*registers(), 'experiments', 'settings'} == set(cli.LISTS)


def test_a_table_without_numbers_says_nothing_there(monkeypatch):
    monkeypatch.setenv('COLUMNS', '40')
    table = pd.DataFrame(dict(run=['a', 'b'], method=['x' * 90, 'y'], data='digits', micro=[1.234, math.nan]))
    text = fitted_text(table)
    assert text.startswith('data digits\n') and 'nan' not in text and '1.23' in text
    assert max(map(len, text.splitlines())) <= 40


def test_a_progress_bar_fits_and_shows_the_last_accuracy(tmp_path, capsys):
    "Also where the terminal is wider; the accuracy is that of a checkpoint, or of a finished run."
    store, runs = Store(tmp_path), [Run.of('fedavg', n_rounds=2, n_clients=3, seed=s) for s in range(2)]
    train_module.train(runs[0], store)
    progress = workers.Progress(runs, store)
    for k, run in enumerate(runs): progress.put((run, 2 - k))
    text = str(progress.bar)
    progress.close()
    rows, _ = store.read(run_id(runs[0]))
    last = rows[(rows.metric == 'accuracy') & (rows.moment == 'merged') & (rows['round'] == 2)]
    accuracy = 100 * (last.value * last.n).sum() / last.n.sum()
    assert len(text) <= 80 and f'{accuracy:.1f} %' in text, text
    assert not progress.accuracy(runs[1]), 'it has no checkpoint'
    save_checkpoint(store, run_id(runs[1]), dict(accuracy=.25))
    assert progress.accuracy(runs[1]) == ', last FedAvg 25.0 %'


# --- published numbers

def test_an_artifact_shows_the_published_numbers_sorted(capsys, monkeypatch):
    monkeypatch.setenv('COLUMNS', '120')
    code, out, _ = said(capsys, 'show', 'fedcosr/table2')
    tables = tables_beside_published(experiments.committed_verdicts('fedcosr/table2')[1])
    assert tables['practical CIFAR-10'].published.astype(float).is_monotonic_decreasing
    assert {'FedCoSR', 'FedPer'} <= set(tables['practical CIFAR-10'].method) and code == 0
    for setting, table in tables.items():
        lines = out.partition(f'\n{setting}\n')[2].splitlines()
        first = next(k for k, line in enumerate(lines) if 'published' in line)
        for line, row in zip(lines[first + 1:], table.itertuples()):
            assert line.split()[:-1] and row.method in line and row.published in line


@pytest.mark.parametrize('name', ['mapl/table1', 'fedcosr/table2', 'mfcl/fig8', 'arena/arena'])
def test_an_artifact_shows_its_answer_and_numbers_on_the_first_screen(name, monkeypatch, capsys):
    monkeypatch.setenv('COLUMNS', '80')
    first = '\n'.join(said(capsys, 'show', name)[1].splitlines()[:23])
    claim = card_claim(list(experiments.committed_verdicts(name)[1]))
    assert ' '.join(': '.join(sentence_and_answer(claim, experiments.committed_verdicts(name)[1])).split()) \
        in ' '.join(first.split())
    assert len(re.findall(r'\d\d\.\d', first)) > 5


class Terminal(cli.Kept):
    "A terminal of 24 lines."
    def reconfigure(self, **options): pass


@pytest.mark.parametrize('n, paged', [(3, False), (24, True)])
def test_a_long_text_goes_to_the_pager_and_a_short_one_does_not(n, paged, monkeypatch):
    pages, terminal = [], Terminal()
    monkeypatch.setattr('click.echo_via_pager', lambda text, color: pages.append(text))
    monkeypatch.setenv('LINES', '24')
    monkeypatch.setattr(sys, 'stdout', terminal)
    with cli.paged(): print('a\n' * n, end='')
    assert (pages, terminal.getvalue()) == (['a\n' * n], '') if paged else ([], 'a\n' * n)


def test_a_pipe_gets_no_page():
    out = subprocess.run([sys.executable, '-m', 'fedcl_repro.cli', 'show', 'fedcosr/table2'], text=True,
                         capture_output=True, env=os.environ | dict(PAGER='false'), check=True).stdout
    assert out.count('\n') > 100 and '\x1b' not in out


@pytest.mark.parametrize('name', list(experiments.experiments()))
def test_every_artifact_is_shown_with_its_claims(name, monkeypatch, capsys):
    monkeypatch.setenv('COLUMNS', '100')
    code, out, err = said(capsys, 'show', name)
    claims = [v.what for v in experiments.committed_verdicts(name)[1] if v.kind == 'claim']
    flat = ' '.join(out.split())
    assert code == 0 and not err and not [c for c in claims if ' '.join(c.split()) not in flat]
    assert max(len(line) for line in out.splitlines() if not line.startswith('rows: ')) <= 100


def test_a_claim_is_shown_with_its_verdict_and_evidence(monkeypatch, capsys):
    monkeypatch.setenv('COLUMNS', '1000')
    lines = said(capsys, 'show', 'mapl/claims')[1].splitlines()
    for v in experiments.committed_verdicts('mapl/claims')[1]:
        below = lines[lines.index(f'{v.what} ({v.source})') + 1].strip()
        assert below.startswith(v.word) and below.endswith(v.evidence)


def test_a_cost_is_shown_beside_the_published_one(capsys):
    "It is no accuracy: its verdict has the numbers in words."
    code, out, _ = said(capsys, 'show', 'mfcl/table3')
    assert code == 0 and 'MFCL(TN), resnet18: comm bits' in out and re.search(r'by the formula.*published',
                                                                              out)


def test_a_label_with_a_comma_stays_with_its_setting(monkeypatch, capsys):
    monkeypatch.setenv('COLUMNS', '120')
    out = said(capsys, 'show', 'mapl/table1')[1]
    tables = [part.splitlines() for part in out.split('\n\n')]
    first = next(lines for lines in tables if lines[0] == 'Scenario 1, MNIST')
    assert any("FedClassAvg, MAPL's copy" in line for line in first)
    assert any("MAPL " in line for line in first)


# --- comparisons

def compared(**results): # label -> its result for each seed
    rows = [dict(label=name, seed=k, micro=v) for name, some in results.items() for k, v in enumerate(some)]
    seeds = max(map(len, results.values()))
    return Comparison(list(results), pd.DataFrame(rows).dropna(), None, seeds, 40., None)


def test_a_comparison_equals_a_computation_by_hand():
    "Differences 1, 2, 6: mean 3, variance 7; t of two degrees of freedom is 4.30265."
    found, half = compared(A=[52., 62., 72.], B=[53., 64., 78.]), 4.30265273 * (7 / 3)**.5
    line = found.table().iloc[1]
    assert [line.accuracy, line.difference.mean] == pytest.approx([65, 3])
    assert [line.difference.low, line.difference.high] == pytest.approx([3 - half, 3 + half])
    assert f'+3.0  {3 - half:+.1f} to {3 + half:+.1f}' in str(found)
    assert 'majority class of each client: 40.0' in str(found)


def test_one_replicate_has_no_interval_and_a_missing_run_no_number():
    one = str(compared(A=[50.], B=[60.]))
    assert '+10.0  one run' in one and ' to ' not in one
    half = str(compared(A=[50., 51.], B=[60., math.nan], C=[math.nan] * 2))
    assert 'not finished: C' in half and 'one run' in half and 'nan' not in half
    assert 'no interval yet' in str(compared(A=[1., 99.], B=[99., 1.]))


def test_each_replicate_has_a_seed_and_a_partition_of_its_own():
    runs = replicates(('fedavg', 'fedper'), 3, {})
    assert [(r.method.name, r.seed, r.partition_seed) for r in runs] == [
        (m, k, k) for k in range(3) for m in ('fedavg', 'fedper')]
    for names, more, why in ((['fedavg'], {}, 'needs two'), (['fedavg'] * 2, {}, 'FedAvg is named twice'),
                             (['fedavg', 'fedper'], dict(seed=1), 'say with seeds how many')):
        with pytest.raises(ValueError, match=why): replicates(names, 3, more)


def test_methods_are_compared(tmp_path, capsys):
    small = ['--set', 'n_rounds=2', '--set', 'n_clients=3', '--store', str(tmp_path/'runs'), '--jobs', '1']
    code, _, why = said(capsys, 'run', '--method', 'fedavg', '--method', 'fedper', *small)
    assert code == 2 and '`fedcl compare fedavg fedper`' in why
    code, out, _ = said(capsys, 'compare', 'fedavg', 'fedper', '--seeds', '2', *small)
    assert code == 0 and 'minus FedAvg' in out and '2 replicates' in out
    picture = tmp_path/'curves.svg'
    asked = 'compare', 'fedavg', 'fedper', '--seeds', '2', '--out', str(picture)
    code, again, _ = said(capsys, *asked, *small)
    assert code == 0 and again.startswith(out.rstrip()) and '<svg' in picture.read_text()
    found = comparing.compare(['fedavg', 'fedper'], seeds=2, store=tmp_path/'runs', n_rounds=2, n_clients=3)
    assert str(found) == out.rstrip(), 'the library trains nothing anew and says the same'
    assert 0 < found.majority < 100
    assert set(found.curves.label) == {'FedAvg', 'FedAvg + epoch', 'FedPer'}


def test_a_shared_model_is_compared_as_merged_and_after_a_local_epoch(tmp_path, capsys):
    "And all others after theirs: the difference of FedPer is that of the rows after local training."
    table, csv = tmp_path/'t.tex', tmp_path/'t.csv'
    small = ['--set', 'n_rounds=4', '--set', 'n_clients=4', '--store', str(tmp_path/'runs'), '--jobs', '1']
    code, out, _ = said(capsys, 'compare', 'fedavg', 'fedper', '--seeds', '2', *small, '--table', str(table),
                        '--csv', str(csv))
    assert code == 0 and 'tested after local training; before it, as merged: FedAvg\n' in out
    numbers = pd.read_csv(csv).set_index('method')
    assert list(numbers.index) == ['FedAvg', 'FedAvg + epoch', 'FedPer']
    assert list(numbers.minus) == ['FedAvg', 'FedAvg + epoch', 'FedAvg + epoch']
    assert list(numbers.moment.str.split().str[0]) == ['before', 'after', 'after']
    assert 'before it, as merged: FedAvg.' in table.read_text() and 'FedAvg + epoch &' in table.read_text()
    runs = replicates(('fedavg', 'fedper'), 2, dict(n_rounds=4, n_clients=4))
    rows = read_rows(runs, Store(tmp_path/'runs'))
    by_hand = {m: summary(rows, m).groupby('label').micro.mean() for m in ('merged', 'trained')}
    assert numbers.accuracy['FedAvg'] == pytest.approx(by_hand['merged']['FedAvg'])
    assert numbers.accuracy['FedAvg + epoch'] == pytest.approx(by_hand['trained']['FedAvg'])
    assert numbers.accuracy['FedPer'] == pytest.approx(by_hand['trained']['FedPer'])
    difference = by_hand['trained']['FedPer'] - by_hand['trained']['FedAvg']
    assert numbers.difference['FedPer'] == pytest.approx(difference)


def test_if_one_method_has_no_test_after_training_all_are_compared_before_it(tmp_path):
    "A model that all clients share is tested once on a common test set, as merged."
    found = comparing.compare(['fedavg', 'local'], seeds=1, store=tmp_path, n_rounds=1, n_clients=3, jobs=1,
                              partition="dirichlet(protocol='global')")
    assert found.labels == ['FedAvg', 'Local'] and '\ntested before local training\n' in str(found)
    assert 'minus FedAvg, 95 % interval' in str(found)
    merged = summary(found.rows).set_index('label').micro
    difference = found.table().difference[1]
    assert difference.mean == pytest.approx(merged['Local'] - merged['FedAvg'])


def test_a_line_has_a_difference_only_to_a_line_of_its_moment():
    names = ['Local', 'FedAvg', 'FedAvg + epoch']
    moments = dict(zip(names, ('trained', 'merged', 'trained')))
    found = replace(compared(**dict(zip(names, ([80., 82.], [30., 31.], [78., 81.])))), moments=moments)
    first, merged, after = found.table().difference
    assert (first, merged, after.mean) == (None, None, pytest.approx(-1.5))
    assert 'minus Local at the same moment' in str(found) and 'None' not in str(found.table(style='paper'))
    assert 'tested' not in str(replace(found, moments={})), 'nothing is said of a moment that is not known'


def test_of_more_than_ten_lines_those_after_training_are_drawn():
    names = [f'M{k}' for k in range(6)]
    moments = {name + after: moment for name in names
               for after, moment in (('', 'merged'), (' + epoch', 'trained'))}
    curves = pd.DataFrame([dict(label=name, family='averaging', seed=0, round=r, micro=50. + r)
                           for name in moments for r in (1, 2)])
    found = Comparison(list(moments), pd.DataFrame(), curves, 1, None, pd.DataFrame(), moments=moments)
    (ax,) = found.draw().axes
    assert len(ax.lines) == 6 and ax.get_ylabel() == 'test accuracy after local training (%)'


# --- citations

def test_every_method_has_a_paper_with_its_facts(capsys):
    known = citations()
    ours = [name for name, e in methods().items() if e.make.__module__.startswith('fedcl_repro.')]
    of_no_paper = {'local', 'local_views', 'fedsimclr_head', 'mfcl_head'} # what others are compared with
    assert {name for name in ours if not citations_of(name)} == of_no_paper
    assert {name for c in known.values() for name in c['methods']} <= set(methods())
    five = [k for k, c in known.items() if c.get('reproduced')]
    assert five == ['fedcrl', 'fedcosr', 'fedssc', 'mfcl', 'mapl']
    for c in known.values():
        assert c['title'] and c['authors'] and {'year', 'venue'} & set(c)
        assert set(c) <= {'title', 'authors', 'year', 'venue', 'url', 'methods', 'reproduced'}
        assert 2016 <= c.get('year', 2024) <= 2026 and 'et al' not in ' '.join(c['authors'])
    said(capsys, 'list', 'methods', 'moon')
    _, out, _ = said(capsys, 'list', 'methods', 'moon')
    assert 'Qinbin Li, Bingsheng He and Dawn Song. Model-Contrastive' in ' '.join(out.split())


def page_of(method):
    "The page that defines a method."
    return ROOT/'nbs'/'methods'/f"{methods()[method].make.__module__.rpartition('.')[2]}.ipynb"


@pytest.mark.parametrize('name', [name for name in methods() if citations_of(name)])
def test_the_page_of_a_method_names_its_paper(name):
    cells = json.loads(page_of(name).read_text(encoding='utf-8'))['cells']
    text = ''.join(''.join(c['source']) for c in cells if c['cell_type'] == 'markdown')
    for c in citations_of(name): assert reference_text(c) in text, 'the data and the page differ'


def test_the_citation_file_has_all_papers():
    cff = (ROOT/'CITATION.cff').read_text(encoding='utf-8')
    for c in citations().values():
        assert f'title: {json.dumps(c["title"], ensure_ascii=False)}' in cff
        for author in c['authors']: assert json.dumps(author, ensure_ascii=False) in cff
    assert cff.count('  - type: article') == len(citations())


@pytest.mark.parametrize(
    'setting', [['--set', 'shift=rotation'], ['--validation', '0.2'], ['--metrics', 'auc']])
def test_an_app_of_flower_refuses_what_its_nodes_do_not_follow(setting, tmp_path, capsys):
    code = cli.main(['flower', str(tmp_path/'app'), '--method', 'fedavg', '--data', 'digits', *setting])
    assert code == 2 and 'does not follow' in capsys.readouterr().err and not (tmp_path/'app').exists()


def test_a_tilde_of_the_clients_folder_is_the_home(tmp_path, monkeypatch):
    monkeypatch.setenv('HOME', str(tmp_path))
    monkeypatch.chdir(tmp_path)
    assert cli.main(['flower', '~/app', '--method', 'fedavg', '--data', 'digits', '--clients', '~/own']) == 0
    assert (tmp_path/'app'/'pyproject.toml').exists() and (tmp_path/'own'/'0'/'train.npz').exists()
    assert not (tmp_path/'~').exists()


def test_a_run_says_on_what_and_runs_differ_in_what_is_shown(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv('COLUMNS', '200')
    few = ['--set', 'n_clients=3', 'n_rounds=1', '--store', str(tmp_path)]
    for more in ([], ['--set', 'scarcity=all_clients(share=0.5)']):
        assert cli.main(['run', '--method', 'fedavg', *few, *more]) == 0
    said = capsys.readouterr().out
    assert 'fedavg on digits, 3 clients, dirichlet, 1 round\n' in said
    assert '\n  scarcity all_clients(share=0.5)\n' in said
    assert cli.main(['show', '--store', str(tmp_path)]) == 0
    assert capsys.readouterr().out.count('scarcity all_clients(share=0.5)') == 1


def test_a_stand_in_is_called_one(tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(train_commands, 'train_as_asked', lambda *asked, **keywords: 0)
    assert cli.main(['run', 'fedcosr/precision', '--seeds', '1', '--store', str(tmp_path)]) == 0
    assert capsys.readouterr().out.startswith('profile quick: digits stand in for the data of the paper')


OF_A_USER = """
from fedcl_repro.federation.method import METHODS, Method, send
@METHODS.add('typo', title='Typo', family='local', owner='personal')
def typo():
    'A prefix that no field has.'
    return Method(upload=send('bdy.'))
@METHODS.add('broken', title='Broken', family='local', owner='personal')
def broken():
    'A merge that fails.'
    return Method(merge=lambda client, message: client + 1)
"""
CALLS = """
import sys
from fedcl_repro import cli
small = ['--set', 'n_clients=3', 'n_rounds=1', '--use', 'my.py', '--store', 'runs']
codes = [cli.main(['run', '--method', name, *small]) for name in ('typo', 'broken')]
print('codes', codes)
"""


def test_faults_of_a_users_method_are_told_and_its_runs_are_shown(tmp_path):
    (tmp_path/'my.py').write_text(OF_A_USER)
    done = subprocess.run([sys.executable, '-c', CALLS], cwd=tmp_path, capture_output=True, text=True)
    assert 'codes [0, 2]' in done.stdout, done.stderr
    assert "clients send nothing, so each trains alone: their network has 'body.', 'head.'" in done.stderr
    assert '(my.py, line 10)' in done.stderr
    assert '\nfedcl: ' in f'\n{done.stderr}' and 'UserWarning' not in done.stderr
    show = [sys.executable, '-m', 'fedcl_repro.cli', 'show', 'typo', '--store', 'runs']
    shown = subprocess.run(show, cwd=tmp_path, capture_output=True, text=True) # where it is not registered
    assert 'typo' in shown.stdout, shown.stderr


def test_the_command_that_repeats_a_run_quotes_its_metrics():
    run = Run.of('fedavg', metrics=('top_k(k=2)', 'auc'))
    assert "--metrics 'top_k(k=2)' auc" in command_of(config(run))
