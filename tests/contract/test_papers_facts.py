"""Facts about the papers, and numbers in the text of pages, that were once wrong."""
import configparser
import json
import re
import tomllib
from pathlib import Path

import pandas as pd

ROOT = Path(__file__).parents[2]
PUBLISHED = ROOT/'fedcl_repro'/'published'


def prose(name):
    cells = json.loads((ROOT/'nbs'/f'{name}.ipynb').read_text(encoding='utf-8'))['cells']
    return ' '.join(''.join(c['source']) for c in cells if c['cell_type'] == 'markdown')


def test_assumptions_of_fedcrl_have_their_numbers():
    says = pd.read_csv(PUBLISHED/'equations.csv').query("paper == 'fedcrl'").set_index('number').says
    told = {k: says[k] for k in says.index if says[k].startswith('Assumption')}
    # 1 has no number of its own
    assert [re.match(r'Assumption (\d)', s)[1] for s in told.values()] == ['2', '3', '4']
    register = pd.read_csv(PUBLISHED/'disagreements.csv').fillna('')
    for words in ('Assumption 1, sub-Gaussian', 'Figures 6 and 7', 'MOON 82.96', 'clip it into'):
        assert register['where'].str.contains(words).sum() == 1, words


def test_the_tour_shows_what_cannot_hold():
    cells = json.loads((ROOT/'nbs/tours/fedcosr.ipynb').read_text(encoding='utf-8'))['cells']
    code, = (''.join(c['source']) for c in cells if 'disagreements.csv' in ''.join(c['source']))
    space = {}
    exec(re.sub('nice_table.*', '', code, flags=re.S), dict(pd=pd, files=lambda _: PUBLISHED.parent), space)
    assert space['ours']['where'].str.contains('clip it into').any()


def test_addresses_agree():
    urls = configparser.ConfigParser()
    urls.read(ROOT/'settings.ini')
    known = (PUBLISHED/'citations.toml').read_text(encoding='utf-8')
    tomllib.loads(known)
    for address in re.findall(r'https://openreview\S+', urls['DEFAULT']['urls']): assert address in known, address


def test_majority_classes_are_those_of_their_partitions():
    from fedcl_repro.evidence.majority import committed_scores
    def score(seed):
        (_, s), = [(k, s) for k,
                   s in committed_scores().items() if k[0] == 'cifar10' and k[2:] == ('none', '20', seed)
                   and 'concentration=0.1,' in k[1]]
        return 100 * (s.value * s.n).sum() / s.n.sum()
    each = [score(str(seed)) for seed in range(4)]
    assert [f'{v:.1f}' for v in each[:3]] == ['75.3', '70.1', '67.0'] and f'{each[3]:.0f}' == '80'
    assert f'{sum(each[:3]) / 3:.1f}' == '70.8'
    assert 'majority class has 75.3 % on that partition' in prose('papers/fedcosr/table2')
    for page in ('course/01_data', 'runs/record'): assert re.search(r'75 %.*67 to 80 %', prose(page)), page


def test_course_quotes_means_over_replicates():
    from fedcl_repro.evidence.cells import our_cells
    from fedcl_repro.evidence.experiments import committed
    from fedcl_repro.papers.fedcosr.experiments import FEDCOSR
    cells = our_cells(FEDCOSR, committed('fedcosr/table2', 'lite'),
                      ['column', 'label']).set_index(['column', 'label'])
    (first, second) = [f'{cells.micro["practical CIFAR-10", name]:.1f}' for name in ('FedPer', 'Local')]
    assert first == second and f'end level, both at {first} %' in prose('course/03_body_and_head')


def test_no_page_calls_a_short_curve_level():
    assert 'level after ten' not in prose('papers/fedcosr/local') + prose('papers/fedcosr/experiments')
