"""The project is what it says: one version, library and notebooks in step, light imports, a true README."""
import json
import re
import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
NOTEBOOKS = sorted(p for p in (ROOT/'nbs').rglob('*.ipynb') if '.ipynb_checkpoints' not in p.parts)


def cells(path): return [(c['cell_type'], ''.join(c['source'])) for c in json.loads(path.read_text(encoding='utf-8'))['cells']]


def test_one_version():
    import fedcl_repro
    settings = ConfigParser(delimiters=['='])
    settings.read(ROOT/'settings.ini')
    assert fedcl_repro.__version__ == settings['DEFAULT']['version']


def test_every_module_has_a_notebook_of_its_name():
    named = {m[1].replace('.', '/') + '.py' for p in NOTEBOOKS for _, s in cells(p) for m in [re.search(r'^#\|\s*default_exp (\S+)', s, re.M)] if m}
    there = {str(p.relative_to(ROOT/'fedcl_repro')) for p in (ROOT/'fedcl_repro').rglob('*.py') if p.name not in ('_modidx.py',)}
    folders = {n for n in there if n.endswith('__init__.py') and n != '__init__.py'}
    assert there - folders == named


def test_library_is_what_the_notebooks_export(tmp_path):
    "Every line of every exported cell stands in its module."
    for p in NOTEBOOKS:
        code = [s for kind, s in cells(p) if kind == 'code']
        name = next((m[1] for s in code for m in [re.search(r'^#\|\s*default_exp (\S+)', s, re.M)] if m), None)
        if not name: continue
        module = (ROOT/'fedcl_repro'/f"{name.replace('.', '/')}.py").read_text(encoding='utf-8')
        for s in code:
            if re.match(r'#\|\s*export\b', s):
                for line in s.splitlines()[1:]:
                    if line.strip() and not line.startswith(('from fedcl_repro', 'import')): assert line in module, f'{p.name}: {line!r} is not in {name}: run nbdev-export'


def test_library_imports_without_notebook_tools():
    block = '''
import sys, importlib.abc
class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in {'nbdev', 'fastcore', 'execnb', 'papermill', 'jupyter', 'jupyterlab', 'ipykernel', 'IPython', 'nbclient', 'nbconvert', 'ipywidgets', 'matplotlib_inline'}: raise ImportError(name + ' is absent here')
sys.meta_path.insert(0, Block())
from fedcl_repro.core import load_all
load_all('fedcl_repro')
from fedcl_repro.cli import main
sys.exit(main(['list', 'methods', '--json']))
'''
    done = subprocess.run([sys.executable, '-c', block], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert {'name', 'title', 'family'} <= set(json.loads(done.stdout)[0])


def test_listings_have_the_promised_keys(capsys):
    from fedcl_repro.cli import main
    for what, keys in (('methods', {'name'}), ('experiments', {'name', 'paper', 'artifact', 'kind', 'profiles'}), ('datasets', {'name'})):
        assert main(['list', what, '--json']) == 0
        rows = json.loads(capsys.readouterr().out)
        assert rows and all(keys <= set(r) for r in rows)


def test_readme_tables_are_what_the_committed_rows_say():
    from fedcl_repro.cli import with_tables
    text = (ROOT/'README.md').read_text(encoding='utf-8')
    assert with_tables(text) == text, 'run `fedcl report --readme`'


def test_every_experiment_has_a_page_with_a_profile():
    from fedcl_repro.cli import checked_parameters, notebook_of
    from fedcl_repro.study.experiments import experiments
    for name in experiments(): assert checked_parameters(notebook_of(name), dict(profile='lite')) == dict(profile='lite')


@pytest.mark.parametrize('path', NOTEBOOKS, ids=lambda p: str(p.relative_to(ROOT/'nbs')))
def test_notebooks_are_clean(path):
    "No execution counts, no stray metadata, no error left in an output."
    nb = json.loads(path.read_text(encoding='utf-8'))
    assert set(nb['metadata']) <= {'kernelspec'}
    for c in nb['cells']:
        assert set(c['metadata']) <= {'tags'} and c.get('execution_count') is None
        assert not any(o['output_type'] == 'error' for o in c.get('outputs', []))


def test_no_exported_cell_is_long():
    for p in NOTEBOOKS:
        for kind, s in cells(p):
            if kind == 'code' and re.match(r'#\|\s*export\b', s): assert len(s.splitlines()) <= 60, f'{p.name}: {s.splitlines()[1]}'
