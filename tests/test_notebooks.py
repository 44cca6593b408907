"""Every notebook runs: concept pages as nbdev-test runs them, pages of papers through papermill on quick runs."""
import json
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FLAGS = {'notest', 'slow', 'cuda'}


def is_page(path): return any('parameters' in c['metadata'].get('tags', []) for c in json.loads(path.read_text(encoding='utf-8'))['cells'])


NOTEBOOKS = sorted(p for p in (ROOT/'nbs').rglob('*.ipynb') if '.ipynb_checkpoints' not in p.parts)
def name(p): return str(p.relative_to(ROOT/'nbs').with_suffix(''))


@pytest.mark.parametrize('path', [p for p in NOTEBOOKS if not is_page(p)], ids=name)
def test_concept_page(path, monkeypatch):
    from nbdev.test import test_nb
    monkeypatch.chdir(ROOT)
    ok, seconds = test_nb(str(path), skip_flags=FLAGS, basepath=ROOT)
    assert ok, f'{path.name} failed; the cell and its error are printed above'


@pytest.mark.parametrize('path', [p for p in NOTEBOOKS if is_page(p)], ids=name)
def test_page_of_a_paper(path, report, tmp_path, monkeypatch):
    "With one seed, from the store that the highlights filled; what else the page needs it trains."
    from fedcl_repro.cli import checked_parameters, execute_page
    from fedcl_repro.study.experiments import experiments
    which = f'{path.parent.name}/{path.stem}'
    assert which in experiments(), 'a page without an experiment is in no command'
    monkeypatch.chdir(ROOT)
    done = execute_page(which, str(path), str(tmp_path/path.name), checked_parameters(path, dict(profile='quick', seeds=1, store=str(report[1]/'runs'))))
    assert done['status'] == 'ok', done['error']


def test_first_command_makes_a_report(report):
    code, folder = report
    page = (folder/'report'/'index.html').read_text(encoding='utf-8')
    assert code == 0 and 'FedCoSR is above FedAvg' in page
    verdicts = json.loads((folder/'runs'/'verdicts'/'fedcosr-table2-quick.json').read_text())
    above = [v for v in verdicts if v['what'].startswith('FedCoSR is above FedAvg')]
    assert [v['word'] for v in above] == ['stand-in holds']*2
    assert list((folder/'report'/'notebooks').glob('fedcosr-table2.ipynb'))
