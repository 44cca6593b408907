"""The project is what it says: one version, library and notebooks in step, light imports, a true README.
And its code is short enough to be read."""
import ast
import html
import json
import re
import runpy
import shutil
import statistics
import sys
from collections import defaultdict
from configparser import ConfigParser
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from base import EXTRAS, required
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
LIBRARY = ROOT/'fedcl_repro'
NOTEBOOKS = sorted(p for p in (ROOT/'nbs').rglob('*.ipynb') if '.ipynb_checkpoints' not in p.parts)
MODULES = sorted(p for p in LIBRARY.rglob('*.py') if p.name != '_modidx.py')


def in_nbs(path): return str(path.relative_to(ROOT/'nbs'))


def cells(path):
    "Kind and source of each cell."
    found = json.loads(path.read_text(encoding='utf-8'))['cells']
    return [(c['cell_type'], ''.join(c['source'])) for c in found]


def code_cells(path): return [source for kind, source in cells(path) if kind == 'code']


def exported_cells(path):
    "Sources of the cells that the library is made of, without their directive."
    return [s.partition('\n')[2] for s in code_cells(path) if re.match(r'#\|\s*export\b', s)]


def module_of(path):
    "The module that a notebook exports, such as `study.runs`; none if it exports nothing."
    for source in code_cells(path):
        found = re.search(r'^#\|\s*default_exp (\S+)', source, re.M)
        if found: return found[1]


def test_one_version():
    import fedcl_repro
    settings = ConfigParser(delimiters=['='])
    settings.read(ROOT/'settings.ini')
    assert fedcl_repro.__version__ == settings['DEFAULT']['version']


def test_lock_file_names_every_requirement():
    "An exact version of each, within its range."
    settings = ConfigParser(delimiters=['='])
    settings.read(ROOT/'settings.ini')
    asked = ' '.join(settings['DEFAULT'][k] for k in ('requirements', 'dev_requirements')).split()
    pins = (ROOT/'requirements.lock').read_text(encoding='utf-8').splitlines()[1:]
    locked = {canonicalize_name(r.name): r for r in map(Requirement, pins)}
    for r in map(Requirement, asked):
        assert canonicalize_name(r.name) in locked, f'{r.name} is not in requirements.lock'
        (pin,) = locked[canonicalize_name(r.name)].specifier
        assert pin.operator == '==' and pin.version in r.specifier


def test_every_module_has_a_notebook_of_its_name():
    named = {module_of(p).replace('.', '/') + '.py' for p in NOTEBOOKS if module_of(p)}
    there = {str(p.relative_to(LIBRARY)) for p in MODULES}
    folders = {n for n in there if n.endswith('__init__.py') and n != '__init__.py'}
    assert there - folders == named


def test_library_is_what_the_notebooks_export(tmp_path):
    "Every module, to the letter: exported anew from copies of the notebooks."
    from nbdev.export import nb_export
    for path in NOTEBOOKS:
        copy = tmp_path/path.relative_to(ROOT)
        copy.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, copy)
        nb_export(copy, lib_path=tmp_path/'fedcl_repro')
    for path in MODULES:
        if path.name == '__init__.py' and path.parent != LIBRARY: continue # of a folder, without code
        exported = tmp_path/path.relative_to(ROOT)
        assert path.read_text() == exported.read_text(), f'{path.name} differs: run nbdev-export'


IN_EXTRAS = dict( # import -> extra
    furo='docs', sphinx='docs', docutils='docs', flwr='flower', ray='ray', umap='flt', wandb='wandb',
    mlflow='mlflow', fontTools='docs')


def packages_imported(path):
    "The packages that a module imports anywhere, beside Python's own and this project's."
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
        names = [a.name for a in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and not node.level: names = [node.module]
        if isinstance(node, ast.Call) and ast.unparse(node.func) == 'importlib.import_module':
            names = re.findall(r"^f?'([a-z_]+)[.']", ast.unparse(node.args[0]))
        for name in names:
            top = name.partition('.')[0]
            if top not in sys.stdlib_module_names and top != 'fedcl_repro': yield top


def test_what_the_library_imports_is_required_by_name():
    "Whatever other requirements bring along today."
    of = packages_distributions()
    found = {name for path in MODULES for name in packages_imported(path)}
    assert set(IN_EXTRAS) <= found and 'torchvision' in found
    for name in sorted(found):
        where = EXTRAS[IN_EXTRAS[name]] if name in IN_EXTRAS else required()
        named = {canonicalize_name(Requirement(text).name) for text in where}
        homes = {canonicalize_name(d) for d in of.get(name, [name, f'{name}-learn'])}
        assert homes & named, f'{name} is imported: require one of {homes} in settings.ini'


TOOLS_ABSENT = '''
import sys, importlib.abc
tools = {'nbdev', 'fastcore', 'execnb', 'papermill', 'jupyter', 'jupyterlab', 'ipykernel', 'IPython',
         'nbclient', 'nbconvert', 'ipywidgets', 'matplotlib_inline'}
class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path=None, target=None):
        if name.split('.')[0] in tools: raise ImportError(name + ' is absent here')
assert not tools & set(sys.modules)
sys.meta_path.insert(0, Block())
from fedcl_repro.core import load_all
load_all('fedcl_repro')
from fedcl_repro.cli import main
sys.exit(main(['list', 'methods', '--json']))
'''


def test_library_imports_without_notebook_tools(fresh):
    done = fresh.run(TOOLS_ABSENT)
    assert done.returncode == 0, done.stderr
    assert {'name', 'title', 'family'} <= set(json.loads(done.stdout)[0])


SHAPES_FIRST = '''
import sys
import torch
from fedcl_repro.runs.run import Run, check_federation
places = {}
class Watch:
    def find_spec(name, path=None, target=None):
        if name == 'torchvision.models': places[name] = torch.get_default_device().type
sys.meta_path.insert(0, Watch)
check_federation(Run.of('local', model="mixed(of='resnet18 + alexnet')"))
print(places)
'''


def test_torchvision_is_imported_on_the_cpu(fresh):
    "Where shapes are checked first, tensors are on `meta`; older versions of torch cannot be imported there."
    done = fresh.run(SHAPES_FIRST)
    assert done.stdout.strip() == "{'torchvision.models': 'cpu'}", done.stderr


PROMISED = {
    'methods': {'name', 'title', 'family', 'settings', 'about'},
    'experiments': {'name', 'paper', 'artifact', 'kind', 'profiles'},
    'datasets': {'name', 'title', 'n_classes', 'settings'},
    'partitions': {'name', 'settings', 'about'},
    'scarcities': {'name', 'settings', 'about'},
    'augmentations': {'name', 'settings', 'about'},
    'models': {'name', 'settings', 'about'},
    'optimisers': {'name', 'settings', 'about'},
    'shifts': {'name', 'settings', 'about'},
    'metrics': {'name', 'settings', 'about'},
    'settings': {'name', 'default', 'range', 'about'},
    'executors': {'name', 'settings', 'about'},
}


def test_listings_have_the_promised_keys(capsys):
    from fedcl_repro.cli import LISTS, main
    assert set(LISTS) == set(PROMISED)
    for what, keys in PROMISED.items():
        assert main(['list', what, '--json']) == 0
        rows = json.loads(capsys.readouterr().out)
        assert rows and all(keys <= set(r) for r in rows), what


def test_every_executor_is_listed_and_can_be_asked_for(capsys):
    from fedcl_repro.cli import main
    from fedcl_repro.federation.loop import EXECUTORS
    main(['list', 'executors'])
    lines = capsys.readouterr().out.splitlines()
    listed = [line.split()[0] for line in lines if not line.startswith(' ')] # a long line is continued
    assert listed == list(EXECUTORS) and {'loop', 'graphs'} <= set(listed)
    for verb in (['run', '--method', 'fedavg'], ['reproduce']):
        assert main([*verb, '--executor', 'lop']) == 2
        assert "unknown executor 'lop' (did you mean 'loop'?): choose from" in capsys.readouterr().err


@pytest.mark.parametrize('executor', ['graphs'])
def test_executors_meant_for_an_accelerator_work_on_a_cpu(executor, tmp_path, capsys):
    "A run of the command under each of them ends as under the loop, up to rounding."
    from fedcl_repro.cli import main
    from fedcl_repro.runs.run import Run, run_id
    from fedcl_repro.runs.store import Store
    id, losses = run_id(Run.of('fedcosr', n_rounds=2, n_clients=4)), {}
    for name in ('loop', executor):
        store = Store(tmp_path/name)
        settings = ['--set', 'n_rounds=2', '--set', 'n_clients=4', '--executor', name]
        assert main(['run', '--method', 'fedcosr', *settings, '--store', str(store.root)]) == 0
        rows, about = store.read(id)
        assert about['executor'] == name
        merged = rows.query("metric == 'loss' and moment == 'merged'")
        losses[name] = merged.sort_values(['round', 'client']).value
    assert list(losses[executor]) == pytest.approx(list(losses['loop']), rel=1e-2)


OUT_OF_DATE = """
from fedcl_repro.publish.front import written_front
from fedcl_repro.show.findings import written_files
files = written_files() | written_front()
print(*(path.name for path, text in files.items() if path.read_text(encoding='utf-8') != text))
"""


def test_written_pages_are_what_the_committed_rows_say(fresh):
    "As `fedcl report` writes them, in a process that has imported no paper: their order is that of imports."
    said = fresh.run(OUT_OF_DATE, PYTHONPATH=str(ROOT))
    assert not said.returncode, said.stderr
    assert not said.stdout.split(), 'run `fedcl report`'


@pytest.mark.parametrize('path', [*sorted((ROOT/'nbs'/'tours').glob('*.ipynb')), ROOT/'nbs/show/tour.ipynb'],
                         ids=in_nbs)
def test_tours_show_the_verdicts_of_the_committed_rows(path):
    from fedcl_repro.show.tour import claims_sentence
    shown = 0
    for c in json.loads(path.read_text(encoding='utf-8'))['cells']:
        call = re.search(r'^show_payoff\(\w+, (.*)\)$', ''.join(c['source']), re.MULTILINE)
        if not call: continue
        said = ''.join(line for o in c['outputs'] for line in o.get('data', {}).get('text/markdown', ''))
        assert claims_sentence(ast.literal_eval(f'({call[1]},)')) in said, 'run the page again'
        shown += 1
    assert shown == 1


def test_pages_show_the_verdicts_of_the_committed_rows():
    from fedcl_repro.evidence.experiments import committed_verdicts, evidence_on, experiments
    from fedcl_repro.publish.execute import notebook_of
    from fedcl_repro.show.result_page import (
        answer_of, card_claim, claims_table, counts_line, settings_list, verdicts_in_words)
    stale, asked = [], 0
    for name, e in experiments().items():
        said = committed_verdicts(name)[1]
        if e.about['kind'] == 'claims': said = [v for _, _, v in evidence_on(name)]
        cells = json.loads(Path(notebook_of(name)).read_text(encoding='utf-8'))['cells']
        shown = ''.join(''.join(o['data'].get('text/html', '')) for c in cells
                        for o in c.get('outputs', []) if 'data' in o)
        told = list(claims_table([v for v in said if v.kind == 'claim' and v.word != 'not run']).evidence)
        card = card_claim(said) if e.about['kind'] != 'claims' else None # which has a card a paper
        if card: told += [answer_of(card, said), settings_list(card, said)]
        counted = counts_line(said) in shown or verdicts_in_words(said) in html.unescape(shown)
        missing = [text for text in told if html.unescape(text) not in html.unescape(shown)]
        if missing or not counted: stale.append((name, *missing[:1]))
        asked += bool(said)
    assert not stale, f'run these pages again: {stale}'
    assert asked > 20


# The others are above.
FLOORS = (
    'core docments user_code data', 'parts', 'federation', 'methods', 'runs', 'evidence', 'show', 'papers',
    'publish teaching distributed', 'commands')


def floor_of(module): # ['runs', 'store']
    return next((k for k, names in enumerate(FLOORS) if module[0] in names.split()), len(FLOORS))


def imported(path):
    "The library's modules that a module imports anywhere, as lists of names."
    package = path.relative_to(LIBRARY).parent.parts
    for node in ast.walk(ast.parse(path.read_text(encoding='utf-8'))):
        if not isinstance(node, ast.ImportFrom): continue
        named = (node.module or '').split('.')
        if node.level: named = [*package[:len(package) + 1 - node.level], *named]
        elif named[0] == 'fedcl_repro': named = named[1:]
        else: continue
        named = [name for name in named if name]
        yield named or [node.names[0].name]


def test_no_module_imports_from_a_floor_above():
    modules = [p for p in sorted(LIBRARY.rglob('*.py')) if p.name != '__init__.py']
    upward = [(str(p.relative_to(LIBRARY)), '.'.join(m)) for p in modules for m in imported(p)
              if floor_of(m) > floor_of(p.relative_to(LIBRARY).with_suffix('').parts)]
    assert not upward
    assert sum(1 for p in modules for _ in imported(p)) > 500


def test_readme_is_short():
    "In words that a reader sees: no addresses, no HTML."
    text = (ROOT/'README.md').read_text(encoding='utf-8')
    seen = re.sub(r'<[^>]*>', '', re.sub(r'\]\([^)]*\)', ']', text))
    words = [word for word in seen.split() if re.search(r'\w', word)]
    assert len(words) <= 920 # of which 280 are findings, each with its conditions


def test_readme_says_what_other_simulators_take():
    "Least and most of the simulators, each a median over rounds in turn with this library in float32."
    found = json.loads((ROOT/'nbs'/'bench'/'results'/'peers.json').read_text(encoding='utf-8'))['seconds']
    ours = found['fedcl, float32']
    others = [s for name, s in found.items() if not name.startswith('fedcl')]
    times = [statistics.median(a / b for a, b in zip(s, ours)) for s in others]
    assert len(times) > 1
    said = f'other simulators take [{min(times):.1f} to {max(times):.1f} times](nbs/bench/peers.ipynb)'
    assert said in (ROOT/'README.md').read_text(encoding='utf-8'), f'the README should say: {said}'


def test_every_experiment_has_a_page_with_a_profile():
    from fedcl_repro.evidence.experiments import experiments
    from fedcl_repro.publish.execute import checked_parameters, notebook_of
    for name in experiments():
        assert checked_parameters(notebook_of(name), dict(profile='lite')) == dict(profile='lite')


@pytest.mark.parametrize('script', ['frozen', 'spread', 'store_curves', 'store_pages'])
def test_a_script_that_is_asked_for_help_says_what_it_does(script, monkeypatch, capsys):
    "Before it computes or writes anything."
    path = str(ROOT/'tests'/'tools'/f'{script}.py')
    monkeypatch.setattr(sys, 'argv', [path, '--help'])
    with pytest.raises(SystemExit): runpy.run_path(path, run_name='__main__')
    assert f'tests/tools/{script}.py' in capsys.readouterr().out


@pytest.mark.parametrize('script', ['frozen', 'store_curves', 'store_pages'])
def test_a_script_names_what_is_not_there(script, monkeypatch, capsys):
    path = str(ROOT/'tests'/'tools'/f'{script}.py')
    monkeypatch.setattr(sys, 'argv', [path, 'no/such'])
    with pytest.raises(SystemExit): runpy.run_path(path, run_name='__main__')
    assert 'no/such' in capsys.readouterr().err


def stray(notebook):
    "Execution counts and stray metadata; an error, a warning or a progress bar left in an output."
    yield from set(notebook['metadata']) - {'kernelspec'}
    for c in notebook['cells']:
        yield from set(c['metadata']) - {'tags', 'jupyter'}
        if c.get('execution_count') is not None: yield 'an execution count'
        outputs = c.get('outputs', [])
        if any(o['output_type'] == 'error' for o in outputs): yield 'an error'
        told = ''.join(''.join(o['text']) for o in outputs if o.get('name') == 'stderr')
        if re.search(r'\d%\||warning', told, re.IGNORECASE): yield told


def test_notebooks_are_clean():
    for path in NOTEBOOKS: assert not list(stray(json.loads(path.read_text(encoding='utf-8')))), path


def ends_in(source):
    "What ends a cell: a 'value' shows itself, a 'call' may, a 'test' and a 'statement' do not."
    *_, last = [None, *ast.parse(source).body]
    if not isinstance(last, ast.Expr): return 'statement'
    if not isinstance(last.value, ast.Call): return 'value'
    return 'test' if getattr(last.value.func, 'id', '').startswith('test_') else 'call'


def out_of_step(notebook):
    "Cells whose value has no output, or that show one and have no value."
    for c in notebook['cells']:
        source = ''.join(c['source'])
        if c['cell_type'] != 'code' or source.startswith('#| export'): continue
        shown = any(o['output_type'] == 'execute_result' for o in c['outputs'])
        last = ends_in(source)
        if not shown and last == 'value' or shown and last not in ('value', 'call'): yield source


def test_a_stored_output_belongs_to_its_cell():
    for path in NOTEBOOKS:
        found = list(out_of_step(json.loads(path.read_text(encoding='utf-8'))))
        assert not found, f'execute {path}: {found[0]}'


WIDEST = 110 # columns


def wide_lines(text):
    "Lines that do not fit; those with an address and rows of Markdown tables cannot be broken."
    for line in text.splitlines():
        free = re.search(r'https?://', line) or line.lstrip().startswith('|')
        if len(line) > WIDEST and not free: yield line


def test_no_code_cell_and_no_test_is_wide():
    texts = {path: '\n'.join(code_cells(path)) for path in NOTEBOOKS}
    texts |= {path: path.read_text(encoding='utf-8') for path in (ROOT/'tests').rglob('*.py')}
    for path, text in texts.items():
        wide = list(wide_lines(text))
        assert not wide, f'{path}: {len(wide)} lines over {WIDEST} columns, the first: {wide[0]!r}'


def long_behind_a_colon(text):
    "First lines of statements that begin behind a colon, as in `if x: y(`, and do not end there."
    lines = re.sub(r'^(\s*)[%!].*$', r'\1pass', text, flags=re.M).splitlines()
    nodes = ast.walk(ast.parse('\n'.join(lines)))
    bodies = (getattr(node, part, None) for node in nodes for part in ('body', 'orelse'))
    for first, *_ in (body for body in bodies if body and isinstance(body, list)):
        line = lines[first.lineno - 1]
        is_branch = line.lstrip().startswith('elif') and isinstance(first, ast.If)
        if line[:first.col_offset].strip() and first.end_lineno > first.lineno and not is_branch: yield line


def test_what_goes_on_has_a_line_of_its_own():
    for path in NOTEBOOKS:
        found = [line for source in code_cells(path) for line in long_behind_a_colon(source)]
        assert not found, f'{path}: begin a line behind the colon of {found[0]!r}'
    assert list(long_behind_a_colon('if a: b(1,\n        2)')) == ['if a: b(1,']
    assert not list(long_behind_a_colon('if a: b(1)\nelif c:\n    b(1,\n      2)'))


def test_width_is_measured_as_said():
    long = 'x'*111
    assert list(wide_lines(f'short\n{long}')) == [long]
    for text in ('x'*110, f'see https://a.b/{long}', f'  | {long} |'): assert not list(wide_lines(text))


def test_exported_cells_are_short():
    "Non-blank lines of cells that define something: half at most 12, nine in ten at most 25, none over 60."
    sizes = defaultdict(list)
    for p in NOTEBOOKS:
        for source in exported_cells(p):
            if re.match(r'\s*(import|from)\b', source): continue
            sizes[in_nbs(p)].append(sum(1 for line in source.splitlines() if line.strip()))
    everything = sorted(size for found in sizes.values() for size in found)
    large = sorted(((max(found), name) for name, found in sizes.items()), reverse=True)[:8]
    assert statistics.median(everything) <= 12, f'notebooks with the largest cells: {large}'
    assert everything[int(.9*len(everything))] <= 25, f'notebooks with the largest cells: {large}'
    assert everything[-1] <= 60, f'notebooks with the largest cells: {large}'


def lambdas_and_lines(path):
    "Lambdas of a module, and its non-blank lines without its `__all__` and the notes of the exporter."
    text = path.read_text(encoding='utf-8')
    n = sum(isinstance(node, ast.Lambda) for node in ast.walk(ast.parse(text)))
    code = re.sub(r'__all__ = \[.*?\]\n', '', text, flags=re.S)
    return n, sum(1 for line in code.splitlines() if line.strip() and not line.startswith('# %%'))


def test_methods_name_their_functions():
    "At most two lambdas in 100 lines of the methods."
    found = {p.stem: lambdas_and_lines(p) for p in MODULES if p.parent.name == 'methods'}
    n, lines = (sum(column) for column in zip(*found.values()))
    most = sorted(found, key=lambda name: -found[name][0])[:6]
    assert 100*n <= 2*lines, f'{n} lambdas in {lines} lines, most of them in {", ".join(most)}'


# What the papers themselves call alike: their tables and figures, and the functions that judge them.
ARTIFACT = re.compile(r'(judge_)?(table|fig)\d+$')
# compare: published numbers (evidence/verdict), methods (show/compare);
# images: those that a run trains on (evidence/plan), those of some rows (teaching/lent)
SHARED_NAMES = {'compare'}


def exported_names(path):
    "The names in a module's `__all__`."
    for node in ast.parse(path.read_text(encoding='utf-8')).body:
        if isinstance(node, ast.Assign) and getattr(node.targets[0], 'id', '') == '__all__':
            return ast.literal_eval(node.value)
    return []


def test_one_name_one_meaning():
    "No two modules of the library export one name, but for the artifacts of the papers."
    homes = defaultdict(list)
    for p in MODULES:
        for name in exported_names(p): homes[name].append(str(p.relative_to(LIBRARY).with_suffix('')))
    twice = {n: where for n, where in homes.items() if len(where) > 1}
    of_papers = {n for n, where in twice.items()
                 if ARTIFACT.match(n) and all(w.startswith('papers/') for w in where)}
    clashes = {n: where for n, where in twice.items() if n not in of_papers | SHARED_NAMES}
    assert not clashes, '; '.join(f"{n}: {', '.join(where)}" for n, where in sorted(clashes.items()))
    assert SHARED_NAMES <= set(twice), 'names that are no longer shared need no exception'


def test_no_module_defines_a_name_twice():
    "The second would silently replace the first; a method that is patched in has its class before its name."
    for path in MODULES:
        found = [node.name for node in ast.parse(path.read_text(encoding='utf-8')).body
                 if isinstance(node, (ast.FunctionDef, ast.ClassDef))
                 and not any(getattr(d, 'id', '') == 'patch' for d in node.decorator_list)]
        assert len(found) == len(set(found)), (path, {n for n in found if found.count(n) > 1})


PRIVATE = re.compile( # words of ours for which the field has a word (CONTRIBUTING, "How it reads")
    r"\b(printed (value|number|table|cost|accurac)|compared with print|(several|all|three) readings|in print|"
    r"joint reading|as printed|what is printed|sentences? (is|are) (checked|asked|true)|"
    r"(support|contradict)s? (a|the|some of its) sentences?|the text that we have|asked of runs|"
    r"(is|are) asked of|not asked, because|other reading|(told|tells?) apart|no safe|"
    r"every second (client|round)|nothing is lost that|too(?=[.,;:)]))", re.I)
TRANSLATED = re.compile( # what readers read has the field's words, and English syntax
    PRIVATE.pattern +
    r"|\b((is|are|be|equals?) (that|those) of|can (also )?be read (as|in)|why it is not asked)", re.I)


def private_words(text, words=PRIVATE):
    "Words of this project alone, outside code."
    return [m[0] for m in words.finditer(re.sub(r'`[^`]*`', '', text))]


def markdown_of(path):
    cells = json.loads(path.read_text(encoding='utf-8'))['cells']
    return [''.join(c['source']) for c in cells if c['cell_type'] == 'markdown']


def shown_on(path):
    "The Markdown of a page, and what its cells show as HTML or Markdown, without tags."
    yield from markdown_of(path)
    for cell in json.loads(path.read_text(encoding='utf-8'))['cells']:
        shown = (o.get('data', {}) for o in cell.get('outputs', []))
        parts = (data.get(kind, '') for data in shown for kind in ('text/html', 'text/markdown'))
        for part in parts: yield re.sub(r'<[^>]*>', ' ', html.unescape(''.join(part)))


def test_the_book_has_the_words_of_the_field():
    for path in NOTEBOOKS:
        assert not private_words('\n'.join(shown_on(path))), path
        assert not private_words('\n'.join(markdown_of(path)), TRANSLATED), path
    for path in (ROOT/'nbs'/'course').glob('*.toml'): # what the checks of the course say
        assert not private_words(path.read_text(encoding='utf-8'), TRANSLATED), path
    data = [p for p in (LIBRARY/'published').iterdir() if p.suffix in ('.csv', '.toml', '.md')]
    assert len(data) > 10
    for path in [*MODULES, *data, ROOT/'README.md']:
        assert not private_words(path.read_text(encoding='utf-8')), path
    said = 'It is asked of nine methods, under all readings, as printed. In print, too, not asked, because.'
    assert private_words(said) == ['is asked of', 'all readings', 'as printed', 'In print', 'too',
                                   'not asked, because']
    said = 'Its settings are those of FedPer. It can also be read as one draw.'
    assert private_words(said, TRANSLATED) == ['are those of', 'can also be read as']


NO_RESULT = re.compile( # codes, formulas, links, places, settings, levels
    r'`[^`]*`|\$[^$]*\$|\]\([^)]*\)|95 %|(?:Eq\.|Sec\.|Section|App\.|[βξ] =|rates?)\s?[\d.]+|'
    r'\d+\.\d+\.\d+|\(\d\.\d\)')
RESULT = re.compile(r'\d+\.\d+|\d+(?= (?:%|points))')


def crowded(text):
    "Paragraphs with more than four results; tables are free, and the words of a picture are its table."
    text = re.sub(r'<!--.*?-->\n?|<picture>.*?</picture>', '', text)
    prose = [some for some in re.split(r'\n\n|\n(?=- )', text) if not some.lstrip().startswith(('|', '```'))]
    return [some for some in prose if len(RESULT.findall(NO_RESULT.sub('', some))) > 4]


def test_a_paragraph_has_at_most_four_results():
    for path in NOTEBOOKS:
        if path.parent.name not in ('arena', 'fedcosr', 'fedssc', 'mapl', 'mfcl', 'tours', 'course'): continue
        for kind, source in cells(path):
            if kind == 'markdown': assert not crowded(source), path
    for name in ('README.md', 'nbs/papers/status.md'):
        assert not crowded((ROOT/name).read_text(encoding='utf-8')), name
    said = 'It has 1.2 points (95 % interval 0.1 to 2), then 34 %'
    assert not crowded(said) and crowded(f'{said}, 5.6 and 7.8 at last.')
    assert not crowded(f'| {said} | 1.2 | 3.4 |')
