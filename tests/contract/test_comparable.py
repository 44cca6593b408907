"""What a run differs in from the paper is computed from both configurations, whole."""
import pytest

from fedcl_repro.evidence.comparable import differences, smaller
from fedcl_repro.evidence.experiments import committed_runs, committed_verdicts
from fedcl_repro.show.result_page import card_claim, differences_of

KNOWN = { # experiment, method: what was changed to save time
    ('mfcl/table2', 'mfcl'): ('lr 0.01 (paper 0.05)', 'phase1 5 (paper 15)', 'batch_size 32 (paper 64)',
                              'n_rounds 42 (paper 166)', 'scarcity all_clients(share=0.1) (paper none)'),
    ('mapl/table1', 'mapl'): ('lr 0.0005 (paper 0.0001)', 'batch_size 32 (paper 64)',
                              'warmup 20 (paper 100)'),
    ('fedssc/table1', 'fedssc'): ('local_epochs 5 (paper 10)', 'n_rounds 40 (paper 100)')}


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


def test_a_card_lists_what_differs():
    v = card_claim(list(committed_verdicts('fedssc/table1')[1]))
    assert 'local_epochs 5 (paper 10)' in differences_of(v)
