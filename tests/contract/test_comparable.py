"""What a run differs in from the paper is computed from both configurations, whole. A value is called the
paper's only if the paper states it, and a run has the paper's size only if profile `paper` has it."""
import re

import pytest

from fedcl_repro.core import parse_value
from fedcl_repro.evidence.claim import paper_file
from fedcl_repro.evidence.comparable import differences, smaller
from fedcl_repro.evidence.experiments import (
    committed, committed_runs, committed_verdicts, experiments, runs_of)
from fedcl_repro.evidence.published import PAPER_NAMES, hyperparameters
from fedcl_repro.show.result_page import card_claim, differences_of, rows_in_words

KNOWN = { # experiment, method: what was changed to save time
    ('mfcl/table2', 'mfcl'): ('lr 0.01 (paper 0.05)', 'phase1 5 (paper 15)', 'batch_size 32 (paper 64)',
                              'n_rounds 42 (profile paper: 166)',
                              'scarcity all_clients(share=0.1) (profile paper: none)'),
    ('mapl/table1', 'mapl'): ('lr 0.0005 (paper 0.0001)', 'batch_size 32 (paper 64)',
                              'warmup 20 (paper 100)', 'n_rounds 40 (paper 400)'),
    ('fedssc/table1', 'fedssc'): ('local_epochs 5 (profile paper: 10)', 'n_rounds 40 (paper 100)'),
    ('fedcosr/fig7', 'fedcosr'): ('n_rounds 100 (profile paper: 500)',
                                  'dtype bfloat16 (profile paper: float32)')}


def runs_of_method(name, method):
    return [run for _, run, _ in committed_runs(name, 'lite').values() if run.method.name == method]


@pytest.mark.parametrize('name, method', KNOWN)
def test_what_was_changed_is_listed(name, method):
    for run in runs_of_method(name, method):
        told = [words for _, words in differences(run, (name,))]
        if run.method.name != 'mfcl' or run.n_rounds > 20: break # floors have settings of their own
    assert set(KNOWN[name, method]) <= set(told), told


def test_other_settings_of_a_method_or_optimiser_keep_a_number_from_being_compared():
    run = runs_of_method('fedssc/table1', 'fedssc')[0]
    assert 'local_epochs' in smaller(run, ('fedssc/table1',))
    assert 'n_rounds' not in smaller(run, ('fedssc/table1',)) # of which the curve decides


def head_of(name):
    verdicts = list(committed_verdicts(name)[1])
    return differences_of(card_claim(verdicts), verdicts)


def test_a_card_lists_what_differs():
    told = head_of('fedssc/table1')
    assert 'local_epochs 5 (profile paper: 10)' in told # FedSSC states no local epochs
    assert 'n_rounds 40 (paper 100)' in told


@pytest.mark.parametrize('paper', PAPER_NAMES)
def test_a_setting_that_a_paper_states_is_in_its_register(paper):
    for names in paper_file(paper).get('stated', {}).values():
        for name in names.values(): assert len(hyperparameters(paper, name=name)), name


@pytest.mark.parametrize('name', ['fedcosr/table2', 'fedssc/fig1', 'mapl/table1', 'mapl/fig4', 'mfcl/table2'])
def test_what_a_card_calls_the_papers_is_a_value_of_its_register(name):
    values = [parse_value(text) for text in hyperparameters(name.split('/')[0]).value.dropna()]
    told = re.findall(r'\(paper ([^)]*)\)', head_of(name))
    assert told or name.startswith('fedcosr/') # FedCoSR states nothing that our runs changed
    assert all(parse_value(text) in values for text in told), told


def test_a_card_says_nothing_of_what_the_papers_own_figure_varies():
    assert 'scarcity' not in head_of('fedcosr/fig6') # five clients are poor in the paper, too


@pytest.mark.parametrize('name', ['arena/arena', 'arena/rates'])
def test_what_no_paper_has_is_not_compared_with_a_paper(name):
    assert not head_of(name)
    assert 'paper' not in rows_in_words(committed(name, 'lite'), 'lite', name)


VARIED = { # experiment -> what the paper's figure varies, or ours compares
    'fedcosr/fig6': 'scarcity', 'fedcosr/fig7': 'scarcity', 'fedcosr/precision': 'dtype',
    # learned graphs after the rounds that the figures show, and around the start of learning
    'mapl/fig3': 'n_rounds', 'mapl/fig4': 'n_rounds', 'mapl/fig6': 'n_rounds', 'mapl/window': 'n_rounds'}


def paper_runs(names):
    "The runs in the profile `paper` by method."
    runs = [run for name in names for run in runs_of(name, 'paper')]
    return {m: [r for r in runs if r.method.name == m] for m in {r.method.name for r in runs}}


def test_the_profile_paper_is_nowhere_smaller_than_that_of_the_papers_tables():
    "Else runs of a tenth of the images would be called full-size because the experiment has no larger ones."
    shrunk = set()
    for name, entry in experiments().items():
        paper = entry.about['names']
        if paper is None or paper.ours or not paper.sizes: continue
        full = paper_runs(paper.sizes)
        for method, runs in paper_runs([name]).items():
            for k in ('n_rounds', 'scarcity', 'dtype'):
                there = {getattr(run, k) for run in full.get(method) or sum(full.values(), [])}
                if k != VARIED.get(name) and {getattr(r, k) for r in runs} - there: shrunk.add((name, k))
    assert not shrunk


REDUCED = 'reduced from profile `paper`'
SIZES = { # experiment -> its difference from the profile `paper`, and its size
    'fedcosr/optimisers': (REDUCED, 'a tenth of the images, 100 rounds'),
    'fedcosr/local': ('as profile `paper` but for rounds and precision', 'all images, 12 rounds'),
    'mapl/table1': (REDUCED, '20 to 60 a class, 10 clients, 40 rounds')}


@pytest.mark.parametrize('name', SIZES)
def test_a_caption_says_the_size(name):
    told, (difference, size) = rows_in_words(committed(name, 'lite'), 'lite', name), SIZES[name]
    assert told.startswith(f'Profile lite, {difference}: ') and size in told, told
    assert "the paper's setting" not in told
