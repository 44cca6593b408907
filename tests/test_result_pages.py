"""A page of results shows the result first: a reader meets its table or figure before much code,
and what the page computes is in the library."""
import json
import re
import statistics
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
SHOWN = 'display_data', 'execute_result'


def cells_of(path): return json.loads(path.read_text(encoding='utf-8'))['cells']
def source_of(cell): return ''.join(cell['source'])
def tags_of(cell): return cell['metadata'].get('tags', [])


def is_result_page(path): return any('parameters' in tags_of(c) for c in cells_of(path))


PAGES = sorted(p for p in (ROOT/'nbs'/'papers').rglob('*.ipynb')
               if '.ipynb_checkpoints' not in p.parts and is_result_page(p))


def in_papers(path): return str(path.relative_to(ROOT/'nbs'/'papers').with_suffix(''))


def lines_before_result(cells):
    "Lines of code up to the first cell that displays something, its own among them; without blank lines."
    lines = 0
    for cell in cells:
        if cell['cell_type'] != 'code': continue
        lines += sum(1 for line in source_of(cell).splitlines() if line.strip())
        if any(out['output_type'] in SHOWN for out in cell['outputs']): return lines
    return None


def code(text, *shown):
    "A cell of code with outputs of these types."
    return dict(cell_type='code', source=text, outputs=[dict(output_type=kind) for kind in shown])


def test_lines_before_the_first_result_are_counted():
    title = dict(cell_type='markdown', source='# A page\nof two lines')
    shows = code('a', 'execute_result')
    cells = [title, code('a = 1\n\nb = 2'), code('print(a)', 'stream'), shows, code('b')]
    assert lines_before_result(cells) == 4
    assert lines_before_result([title, code('a')]) is None


def test_half_of_the_pages_show_their_result_after_eight_lines():
    found = {in_papers(p): lines_before_result(cells_of(p)) for p in PAGES}
    silent = [name for name, lines in found.items() if lines is None]
    assert not silent, f'no stored result on {silent}'
    longest = sorted(found, key=lambda name: -found[name])[:5]
    assert statistics.median(found.values()) <= 8, f'most code before a result: {longest}'


@pytest.mark.parametrize('path', PAGES, ids=in_papers)
def test_a_page_shows_what_the_library_computes(path):
    "Two parameters, one page that shows itself, no function of its own."
    cells = cells_of(path)
    parameters, = (source_of(c) for c in cells if 'parameters' in tags_of(c))
    assert re.findall(r'^(\w+) = ', parameters, re.M) == ['profile', 'options']
    text = '\n'.join(source_of(c) for c in cells if c['cell_type'] == 'code')
    assert len(re.findall(r'^page = \w+\(', text, re.M)) == 1
    assert len(re.findall(r'^page\.show\(', text, re.M)) == 1
    assert not re.findall(r'^\s*def ', text, re.M), 'a function of a page belongs to the library'
    assert 'not run' not in text, 'what is not run is the business of page.show'
