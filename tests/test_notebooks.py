"""Every notebook runs: concept pages as nbdev-test runs them, pages of papers as the command runs them.
Both run on all cores beside the other tests, and are asked one by one at the end."""
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def is_page(path):
    "Whether a notebook is the page of an artifact, which has parameters."
    cells = json.loads(path.read_text(encoding='utf-8'))['cells']
    return any('parameters' in c['metadata'].get('tags', []) for c in cells)


NOTEBOOKS = sorted(p for p in (ROOT/'nbs').rglob('*.ipynb') if '.ipynb_checkpoints' not in p.parts)
CONCEPTS = [p for p in NOTEBOOKS if not is_page(p)]
PAGES = [p for p in NOTEBOOKS if is_page(p) and 'papers' in p.parts]


def name(path): return str(path.relative_to(ROOT/'nbs').with_suffix(''))


@pytest.mark.parametrize('path', CONCEPTS, ids=name)
def test_concept_page(path, attempts):
    assert not attempts[str(path)], attempts[str(path)]


@pytest.mark.parametrize('path', PAGES, ids=name)
def test_page_of_a_paper(path, report):
    "It is in the command, and nothing stopped it."
    from fedcl_repro.study.experiments import experiments
    from fedcl_repro.study.pages import executed_path
    which = f'{path.parent.name}/{path.stem}'
    assert which in experiments(), 'a page without an experiment is in no command'
    done = json.loads(executed_path(report[1]/'report', which).read_text(encoding='utf-8'))
    errors = [o for c in done['cells'] for o in c.get('outputs', []) if o['output_type'] == 'error']
    assert not errors, [f"{e['ename']}: {e['evalue']}" for e in errors]
    assert not done['metadata']['papermill']['exception']


def test_first_command_makes_a_report(report):
    code, folder, said = report
    assert code == 0, said[-3000:]
    sentence = 'FedCoSR has the highest accuracy'
    assert sentence in (folder/'report'/'index.html').read_text(encoding='utf-8')
    verdicts = json.loads((folder/'runs'/'verdicts'/'fedcosr-table2-quick.json').read_text())
    first = [v for v in verdicts if v['what'].startswith(sentence)]
    assert first and all(v['word'].startswith('stand-in') for v in first)


def test_the_page_of_benchmarks_runs(tmp_path):
    "The smallest of its measurements, as the command runs them."
    from fedcl_repro.cli import main
    small = '--workload', 'digits', '--share', '0.05', '--repeats', '1'
    assert main(['bench', *small, '--json', str(tmp_path/'bench.json')]) == 0
    assert json.loads((tmp_path/'bench.json').read_text())


def test_a_page_runs_in_a_kernel_of_its_own(tmp_path):
    "As papermill starts it by itself; `fedcl reproduce` executes the others in its own processes."
    import papermill
    out = tmp_path/'fig4.ipynb'
    options = dict(progress_bar=False, log_output=False, cwd=str(ROOT))
    page = ROOT/'nbs/papers/fedcosr/fig4.ipynb'
    papermill.execute_notebook(str(page), str(out), dict(train=False), **options)
    assert any(c.get('outputs') for c in json.loads(out.read_text(encoding='utf-8'))['cells'])
