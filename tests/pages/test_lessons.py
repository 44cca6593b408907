"""A lesson teaches: an equation, a fault that its check catches, an exercise with a solution,
and where to go next."""
import ast
import html
import json
import re
from importlib.resources import files
from pathlib import Path

import pandas as pd
import pytest

ROOT = Path(__file__).parents[2]
FOLDERS = 'data', 'parts', 'federation', 'methods'
IN_PAPERS = 'fedcosr/theorems', 'fedcosr/counted', 'mfcl/attacks', 'mfcl/saliency' # of one paper alone
LESSONS = sorted(p for folder in FOLDERS for p in (ROOT/'nbs'/folder).glob('*.ipynb'))
LESSONS += [ROOT/'nbs'/'papers'/f'{name}.ipynb' for name in IN_PAPERS]
TOURS = sorted((ROOT/'nbs'/'tours').glob('*.ipynb'))
SECTIONS = 'What would break it', 'Exercise'


def in_nbs(path): return str(path.relative_to(ROOT/'nbs'))


def cells(path):
    "Kind, source and tags of each cell."
    found = json.loads(path.read_text(encoding='utf-8'))['cells']
    return [(c['cell_type'], ''.join(c['source']), c['metadata'].get('tags', [])) for c in found]


def prose(found): return '\n\n'.join(source for kind, source, _ in found if kind == 'markdown')


def below(found, heading):
    "The cells under a heading of the second level, up to the next one; the first is the heading's own."
    starts = [j for j, (kind, source, _) in enumerate(found)
              if kind == 'markdown' and re.search(rf'^## {heading}\s*$', source, re.M)]
    if not starts: return []
    rest = found[starts[0]:]
    ends = [j for j, (kind, source, _) in enumerate(rest[1:], 1)
            if kind == 'markdown' and re.search('^## ', source, re.M)]
    return rest[:ends[0]] if ends else rest


def lacks(found):
    "What a lesson lacks, in words; nothing if it is complete."
    text, missing = prose(found), []
    equation = re.search(r'\$\$.+?\$\$', text, re.S)
    if not equation and not re.search(r'^\*No equation: \S.{20,}\*$', text, re.M):
        missing.append('a displayed equation, or a line *No equation: why.*')
    if not re.search(r'^\| .*\| here \|', text, re.M):
        missing.append('a table of symbols, with a column `here`')
    first = next((source for kind, source, _ in found if kind == 'markdown'), '')
    if not re.match(r'# \S.*\n> \S.{30,}', first):
        missing.append('a title and a sentence that says what it is')
    fault, exercise = (below(found, heading) for heading in SECTIONS)
    caught = [s for kind, s, _ in fault if kind == 'code' and re.search(r'expect_fail|test_fail|raises', s)]
    if not caught: missing.append('`## What would break it`, with a planted fault that a check catches')
    solved = [s for kind, s, tags in exercise if kind == 'code' and {'solution', 'hide-cell'} <= set(tags)]
    if not any(re.search(r'test_|assert ', s) for s in solved):
        missing.append('`## Exercise`, with a folded cell `solution` that checks the answer')
    if '<details>' not in prose(exercise): missing.append('an answer in words, in <details>')
    if not re.search(r'^\*\*Next:\*\* .*\]\(', text, re.M): missing.append('**Next:** and a link')
    return missing


@pytest.mark.parametrize('path', LESSONS, ids=in_nbs)
def test_a_lesson_is_complete(path):
    missing = lacks(cells(path))
    assert not missing, f"{in_nbs(path)} lacks {'; '.join(missing)}"


@pytest.mark.parametrize('path', LESSONS, ids=in_nbs)
def test_library_details_come_last(path):
    found = re.findall(r'^## (.+)$', prose(cells(path)), re.M)
    assert 'Library details' not in found[:-1], 'a lesson ends before its library details begin'


PICTURE_FIRST = '''
data/augment data/partition federation/cuda_graphs federation/method methods/basic methods/byol
methods/fedcosr methods/feddyn methods/fedssc methods/fsl methods/mapl methods/mfcl methods/mixing
methods/moon methods/personal_layers
federation/rounds methods/proximal papers/mfcl/attacks parts/autoencoder parts/contrastive parts/graph
parts/twin_norm
'''.split()


@pytest.mark.parametrize('name', PICTURE_FIRST)
def test_the_picture_comes_before_the_machinery(name):
    "These pages show their mechanism before the first function or class that they define for the library."
    for c in json.loads((ROOT/'nbs'/f'{name}.ipynb').read_text(encoding='utf-8'))['cells']:
        if any('image/png' in o.get('data', {}) for o in c.get('outputs', [])): return
        defines = re.match(r'#\| export\n(@|def |class )', ''.join(c['source']))
        assert not defines, 'a definition of the library comes before the first picture'


def headings(path):
    "The anchors of a page: its headings as a browser names them."
    found = re.findall(r'^#+ (.+)$', prose(cells(path)), re.M)
    return {re.sub(r'[^\w\- ]', '', h).strip().lower().replace(' ', '-') for h in found}


def broken_links(path):
    "Links of a page that lead nowhere: to a file that is not there, or to a heading that the page lacks."
    for target in re.findall(r'\]\(([^)\s]+)\)', prose(cells(path))):
        if re.match(r'\w+:', target): continue
        name, _, anchor = target.partition('#')
        page = (path.parent/name).resolve() if name else path
        if not page.exists(): yield target
        elif anchor and page.suffix == '.ipynb' and anchor.lower() not in headings(page): yield target


@pytest.mark.parametrize('path', LESSONS + TOURS, ids=in_nbs)
def test_links_lead_somewhere(path):
    assert not list(broken_links(path))


TOUR = ('The problem', 'The idea', "One client's rounds?", 'The equations beside the code',
        'What the paper leaves open', 'How well it works here')


@pytest.mark.parametrize('path', TOURS, ids=in_nbs)
def test_a_tour_goes_from_the_problem_to_what_is_open(path):
    found = cells(path)
    absent = [heading for heading in TOUR if not below(found, heading)]
    assert not absent, f'{in_nbs(path)} lacks {absent}'
    code = '\n'.join(source for kind, source, _ in found if kind == 'code')
    for helper in ('draw_sequence', 'listened_round', 'beside_code', 'show_payoff'):
        assert f'{helper}(' in code, f'{in_nbs(path)} does not call {helper}'
    assert below(found, TOUR[-1])[-1][1].count('**Next:**') == 1, 'a tour ends with what its method achieved'


def test_the_tour_of_fedcosr_lists_every_open_place():
    "All rows of the register but those about results: what is unstated, ambiguous, or cannot hold."
    register = pd.read_csv(files('fedcl_repro')/'published'/'disagreements.csv')
    rows = register[(register.paper == 'fedcosr') & (register.kind != 'not reproduced')]
    stored = json.loads((ROOT/'nbs'/'tours'/'fedcosr.ipynb').read_text(encoding='utf-8'))['cells']
    shown = html.unescape(next(''.join(c['outputs'][0]['data']['text/html']) for c in stored
                               if "kind != 'not reproduced'" in ''.join(c['source'])))
    assert not [place for place in rows['where'] if place not in shown] and 'clip it into' in shown


def code_beside_equations(path):
    "The lines of code in the stored tables of equations."
    for cell in json.loads(path.read_text(encoding='utf-8'))['cells']:
        if 'beside_code({' not in ''.join(cell['source']): continue
        for output in cell['outputs']:
            table = ''.join(output.get('data', {}).get('text/markdown', ''))
            yield from re.findall(r'`([^`]+)`', table.replace('\\|', '|'))


NUMERIC = {*'mean sum exp log sqrt rsqrt square norm var einsum tensordot lerp logsumexp logsigmoid'.split(),
           *'softmax normalize cosine_similarity cross_entropy to_simplex'.split(),
           'binary_cross_entropy_with_logits'}
ARITHMETIC = ast.Add, ast.Sub, ast.Mult, ast.Div, ast.MatMult, ast.Pow


def is_arithmetic(node):
    "Whether a part of an expression computes with numbers, or applies a network."
    if isinstance(node, ast.BinOp):
        text = any(isinstance(side, (ast.Tuple, ast.JoinedStr)) for side in (node.left, node.right))
        return isinstance(node.op, ARITHMETIC) and not text
    if not isinstance(node, ast.Call): return False
    name = getattr(node.func, 'attr', getattr(node.func, 'id', ''))
    of = getattr(getattr(node.func, 'value', None), 'id', '')
    return name in NUMERIC and of != 'inbox' or of in ('net', 'model')


def computes(statement):
    "Whether a statement computes something itself, rather than calling a function that does."
    value = getattr(statement, 'value', None)
    if value is None: return False
    builds = isinstance(value, ast.Call) and getattr(value.func, 'id', 'x')[0].isupper() # Method(...)
    return not builds and any(is_arithmetic(node) for node in ast.walk(value))


@pytest.mark.parametrize('path', TOURS, ids=in_nbs)
def test_an_equation_stands_beside_arithmetic(path):
    lines = list(code_beside_equations(path))
    assert lines, 'no table of equations is stored: execute the page'
    for line in lines:
        statement, = ast.parse(f'def f():\n    {line}').body[0].body
        assert computes(statement), f'{in_nbs(path)}: {line!r} computes nothing'


HIDING = ('upload = offer', 'notes = contrast_notes(z, client, batch, temp)', 'eps = 1e-5',
          'return Method(a + b)', "bodies = average_of('body.')({}, inbox)",
          "return select(client, 'body.') | means_message(client)")


@pytest.mark.parametrize('line', HIDING)
def test_a_line_that_hides_its_equation_is_refused(line):
    statement, = ast.parse(f'def f():\n    {line}').body[0].body
    assert not computes(statement)


def test_every_paper_has_a_tour():
    assert {p.stem for p in TOURS} == {'fedcosr', 'fedssc', 'mfcl', 'twin_norm', 'mapl'}


def pages_with(pattern, folders='data parts federation methods tours'):
    "The pages of some folders whose text or code has a pattern."
    found = [p for folder in folders.split() for p in sorted((ROOT/'nbs'/folder).glob('*.ipynb'))]
    return {p: '\n'.join(source for _, source, _ in cells(p)) for p in found
            if any(re.search(pattern, source) for _, source, _ in cells(p))}


def test_the_servers_of_mfcl_have_their_full_names():
    for short, full in (('gServer', 'gradients server'), ('rServer', 'representations server')):
        pages = pages_with(rf'\b{short}\b', 'parts methods tours')
        assert len(pages) >= 4 and not [in_nbs(p) for p, text in pages.items() if full not in text]


def test_the_share_across_clusters_has_one_definition():
    "A page that divides the weight across by other than the weight for others shows another number."
    own = pages_with(r'def (across|weight_across|share_of_strangers)\w*\(')
    assert own and not [in_nbs(p) for p, text in own.items() if 'cross_share(' not in text]
    assert not pages_with(r'\[~(same|own|within)\]\.sum\(\) / \w+\.sum\(\)')


def test_legends_show_titles_and_not_names_of_functions():
    assert not pages_with(r'label=\w+\.__name__')


GOOD = [
    ('markdown', '# A page\n> One sentence that says what the page is about, without another page', []),
    ('markdown', '$$a=b$$\n\n| the paper writes | here | shape |\n|---|---|---|', []),
    ('markdown', '## What would break it\n\nA fault.', []),
    ('code', 'with expect_fail(AssertionError): check(faulty)', []),
    ('markdown', '## Exercise\n\nHow many?', []),
    ('markdown', '<details><summary>Solution</summary>\n\nSix.\n\n</details>', []),
    ('code', 'assert 2*3 == 6', ['hide-cell', 'solution']),
    ('markdown', '**Next:** [a page](a.ipynb).', []),
]


@pytest.mark.parametrize('gone', range(len(GOOD)))
def test_what_a_lesson_lacks_is_noticed(gone):
    "Each cell of a complete lesson is needed."
    assert not lacks(GOOD)
    assert lacks(GOOD[:gone] + GOOD[gone + 1:])


def test_an_exercise_whose_solution_is_not_folded_is_noticed():
    unfolded = [(kind, source, []) for kind, source, _ in GOOD]
    assert lacks(unfolded) == ['`## Exercise`, with a folded cell `solution` that checks the answer']


def test_a_page_without_an_equation_says_why():
    said = [(kind, source.replace('$$a=b$$', '*No equation: the paper names four networks.*'), tags)
            for kind, source, tags in GOOD]
    assert not lacks(said)
    silent = [(kind, source.replace('$$a=b$$', ''), tags) for kind, source, tags in GOOD]
    assert len(lacks(silent)) == 1
