"""The book: its map is complete, its site builds without a warning, and every link of it leads somewhere."""
import io
import json
import re
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[2]


def shown_on(page):
    "The Markdown that the cells of a notebook displayed."
    cells = json.loads((ROOT/'nbs'/f'{page}.ipynb').read_text(encoding='utf-8'))['cells']
    outputs = [o.get('data', {}).get('text/markdown', '') for c in cells for o in c.get('outputs', [])]
    return '\n'.join(''.join(text) for text in outputs)


def test_every_artifact_of_the_papers_is_on_the_map():
    from fedcl_repro.publish.paper_map import checked_place
    from fedcl_repro.evidence.published import read_published
    listed = read_published('artifacts').fillna('')
    for a in listed.itertuples(): checked_place(a.place, f'{a.paper}/{a.artifact}')
    assert list(listed[listed.place == ''].artifact) == ['fig5'], 'only MFCL has no Figure 5'


def test_every_numbered_equation_is_on_the_map():
    from fedcl_repro.publish.paper_map import EQUATIONS, checked_place, equations
    listed = [(e['paper'], int(e['number'])) for e in equations()]
    assert listed == [(paper, n + 1) for paper, count in EQUATIONS.items() for n in range(count)]
    for e in equations(): checked_place(e['place'], f"{e['paper']} Eq. {e['number']}")


def test_the_map_is_up_to_date():
    "Its stored tables of artifacts, equations and claims are the ones that are computed now."
    from fedcl_repro.publish.paper_map import artifacts_table, equations_table
    from fedcl_repro.evidence.experiments import experiments, verdicts_alone
    from fedcl_repro.evidence.published import PAPER_NAMES
    shown = shown_on('map')
    for paper, name in PAPER_NAMES.items():
        for table in (artifacts_table(paper), equations_table(paper)):
            assert table in shown, f'{name}: run the cells of nbs/map.ipynb'
    tables = [name for name, e in experiments().items() if e.about['kind'] != 'claims']
    said = [v for name in tables for v in verdicts_alone(name) if v.kind == 'claim']
    said = {v.what.split(':')[0].replace('|', r'\|') for v in said}
    missing = [sentence for sentence in said if f'| {sentence} |' not in shown]
    assert not missing, f'run the cells of nbs/map.ipynb: {missing[:3]}'


def test_the_front_page_has_three_doors_a_picture_and_two_commands():
    page = ''.join(json.loads((ROOT/'nbs'/'index.ipynb').read_text(encoding='utf-8'))['cells'][0]['source'])
    front = page
    pictures = re.findall(r'(?:src|srcset)="([^"]*)"', front)
    assert len(pictures) > 3 and all((ROOT/'nbs'/picture).exists() for picture in pictures), pictures
    block, = re.findall(r'```sh\n(.*?)```', front, re.S)
    commands = [line.split('&&')[1].strip() for line in block.splitlines()]
    assert commands == ['fedcl reproduce', 'jupyter lab nbs']
    doors = re.findall(r'\[\*\*(.*?)\*\*\]\((.*?)\)', front)
    assert [name for name, _ in doors] == ['Learn it', 'See what holds', 'Use it']
    pattern = r'(\d+) claims about trained models: (.*?)\. (\d+) about published .*?: (.*?)\.'
    counted = re.search(pattern, front)
    for n_claims, words in (counted[1], counted[2]), (counted[3], counted[4]):
        assert int(n_claims) == sum(map(int, re.findall(r'\d+', words))) # what became of each of them is said
    assert 'Open: tested' in front
    assert all((ROOT/'nbs'/page).exists() for _, page in doors)


def test_the_sidebar_is_short_and_in_the_order_of_reading():
    from fedcl_repro.publish.contents import SIDEBAR, chapters, internals, sidebar
    more = ['contributing', 'library/index', 'changelog', 'oddities']
    shown, rest = sidebar(more), internals(more)
    assert list(SIDEBAR) == ['Course', 'Tours of the papers', 'Papers', 'Library']
    assert list(shown) == [heading for heading in SIDEBAR if heading in shown]
    lines = sum(map(len, shown.values())) + len(rest)
    assert 45 <= lines <= 67
    pages = [page for part in (shown, rest) for pages in part.values() for page in pages]
    assert len(pages) == len(set(pages)), 'a page is there twice'
    assert {page for pages in chapters().values() for page in pages} <= set(pages)


def test_solutions_are_folded_in_jupyterlab_and_on_the_site():
    from fedcl_repro.publish.site import ready_cells, tags_of
    found = 0
    for path in sorted((ROOT/'nbs').rglob('*.ipynb')):
        if '.ipynb_checkpoints' in path.parts: continue
        for cell in json.loads(path.read_text(encoding='utf-8'))['cells']:
            if 'hide-cell' not in cell['metadata'].get('tags', []): continue
            folds = cell['metadata'].get('jupyter')
            assert folds == dict(source_hidden=True, outputs_hidden=True), f'{path.name}: {cell["id"]}'
            found += 1
    assert found >= 72
    assert sum(tags_of(cell) == {'hide-cell'} for cell in ready_cells('parts/contrastive')) == 1


def test_what_a_course_calls_folded_is_folded():
    "Drawings, and code of earlier pages, can be opened on the site; on a page of results they are left out."
    from fedcl_repro.publish.site import cells_of, ready_cell, ready_cells, tags_of
    page = 'course/03_body_and_head'
    hidden = [cell for cell in cells_of(page) if 'hide' in tags_of(cell)]
    assert hidden and all(cell['metadata']['jupyter'] == dict(source_hidden=True) for cell in hidden)
    prompts = [cell['metadata'].get('mystnb', {}).get('code_prompt_show') for cell in ready_cells(page)]
    assert prompts.count('Code') == len(hidden)
    assert tags_of(ready_cell(hidden[0], folds=True)) == {'remove-input'}


def test_a_result_has_one_fold():
    "How a result is drawn is folded above it, in one piece, however many cells it has."
    from fedcl_repro.publish.site import ready_cells, text_of
    code = [cell for cell in ready_cells('papers/mfcl/table8') if cell['cell_type'] == 'code']
    first, check, more = code
    assert first['outputs'] and more['outputs'] and not check['outputs']
    assert text_of(first).startswith('profile: str = ') and 'class AttackPage' in text_of(first)
    assert 'test_eq(' in text_of(check)


HOSTILE = '<img src=x onerror="alert(1)"><script>alert(2)</script>'


def test_text_in_a_table_is_escaped():
    "Names of a folder, of a file or of someone's rows."
    import pandas as pd
    from fedcl_repro.show.tables import nice_table, noted_table
    table = pd.DataFrame({HOSTILE: [HOSTILE], 'verdict': ['holds']}, index=[HOSTILE])
    noted = noted_table({HOSTILE: table}, HOSTILE, [HOSTILE]).data
    for shown in (nice_table(table, HOSTILE).to_html(), noted):
        assert '&lt;img' in shown
        assert '<img' not in shown and '<script' not in shown


def test_the_site_shows_no_script_of_an_output():
    from fedcl_repro.publish.site import shown_output
    kinds = {'application/javascript': 'alert(1)', 'text/html': 'a', 'application/x-other': 'b'}
    assert set(shown_output(dict(output_type='display_data', data=kinds))['data']) == {'text/html'}


def test_a_place_that_is_not_there_is_refused():
    from fedcl_repro.publish.paper_map import checked_place
    with pytest.raises(ValueError, match='no such page'): checked_place('parts/nowhere', 'Eq. 1')
    with pytest.raises(ValueError, match='does not define it'): checked_place('parts/mixing#nothing', 'Eq. 1')


def paragraphs_of(path):
    "The paragraphs of a page as text, formulas and code left out."
    text = path.read_text(encoding='utf-8')
    text = re.sub(r'<(math|code|pre|script|style|svg)\b.*?</\1>', 'x', text, flags=re.S)
    article = re.search(r'<article.*?</article>', text, re.S)
    for found in re.findall(r'<p\b[^>]*>(.*?)</p>', article[0] if article else '', re.S):
        yield ' '.join(re.sub(r'<[^>]*>', '', found).split())


@pytest.fixture(scope='module')
def site(tmp_path_factory):
    "The built site: (its folder, the warnings of the build)."
    pytest.importorskip('sphinx', reason="the site needs the extra docs: pip install -e '.[docs]'")
    from fedcl_repro.publish.site import build_site
    first, warnings = build_site(tmp_path_factory.mktemp('site'))
    return first.parent, warnings


def docstring_warnings(folder, modules):
    "What Sphinx says about the signatures and docstrings of modules."
    pytest.importorskip('sphinx', reason="the site needs the extra docs: pip install -e '.[docs]'")
    from fedcl_repro.publish.site import SITE_SETTINGS
    from sphinx.application import Sphinx
    from sphinx.util.docutils import docutils_namespace
    text = '\n'.join(f'.. automodule:: {m}\n   :members:\n   :undoc-members:\n' for m in modules)
    (folder/'index.rst').write_text(f'Library\n=======\n\n{text}', encoding='utf-8')
    of_pages = ('html_static_path', 'html_favicon')
    settings = {k: v for k, v in SITE_SETTINGS.items() if k not in of_pages}
    warnings = io.StringIO()
    with docutils_namespace():
        Sphinx(folder, None, folder/'out', folder/'trees', 'dummy', settings, None, warnings).build()
    return warnings.getvalue()


def test_every_signature_and_docstring_of_the_library_can_be_shown(tmp_path):
    from fedcl_repro.core import keywords_of
    from fedcl_repro.federation.metrics import METRICS
    from fedcl_repro.publish.contents import all_pages, module_of_page
    modules = sorted(filter(None, map(module_of_page, all_pages())))
    assert len(modules) > 100
    assert not docstring_warnings(tmp_path, modules)
    k, = keywords_of(METRICS['top_k'].make)
    assert k.default == 5, 'settings come from signatures, which the site rewrites while it is built'


ODD = dict( # definitions, each with whether Sphinx has something to say
    composed=('import inspect\ndef g(*, a=1, b=[]): "Two settings."\n'
              'def f(x, y=len, *, a=3, **more): "More."\nf.__signature__ = inspect.signature(g)', False),
    settings=('import inspect\ndef g(*, a=1, b=2): "Two settings."\ndef f(**settings): "Those of g."\n'
              'f.__signature__ = inspect.signature(g)', False),
    lines=('def f(\n    x=dict(\n        a=1,\n    ),\n    *, y=None, z): "Lines."', False),
    method=('class F:\n    def f(self, x, /, y=(1, 2)): "A method."\n'
            '    @classmethod\n    def g(cls, y=3): "A."', False),
    wraps=('import functools\ndef g(a, *, b=1): "G."\n'
           '@functools.wraps(g)\ndef f(*a, **b): return g(*a, **b)', False),
    two_lines=('def f():\n    """Of `(a, *, b) ->\n    c`, `d."""', False),
    paragraphs=('def f():\n    """Of `a.\n\n    And `b` *."""', False),
    spaces=('def f(): "Of ` a `."', False),
    indented=('def f():\n    """Of\n        a\n      b."""', True),
)


def test_odd_signatures_and_docstrings_are_shown(tmp_path, monkeypatch):
    for name, (source, _) in ODD.items(): (tmp_path/f'odd_{name}.py').write_text(f'"Odd."\n{source}\n')
    monkeypatch.setattr(sys, 'path', [str(tmp_path), *sys.path])
    lines = docstring_warnings(tmp_path, [f'odd_{name}' for name in ODD]).splitlines()
    assert {name for name in ODD for line in lines if f'odd_{name}' in line} == {
        name for name, (_, faulty) in ODD.items() if faulty}, lines


def test_docs_ends_well_when_the_site_was_made(tmp_path, monkeypatch, capsys):
    "A warning is said, and the site is there: 0. (Without a site it is an error.)"
    import fedcl_repro.publish.site as site
    from fedcl_repro.cli import main
    def build_site(out, stages):
        stages.write('loading pickled... done')
        stages.write('\x1b[01mreading sources... \x1b[39;49;00m[ 40%] ')
        return tmp_path/'index.html', 'a warning of Sphinx\n'
    monkeypatch.setattr(site, 'build_site', build_site)
    assert main(['docs', '--no-open', '--out', str(tmp_path)]) == 0
    said = capsys.readouterr()
    assert 'reading sources    40%|' in said.err and 'loading' not in said.err
    assert 'a warning of Sphinx' in said.err and f'site: {tmp_path.resolve()/"index.html"}' in said.out


@pytest.mark.slow
def test_site_builds_without_a_warning(site):
    assert not site[1], site[1]


def links_and_anchors(path):
    "The targets of the links in an HTML file, and its anchors."
    text = path.read_text(encoding='utf-8')
    text = re.sub(r'<script.*?</script>|<svg.*?</svg>', '', text, flags=re.S)
    links = re.findall(r'<(?:a|img|link|script|object)\b[^>]*?\s(?:href|src|data)="([^"]*)"', text)
    return links, set(re.findall(r'\s(?:id|name)="([^"]+)"', text))


def broken_links(site):
    "Links inside a built site that lead nowhere."
    pages = {path: links_and_anchors(path) for path in site.rglob('*.html')}
    broken = []
    for path, (links, _) in pages.items():
        for link in links:
            if re.match(r'[a-z]+:', link): continue
            file, _, fragment = link.partition('#')
            target = (path.parent / unquote(file.split('?')[0])).resolve() if file else path
            lost = fragment and target in pages and unquote(fragment) not in pages[target][1]
            if lost or not target.exists(): broken.append(f'{path.relative_to(site)}: {link}')
    return broken


def test_a_broken_link_is_found(tmp_path):
    three = '<a href="b.html#x">b</a> <a href="b.html#y">b</a> <a href="c.html">c</a> <p id="z">'
    (tmp_path/'a.html').write_text(three)
    (tmp_path/'b.html').write_text('<p id="x"><a class="k" href="#x">up</a><a href="https://a.b">web</a>')
    assert broken_links(tmp_path) == ['a.html: b.html#y', 'a.html: c.html']


@pytest.mark.slow
def test_no_link_of_the_site_is_broken(site):
    assert not broken_links(site[0].resolve())


@pytest.mark.slow
def test_site_needs_no_network(site):
    "No page loads a script, a style, a font or an image from elsewhere."
    loads = r'<(?:script|img|link|iframe)\b[^>]*?(?:src|href)="(https?:[^"]*)"|url\(\s*["\']?(https?:[^)]*)\)'
    files = [*site[0].rglob('*.html'), *site[0].rglob('*.css')]
    found = {(f.name, m[0]) for f in files for m in re.finditer(loads, f.read_text(encoding='utf-8'))}
    assert not found
    assert '<math' in (site[0]/'parts'/'twin_norm.html').read_text(encoding='utf-8')


@pytest.mark.slow
def test_names_lead_to_the_cells_that_define_them(site):
    page = (site[0]/'parts'/'contrastive.html').read_text(encoding='utf-8')
    assert 'id="def-infonce"' in page
    library = (site[0]/'library'/'fedcl_repro.parts.contrastive.html').read_text(encoding='utf-8')
    assert '(b, k) representations of a batch' in library


@pytest.mark.slow
def test_pages_are_light_and_each_picture_scrolls_alone(site):
    "At most 700 kB with its pictures; on a telephone a wide picture keeps letters that can be read."
    weights = {}
    for path in set(site[0].rglob('*.html')) - set((site[0]/'notebooks').rglob('*.html')):
        text = path.read_text(encoding='utf-8')
        pictures = set(re.findall(r'<img[^>]*? src="([^"]*_images/[^"]*)"', text))
        alone = re.findall(r'<span class="picture"><img[^>]*? src="([^"]*)"', text)
        assert pictures == set(alone), path
        weights[path.name] = sum(p.stat().st_size for p in (path, *(path.parent/name for name in pictures)))
    heavy = {name: weight for name, weight in weights.items() if weight > 700_000}
    assert len(weights) > 300 and not heavy
    assert 'style="--least: ' in (site[0]/'papers'/'mfcl'/'fig8.html').read_text(encoding='utf-8')


@pytest.mark.slow
def test_markdown_of_outputs_is_rendered(site):
    "No page has a table as text, or a formula as LaTeX."
    pages = sorted(site[0].rglob('*.html'))
    said = [(p.name, text) for p in pages for text in paragraphs_of(p)]
    assert len(said) > 1000
    assert not [each for each in said if each[1].startswith('|') or '$' in each[1]]


@pytest.mark.slow
def test_no_letter_of_a_formula_is_lost(site):
    "Browsers ignore `mathvariant`, except that one letter stays upright."
    lost = [(p.name, m) for p in site[0].rglob('*.html')
            for m in re.findall(r'mathvariant="(?!normal)[^"]*"', p.read_text(encoding='utf-8'))]
    assert not lost
    assert '𝒟' in ''.join(p.read_text(encoding='utf-8') for p in (site[0]/'data').glob('*.html'))


@pytest.mark.slow
def test_every_page_has_what_a_reader_looks_for(site):
    from fedcl_repro.publish.contents import about_page
    page = (site[0]/'parts'/'contrastive.html').read_text(encoding='utf-8')
    result = (site[0]/'papers'/'fedcosr'/'table2.html').read_text(encoding='utf-8')
    assert result.count('<table id="T_') == result.count('<div class="table-wrapper"><table id="T_') > 0
    assert 'rel="shortcut icon"' in page
    assert f'<meta name="description" content="{about_page("parts/contrastive")}">' in page
    assert '../notebooks/parts/contrastive.ipynb" download' in page
    assert (site[0]/'notebooks'/'parts'/'contrastive.ipynb').exists()
    assert "className = 'copy'" in (site[0]/'_static'/'fedcl.js').read_text(encoding='utf-8')
    assert re.search(r'<details class="admonition hide.*?Solution', page, re.S)
    texts = (site[0]/'_static'/'texts.js').read_text(encoding='utf-8')
    assert '"parts/contrastive.html"' in texts and 'Download this page' not in texts
    assert 'texts.js' in (site[0]/'search.html').read_text(encoding='utf-8') and 'texts.js' not in page
    sides = len(re.findall(r'class="toctree-l\d', page.split('<article')[0]))
    assert 45 <= sides <= 67
