"""The book: its map is complete, its site builds without a warning, and every link of it leads somewhere."""
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]


def shown_on(page):
    "The Markdown that the cells of a notebook displayed."
    cells = json.loads((ROOT/'nbs'/f'{page}.ipynb').read_text(encoding='utf-8'))['cells']
    outputs = [o.get('data', {}).get('text/markdown', '') for c in cells for o in c.get('outputs', [])]
    return '\n'.join(''.join(text) for text in outputs)


def test_every_artifact_of_the_papers_is_on_the_map():
    from fedcl_repro.book.paper_map import checked_place, place_of_artifact
    from fedcl_repro.study.published import read_published
    for a in read_published('artifacts').itertuples():
        checked_place(place_of_artifact(a.paper, a.artifact), f'{a.paper}/{a.artifact}')


def test_every_numbered_equation_is_on_the_map():
    from fedcl_repro.book.paper_map import EQUATIONS, checked_place, equations
    listed = [(e['paper'], int(e['number'])) for e in equations()]
    assert listed == [(paper, n + 1) for paper, count in EQUATIONS.items() for n in range(count)]
    for e in equations(): checked_place(e['place'], f"{e['paper']} Eq. {e['number']}")


def test_the_first_page_shows_the_map():
    "Its stored tables of artifacts and equations are the ones that are computed now."
    from fedcl_repro.book.paper_map import artifacts_table, equations_table
    from fedcl_repro.study.published import PAPER_NAMES
    shown = shown_on('index')
    for paper, name in PAPER_NAMES.items():
        for table in (artifacts_table(paper), equations_table(paper)):
            assert table in shown, f'{name}: run the cells of nbs/index.ipynb'


def test_a_place_that_is_not_there_is_refused():
    from fedcl_repro.book.paper_map import checked_place, place_of_artifact
    with pytest.raises(ValueError, match='no such page'): checked_place('parts/nowhere', 'Eq. 1')
    with pytest.raises(ValueError, match='does not define it'): checked_place('parts/mixing#nothing', 'Eq. 1')
    with pytest.raises(ValueError, match='enter its place'): place_of_artifact('mapl', 'table99')


@pytest.fixture(scope='module')
def site(tmp_path_factory):
    "The built site: (its folder, the warnings of the build)."
    pytest.importorskip('sphinx', reason="the site needs the extra docs: pip install -e '.[docs]'")
    from fedcl_repro.book.site import build_site
    first, warnings = build_site(tmp_path_factory.mktemp('site'))
    return first.parent, warnings


@pytest.mark.slow
def test_site_builds_without_a_warning(site):
    assert not site[1], site[1]


@pytest.mark.slow
def test_no_link_of_the_site_is_broken(site):
    from fedcl_repro.book.site import broken_links
    assert not broken_links(site[0])


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
