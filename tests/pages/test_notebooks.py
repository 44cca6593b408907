"""Every notebook runs: concept pages as nbdev-test runs them, pages of papers on their committed rows. They
run on all cores beside the other tests, and are asked one by one at the end. `pytest -m nightly` trains
every experiment and executes its page as the command does."""
import json
import subprocess
import sys
from pathlib import Path

import pytest
from run_pages import has_parameters

from fedcl_repro.evidence.experiments import experiments
from fedcl_repro.publish.execute import executed_path

ROOT = Path(__file__).parents[2]
NOTEBOOKS = sorted(p for p in (ROOT/'nbs').rglob('*.ipynb') if '.ipynb_checkpoints' not in p.parts)
CONCEPTS = [p for p in NOTEBOOKS if not has_parameters(p)]
PAGES = [p for p in NOTEBOOKS if has_parameters(p) and 'papers' in p.parts]


def name(path): return str(path.relative_to(ROOT/'nbs').with_suffix(''))


@pytest.mark.parametrize('path', PAGES + CONCEPTS, ids=name)
def test_page(path, attempts): assert not attempts[str(path)], attempts[str(path)]


def test_each_page_of_a_paper_is_in_the_command():
    assert {f'{p.parent.name}/{p.stem}' for p in PAGES} == set(experiments())


@pytest.mark.nightly
def test_everything_is_reproduced(everything):
    "Every experiment is trained, and nothing stops its page."
    code, folder, said = everything
    assert code == 0, said[-3000:]
    for which in experiments():
        done = json.loads(executed_path(folder/'report', which).read_text(encoding='utf-8'))
        kinds = {o['output_type'] for c in done['cells'] for o in c.get('outputs', [])}
        assert kinds and 'error' not in kinds and not done['metadata']['papermill']['exception'], which


def test_the_page_of_benchmarks_runs(tmp_path):
    "The smallest of its measurements."
    from fedcl_repro.publish.execute import papermill_error
    page, small = ROOT/'nbs'/'bench'/'speed.ipynb', dict(workloads='digits', share=.05, repeats=1)
    assert not papermill_error(str(page), str(tmp_path/'speed.ipynb'),
                               small | dict(json_file=str(tmp_path/'bench.json')))
    assert json.loads((tmp_path/'bench.json').read_text())


def test_the_simulators_take_turns(tmp_path):
    "Those that are installed, this library among them, do the same work; the others are named."
    folder = ROOT/'nbs'/'bench'/'simulators'
    small = '--data', 'digits(side=32)', '--images', '240', '--clients', '2', '--rounds', '1'
    command = [sys.executable, str(folder/'measure.py'), *small, '--out', str(tmp_path/'peers.json')]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    found = json.loads((tmp_path/'peers.json').read_text(encoding='utf-8'))
    images, programs = found['images'], len(list(folder.glob('run_*.py')))
    assert len(images) + done.stdout.count('is left out: ModuleNotFoundError') == programs + 1, done.stdout
    for name in images: assert images[name] == images['fedcl, float32'], name
    assert all(len(s) == 1 and s[0] > 0 for s in found['seconds'].values())


def test_a_page_runs_in_a_kernel_of_its_own(tmp_path):
    "As papermill starts it by itself; `fedcl reproduce` executes the others in its own processes."
    import papermill
    out = tmp_path/'fig4.ipynb'
    options = dict(progress_bar=False, log_output=False, cwd=str(ROOT))
    page = ROOT/'nbs/papers/fedcosr/fig4.ipynb'
    papermill.execute_notebook(str(page), str(out), dict(train=False), **options)
    assert any(c.get('outputs') for c in json.loads(out.read_text(encoding='utf-8'))['cells'])
