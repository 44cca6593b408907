"""A researcher's week: what the package shows of itself, tables for a paper, data as people have them, models
that validation chose, loggers."""
import ast
import contextlib
import doctest
import inspect
import io
import re
import shutil
import subprocess
from importlib import import_module
from pathlib import Path

import pandas as pd
import pytest
import torch

import fedcl_repro
from fedcl_repro import cli
from fedcl_repro.parts import contrastive
from fedcl_repro.show.compare import compare, numbers_of

ROOT = Path(__file__).parents[1]


# --- the front door

def test_completion_help_and_type_checkers_see_the_same_names():
    "The names of `__all__`, those that type checkers read, and what jedi completes."
    tree = ast.parse(Path(fedcl_repro.__file__).read_text(encoding='utf-8'))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    homes = {a.asname: node.module.removeprefix('fedcl_repro.') for node in block.body for a in node.names}
    assert homes == fedcl_repro._homes and set(homes) <= set(dir(fedcl_repro))
    for name in homes: assert getattr(fedcl_repro, name).__doc__
    jedi = pytest.importorskip('jedi')
    text = 'import fedcl_repro\nfedcl_repro.'
    assert set(homes) <= {c.name for c in jedi.Script(text, path=ROOT/'x.py').complete()}
    assert len(doctest.DocTestParser().get_examples(fedcl_repro.__doc__)) == 3


def test_question_mark_shows_shapes_and_units():
    "In the sections that PyTorch's docstrings have; of functions, data classes and classes."
    doc = fedcl_repro.infonce.__doc__
    assert '\nArgs:\n    z: (b, k) representations' in doc and '\nReturns:\n    (b,) nats' in doc
    assert 'participation: share of the clients in a round' in fedcl_repro.Run.__doc__
    assert 'per_group: channels in a group' in import_module('fedcl_repro.parts.twin_norm').TwinNorm.__doc__


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
    for n_rounds, words in ((1, 'the last evaluation, round 1'), (5, 'mean of the last 2 evaluations, round 5')):
        assert words in str(fedcl_repro.simulate('fedavg', n_clients=3, n_rounds=n_rounds))


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
    lines = [r'\documentclass{article}', rf'\IfFileExists{{booktabs.sty}}{{\usepackage{{booktabs}}}}{{{rules}}}',
             r'\usepackage{graphicx}', r'\begin{document}', *tables, r'\end{document}']
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
    assert b'/Type3' not in (tmp_path/'f.pdf').read_bytes() and b'/FontFile2' in (tmp_path/'f.pdf').read_bytes()
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


@pytest.mark.parametrize('name', ['fedcosr/table2', 'mfcl/table2', 'fedssc/table1', 'mapl/table1', 'fedcosr/fig5'])
def test_the_tables_of_an_artifact_compile(name, tmp_path):
    table, csv = tmp_path/'t.tex', tmp_path/'t.csv'
    said('show', name, '--table', table, '--csv', csv)
    assert len(pd.read_csv(csv)) and r'\bottomrule' in table.read_text()
    text = table.read_text()
    compiled(tmp_path, r'\footnotesize', text)


@pytest.mark.parametrize('words, says', [
    (('--table', 't.txt'), 'must end in .tex'), (('--csv', 't.tex'), 'must end in .csv'),
    (('--figure', 'f.doc'), 'must end in one of')])
def test_a_file_that_cannot_be_written_is_refused_before_training(words, says, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert cli.main(['compare', 'fedavg', 'fedper', *words]) == 2
    assert says in capsys.readouterr().err
