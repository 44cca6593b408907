"""A page of results shows the result first: a reader meets its table or figure before much code. How a page
draws what no other page draws is on it, folded; what two pages need is in the library."""
import ast
import json
import re
import statistics
from collections import Counter
from pathlib import Path

import pytest

from fedcl_repro.evidence.experiments import PAGE_OPTIONS

ROOT = Path(__file__).parents[2]
SHOWN = 'display_data', 'execute_result'


def cells_of(path): return json.loads(path.read_text(encoding='utf-8'))['cells']
def source_of(cell): return ''.join(cell['source'])
def tags_of(cell): return cell['metadata'].get('tags', [])
def is_folded(cell): return cell['metadata'].get('jupyter', {}).get('source_hidden', False)


def is_result_page(path): return any('parameters' in tags_of(c) for c in cells_of(path))


PAGES = sorted(p for p in (ROOT/'nbs'/'papers').rglob('*.ipynb')
               if '.ipynb_checkpoints' not in p.parts and is_result_page(p))


def in_papers(path): return str(path.relative_to(ROOT/'nbs'/'papers').with_suffix(''))


def lines_before_result(cells):
    """Lines of code up to the first cell that displays something, its own among them; without blank lines
    and folded cells, and without the parameters."""
    lines = 0
    for cell in cells:
        if cell['cell_type'] != 'code' or is_folded(cell): continue
        if 'parameters' in cell['metadata'].get('tags', []): continue
        lines += sum(1 for line in source_of(cell).splitlines() if line.strip())
        if any(out['output_type'] in SHOWN for out in cell['outputs']): return lines
    return None


def code(text, *shown, fold=False):
    "A cell of code with outputs of these types."
    about = dict(jupyter=dict(source_hidden=True)) if fold else {}
    return dict(cell_type='code', metadata=about, source=text, outputs=[dict(output_type=k) for k in shown])


def test_lines_before_the_first_result_are_counted():
    title = dict(cell_type='markdown', source='# A page\nof two lines')
    shows = code('a', 'execute_result')
    first = code('a = 1\n\nb = 2'), code('c = 3', fold=True), code('print(a)', 'stream')
    cells = [title, *first, shows, code('b')]
    assert lines_before_result(cells) == 4
    assert lines_before_result([title, code('a')]) is None


def test_half_of_the_pages_show_their_result_after_eight_lines():
    found = {in_papers(p): lines_before_result(cells_of(p)) for p in PAGES}
    silent = [name for name, lines in found.items() if lines is None]
    assert not silent, f'no stored result on {silent}'
    longest = sorted(found, key=lambda name: -found[name])[:5]
    assert statistics.median(found.values()) <= 8, f'most code before a result: {longest}'


DEFINITIONS = ast.FunctionDef, ast.ClassDef


def defined(text): return [node.name for node in ast.parse(text).body if isinstance(node, DEFINITIONS)]


def defined_on(path, fold):
    "The functions and classes of a page in cells that are folded, or in the others; not exported ones."
    cells = [c for c in cells_of(path) if c['cell_type'] == 'code' and is_folded(c) == fold]
    cells = [c for c in cells if not source_of(c).startswith('#| export')]
    return [name for cell in cells for name in defined(source_of(cell))]


@pytest.mark.parametrize('path', PAGES, ids=in_papers)
def test_a_page_shows_itself_once(path):
    "Typed parameters with a sentence each, one page that shows itself; its own functions are folded."
    cells = cells_of(path)
    parameters, = (source_of(c) for c in cells if 'parameters' in tags_of(c))
    found = dict(re.findall(r'^(\w+): (\w+) = \S+ +# \w', parameters, re.M))
    assert found == dict(profile='str', **{k: type(v).__name__ for k, v in PAGE_OPTIONS.items()})
    text = '\n'.join(source_of(c) for c in cells if c['cell_type'] == 'code')
    assert len(re.findall(r'^page = \w+\(', text, re.M)) == 1
    assert len(re.findall(r'^page\.show\(', text, re.M)) == 1
    assert not defined_on(path, fold=False), 'fold the cell that defines it'
    longest = max(source_of(c).count('\n') + 1 for c in cells if c['cell_type'] == 'code')
    assert longest <= 60, f'a cell of {longest} lines: make two of it'


def test_what_two_pages_need_is_in_the_library():
    pages = Counter(name for path in PAGES for name in set(defined_on(path, fold=True)))
    twice = sorted(name for name, n in pages.items() if n > 1)
    assert not twice, f'on several pages: {twice}'
    modules = (ROOT/'fedcl_repro').rglob('*.py')
    library = {name for path in modules for name in defined(path.read_text(encoding='utf-8'))}
    assert not library & set(pages), f'in the library already: {sorted(library & set(pages))}'
