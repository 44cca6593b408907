"""The article: eight to ten findings, each a heading that is a sentence, a picture, a paragraph and what it
rests on; no number is typed."""
import json
import re
from pathlib import Path

PAGE = Path(__file__).parents[2]/'nbs'/'papers'/'findings.ipynb'
CELLS = json.loads(PAGE.read_text(encoding='utf-8'))['cells']
NAMES = r'CIFAR-10|MFCL\'s Table 8|Tiny-ImageNet|CINIC-10'
OTHERS = ('What was tested', 'What was done', 'What could not be reproduced, and why', 'How to cite')


def source(c): return ''.join(c['source'])


def shown(c, kind):
    "What a cell shows in one form, such as text/markdown."
    return [''.join(o['data'][kind]) for o in c.get('outputs', []) if kind in o.get('data', {})]


def without_computed(text):
    "The text of an f-string without what stands in braces, which may be nested."
    while '{' in text: text = re.sub(r'\{[^{}]*\}', '', text)
    return text


def sections():
    "Heading -> the cells below it."
    found, heading = {}, ''
    for c in CELLS:
        at = re.search(r'^## (.+)$', source(c), re.M) if c['cell_type'] == 'markdown' else None
        if at: heading = at[1]
        if heading: found.setdefault(heading, []).append(c)
    return found


def test_findings():
    found = {heading: cells for heading, cells in sections().items() if heading not in OTHERS}
    assert 8 <= len(found) <= 10
    for heading, cells in found.items():
        # a sentence
        assert re.search(r' (is|are|rises|finds?|add|repairs|let|learned|gains|cannot) ', heading), heading
        pictures = [p for c in cells for p in shown(c, 'image/svg+xml')]
        told = [t for c in cells for t in shown(c, 'text/markdown')]
        assert len(pictures) == 1 and len(told) == 2, heading
        assert told[1].startswith('*Rests on: ') and 'overturned by' in told[1], heading


def results_in(text): return re.findall(r'\d+\.\d+|\d+(?=\s(?:percent|points|claims))', text)


def test_a_paragraph_has_at_most_four_results():
    "The others are in the tables."
    for heading, cells in sections().items():
        if heading == 'How to cite': continue
        told = [text for c in cells for text in shown(c, 'text/markdown')]
        assert not [text for text in told if len(results_in(text)) > 4], heading
    assert results_in('From 1.5 to 2 percent, -0.3 points: 12 claims.') == ['1.5', '2', '0.3', '12']


def test_no_number_is_typed():
    for c in CELLS:
        if c['cell_type'] == 'markdown':
            assert not re.search(r'\d', re.sub(NAMES, '', source(c)).replace('## ', '')), source(c)[:80]
            continue
        # what is shown, without what is computed
        for text in re.findall(r'say\(f?"""(.*?)"""\)', source(c), re.S):
            assert not re.search(r'\d', re.sub(NAMES, '', without_computed(text))), text[:80]


def test_length():
    words = sum(len(source(c).split()) for c in CELLS if c['cell_type'] == 'markdown')
    before = [c for c in CELLS if 'How to cite' not in source(c)][:-2]
    words += sum(len(t.split()) for c in before for t in shown(c, 'text/markdown'))
    assert 1500 <= words <= 2000, words
