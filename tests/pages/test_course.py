"""The course: eight pages, each with little new code, a question, an answer and a check against the library.
That the pages run, and so that each check holds, is tested with all other concept pages."""
import ast
import json
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT/'nbs'/'course').glob('*.ipynb'))
IDEA, PAGE = 30, 150 # lines of new code, at most
LIBRARY, RECAP = "The library's name for it", 'In three sentences'
BOX = 'differences_from_paper('
EXERCISES, QUESTION = 'Five exercises', 'A question for you'


def page(path): return path.stem


def cells(path):
    "Kind, source and tags of each cell."
    found = json.loads(path.read_text(encoding='utf-8'))['cells']
    return [(c['cell_type'], ''.join(c['source']), c['metadata'].get('tags', [])) for c in found]


def sections(found):
    "The cells under each heading of the second level; those before the first one are under ''."
    under, heading = {'': []}, ''
    for kind, source, tags in found:
        start = re.match('## (.+)', source) if kind == 'markdown' else None
        if start: heading = start[1]
        under.setdefault(heading, []).append((kind, source, tags))
    return under


def lines_of(source):
    "Lines of code: no blanks, imports, comments, docstrings or brackets alone."
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef) and (text := ast.get_docstring(node, clean=False)):
            source = source.replace(f'"""{text}"""', '')
    for line in map(str.strip, source.splitlines()):
        if re.search(r'\w', line) and not re.match(r'(import|from) |#', line): yield line


def new_lines(paths):
    "For each page: (heading, whether the cell is folded, its lines that no cell before has)."
    known, pages = set(), {}
    for path in paths:
        pages[path] = []
        for heading, some in sections(cells(path)).items():
            for kind, source, tags in some:
                if kind != 'code' or source.startswith(BOX): continue
                new = [line for line in lines_of(source) if line not in known]
                known.update(new)
                pages[path].append((heading, 'hide' in tags, new))
    return pages


def too_long(counted):
    "What is longer than it may be on a page, in words: an idea, a folded drawing, or the page."
    ideas = {heading: sum(len(new) for h, folded, new in counted if h == heading and not folded)
             for heading, _, _ in counted}
    found = [f'{heading!r} has {n} new lines' for heading, n in ideas.items() if n > IDEA]
    found += [f'a folded cell under {heading!r} has {len(new)} new lines' for heading, folded, new in counted
              if folded and len(new) > IDEA]
    total = sum(len(new) for _, _, new in counted)
    return found + ([f'the page has {total} new lines'] if total > PAGE else [])


def sentences(text): return [s for s in re.split(r'(?<=[.!?])\s+', text.strip()) if s]


def lacks(found):
    "What a page of the course lacks, in words."
    under, missing = sections(found), []
    ends = [RECAP, EXERCISES, QUESTION]
    last = list(under)[-3:]
    if last != ends: return [f'ends with {last}, expected {ends}']
    named = under.get(LIBRARY, [])
    ((_, recap, _),), ((_, exercises, _),), ((_, asked, _),) = (under[heading] for heading in ends)
    if '**The question.**' not in found[0][1]: missing.append('a question to begin with')
    check = '\n'.join(source for kind, source, _ in named if kind == 'code')
    if 'fedcl_repro' not in check or not re.search('^assert difference < 1e-12$', check, re.M):
        missing.append('a check that the library finds the same, to 1e-12')
    boxes = [source for _, source, tags in found if source.startswith(BOX)]
    if len(boxes) != 1: missing.append(f'one box with the differences from the paper, has {len(boxes)}')
    lengths = re.findall(r'^\d\. \*\((a line|five lines|ten lines|an afternoon)\)\* ', exercises, re.M)
    if len(lengths) != 5 or lengths[-1] != 'an afternoon':
        missing.append('five exercises, from a line to an afternoon')
    said = sentences(recap.partition('\n')[2])
    if len(said) != 3: missing.append(f'three sentences, has {len(said)}')
    answer = re.search(r'<details><summary>Answer</summary>\n\n.{80,}</details>', asked, re.S)
    asks = '?' in asked.partition('<details>')[0]
    if not (asks and answer): missing.append('a question with a folded answer')
    if not re.search(r'^\*\*Next:\*\* .*\]\(.+\.ipynb\)', asked, re.M): missing.append('**Next:** and a link')
    return missing


def test_there_are_eight_pages():
    assert [page(p)[:2] for p in PAGES] == [f'0{k}' for k in range(1, 9)]


@pytest.mark.parametrize('path', PAGES, ids=page)
def test_a_page_begins_with_a_question_and_ends_with_a_check(path):
    missing = lacks(cells(path))
    assert not missing, f"lacks {'; '.join(missing)}"


def test_the_code_of_a_page_is_short():
    found = {page(path): too_long(counted) for path, counted in new_lines(PAGES).items()}
    assert not any(found.values()), {name: words for name, words in found.items() if words}


@pytest.mark.parametrize('path', PAGES, ids=page)
def test_a_page_leads_to_the_next(path):
    "Each page links to the one before it and the one after it; other links also lead somewhere."
    text = '\n'.join(source for kind, source, _ in cells(path) if kind == 'markdown')
    targets = [t for t in re.findall(r'\]\(([^)\s#]+)', text) if not re.match(r'\w+:', t)]
    assert all((path.parent/t).exists() for t in targets), targets
    at = PAGES.index(path)
    neighbours = {p.name for p in PAGES[max(0, at - 1):at + 2]} - {path.name}
    assert neighbours <= set(targets)


def test_the_course_exports_nothing():
    code = [source for path in PAGES for kind, source, _ in cells(path) if kind == 'code']
    assert not [source for source in code if re.search(r'#\|\s*(export|default_exp)', source)]


def test_every_page_is_among_the_concept_pages():
    "They run, and their checks are made, once: with the others."
    from test_notebooks import CONCEPTS
    assert [p for p in CONCEPTS if p.parent.name == 'course'] == PAGES


def test_pages_travel_with_the_package(tmp_path):
    "`fedcl docs --notebooks` copies the course."
    from fedcl_repro.commands.pages import copy_pages
    copied = copy_pages(tmp_path/'pages')
    assert [p.name for p in sorted((copied/'course').glob('*.ipynb'))] == [p.name for p in PAGES]


def shown_curves(path):
    "The calls of a page that draw or print curves: (names after the page's own, as written)."
    for kind, source, _ in cells(path):
        if kind != 'code': continue
        for page, rest in re.findall(r"^(?:show_curves|last_values)\('(\w+)', curves(.*)\)$", source, re.M):
            assert page == path.stem
            yield re.findall(r"'([^']+)'", rest)


@pytest.mark.parametrize('path', PAGES[1:], ids=page)
def test_curves_have_five_seeds_and_comparisons_are_paired(path):
    from fedcl_repro.teaching.lent import stored_curves
    stored, calls = stored_curves(path.stem), list(shown_curves(path))
    assert calls and all(against and set(against) <= set(stored) for against in calls)
    assert all(len(values) == 5 for values in stored.values())
    code = '\n'.join(source for kind, source, _ in cells(path) if kind == 'code')
    drawn = re.findall(r'ax\.plot\(range\(1, 11\), (.*)', code)
    assert all(values.startswith('100 * torch.tensor(kept)') for values in drawn), 'a curve without a band'


def test_stored_curves_are_what_a_page_computes():
    "One page with another seed; `python tests/tools/store_curves.py` writes them all."
    from store_curves import curves_of

    from fedcl_repro.teaching.lent import stored_curves
    for name, curve in curves_of('04_class_means', 3).items():
        assert stored_curves('04_class_means')[name][3] == pytest.approx(curve, abs=1e-3), name


NEEDED = { # page -> what one has to know to judge a paper of this field, told where it arises
    '02_fedavg': ['Which moment is tested', 'When some clients are away'],
    '03_body_and_head': ['How many seeds?', 'The baseline to beat'],
    '06_one_model': ['Equal tuning']}


def test_what_judges_a_paper_has_a_section():
    for path in PAGES: assert set(NEEDED.get(path.stem, [])) <= set(sections(cells(path))), path


def test_words_of_the_library_are_explained_before_they_are_used():
    told = ''
    for path in PAGES:
        found = cells(path)
        told += '\n'.join(source for kind, source, _ in found if kind == 'markdown')
        code = '\n'.join(source for kind, source, _ in found if kind == 'code')
        for word in ('Sweep', 'stages_of', 'merged'):
            assert not re.search(rf'\b{word}\b', code) or f'`{word}`' in told, f'{path.stem}: {word}'


QUOTED = [ # page, words with a number, and its origin: artifact, images, method, moment, whether pooled
    ('02_fedavg', 'from {:.0f} to 75 %', 'arena/arena', 0.25, 'FedAvg', 'merged', False),
    ('02_fedavg', 'from 20 to {:.0f} %', 'arena/arena', 0.25, 'FedAvg', 'trained', False),
    ('03_body_and_head', 'both at {:.1f} %', 'fedcosr/table2', 1, 'FedPer', 'merged', True),
    ('03_body_and_head', 'both at {:.1f} %', 'fedcosr/table2', 1, 'Local', 'merged', True),
    ('05_contrast', 'FedCoSR has {:.1f} %', 'fedcosr/table2', 1, 'FedCoSR', 'merged', True),
    ('05_contrast', 'FedPer and Local have {:.1f} %', 'fedcosr/table2', 1, 'FedPer', 'merged', True)]


@pytest.mark.parametrize('page, words, artifact, share, label, moment, pooled', QUOTED)
def test_numbers_of_committed_rows_are_todays(page, words, artifact, share, label, moment, pooled):
    "Means over practical CIFAR-10's replicates and the last five evaluations, in plain pandas."
    import numpy as np

    from fedcl_repro.evidence.experiments import committed
    rows = committed(artifact, 'lite').query(
        "metric == 'accuracy' and split == 'test' and dataset == 'cifar10' and label == @label "
        "and moment == @moment and partition.str.startswith('dirichlet')")
    rows = rows[rows.scarcity == ('none' if share == 1 else f'all_clients(share={share})')]
    rows = rows[rows['round'].isin(sorted(rows['round'].unique())[-5:])]
    scores = [np.average(some.value, weights=some.n if pooled else None)
              for _, some in rows.groupby(['seed', 'round'])]
    path = ROOT/'nbs'/'course'/f'{page}.ipynb'
    text = '\n'.join(source for kind, source, _ in cells(path) if kind == 'markdown')
    assert words.format(100 * np.mean(scores)) in text, 100 * np.mean(scores)


REPORTS = re.compile(r'\b[Tt]he paper (says|claims|promises|states|reports|writes|argues)\b')


def reports_without_quotation(text):
    "Sentences that report what a paper says and quote neither words nor a formula."
    for sentence in sentences(re.sub(r'\s+', ' ', text)):
        if REPORTS.search(sentence) and not re.search(r'"[^"]{8,}"|\$.+\$', sentence): yield sentence


@pytest.mark.parametrize('path', [*PAGES, *sorted((ROOT/'nbs'/'tours').glob('*.ipynb'))], ids=page)
def test_what_a_paper_says_is_quoted(path):
    text = '\n\n'.join(source for kind, source, _ in cells(path) if kind == 'markdown')
    assert not list(reports_without_quotation(text))


def test_a_report_without_quotation_is_noticed():
    said = 'The paper says that then neither can look back at an image.'
    assert list(reports_without_quotation(f'{said} It is so.')) == [said]
    assert not list(reports_without_quotation('The paper writes "the more challenging step" of it.'))


def test_a_box_has_what_differs_and_nothing_else():
    from fedcl_repro.teaching.lent import settings_that_differ
    same, other = {'contrastive temperature': 0.1}, {'contrastive temperature': .5}
    assert settings_that_differ(dict(fedcrl=same)) == []
    assert settings_that_differ(dict(fedcrl=other)) == [('FedCRL', 'contrastive temperature', '0.1', '0.5')]
    with pytest.raises(ValueError, match='fedssc has no setting'):
        settings_that_differ(dict(fedssc={'mu': 1}))


GOOD = [
    ('markdown', '# 1. A page\n> About it\n\n**The question.** What?', []),
    ('code', 'a = 1', []),
    ('markdown', "## The library's name for it\n\nIt is this.", []),
    ('code', 'from fedcl_repro.core import stream\nassert difference < 1e-12', []),
    ('code', 'differences_from_paper(dict(mapl={}))', ['hide']),
    ('markdown', '## In three sentences\n\nOne. Two. Three.', []),
    ('markdown', '## Five exercises\n\n' + '\n'.join(f'{k}. *({n})* Do it.' for k, n in enumerate(
        ('a line', 'five lines', 'ten lines', 'ten lines', 'an afternoon'), 1)), []),
    ('markdown', '## A question for you\n\nWhy?\n\n<details><summary>Answer</summary>\n\n' + 'Because. ' * 12
     + '</details>\n\n**Next:** [on](02_b.ipynb)', []),
]


def test_a_complete_page_lacks_nothing(): assert not lacks(GOOD)


@pytest.mark.parametrize('at, old, new', [
    (0, '**The question.**', ''),
    (2, "## The library's name for it", '## Names'),
    (3, '1e-12', '1e-2'),
    (4, 'differences_from_paper(', 'differences('),
    (5, ' Three.', ''),
    (6, '4. *(ten lines)*', '4.'),
    (6, '## Five exercises', '## Exercises'),
    (7, 'Why?', 'Because.'),
    (7, '<summary>Answer</summary>', ''),
    (7, '**Next:**', 'Next:'),
])
def test_what_a_page_lacks_is_noticed(at, old, new):
    kind, source, tags = GOOD[at]
    assert old in source
    assert lacks([*GOOD[:at], (kind, source.replace(old, new), tags), *GOOD[at + 1:]])


def test_long_code_is_noticed():
    some = [f'a{k} = {k}' for k in range(31)]
    assert not too_long([('an idea', False, some[:30])]) and too_long([('an idea', False, some)])
    assert too_long([('an idea', False, some[:20]), ('an idea', False, some[20:])]), 'cells of an idea add up'
    drawn = ('an idea', True, some[:20])
    assert not too_long([('an idea', False, some[:20]), drawn]), 'drawings are counted apart'
    assert too_long([(f'idea {k}', False, some[:30]) for k in range(6)]) == ['the page has 180 new lines']
