"""What a paper claims is tested: every claim of a list reaches the judge of the table that the list names."""
import pytest

from fedcl_repro.evidence.experiments import PROFILES, experiments
from fedcl_repro.evidence.claim import above, claims
from fedcl_repro.evidence.as_published import claims_on_published
from fedcl_repro.evidence.cells import PAPER_OF
from fedcl_repro.runs.rows import read_rows

NAMES = [name for name in experiments() if not name.endswith('/claims')]
LISTS = [f'{group}/{artifact}' for group, paper in PAPER_OF.items() for artifact in paper.says]
PUBLISHED_ONLY = {'mapl/in_paper', 'mfcl/in_paper'} # about published tables alone


def test_every_list_is_of_a_table_or_figure():
    assert set(LISTS) - PUBLISHED_ONLY <= set(NAMES)
    assert len(set(LISTS) - PUBLISHED_ONLY) > 30


@pytest.mark.parametrize('profile', PROFILES)
def test_every_claim_is_asked(profile):
    asked = 0
    for name in set(LISTS) - PUBLISHED_ONLY:
        paper, artifact = name.split('/')
        said = {(c.statement, c.place) for c in PAPER_OF[paper].claims_on(artifact, profile)}
        verdicts = experiments()[name].about['judge'](read_rows([], None), profile)
        assert said <= {(v.what, v.source) for v in verdicts}, name
        asked += len(said)
    assert asked > 150


def test_claims_on_published_tables_have_one():
    "Its labels are published in a setting that the claim is about."
    checked = 0
    for group in ('mapl', 'mfcl'):
        paper = PAPER_OF[group]
        assert {c.statement for c in claims_on_published(paper)} >= {c.statement
                                                                    for c in paper.says['in_paper']}
        for c in claims_on_published(paper):
            cells = paper.published(**c.published)
            here = [c.is_about(paper.keys, setting) for setting in zip(*(cells[k] for k in paper.keys))]
            assert {*c.needs, *c.rivals} <= set(cells[here].label), c.statement
            checked += 1
    assert checked > 20


def test_shared_fields_and_a_column_that_is_not_there():
    first, second = claims('Toy 1', above('A', 'B'), above('A', 'C', of='spread'), where=dict(x=[1]))
    assert (first.place, second.of) == ('Toy 1', 'spread')
    assert first.is_about(('x', 'y'), (1, 2)) and not second.is_about(('x', 'y'), (2, 2))
    with pytest.raises(ValueError, match="A is above B' is about 'x': choose from y, z"):
        first.is_about(('y', 'z'), (1, 2))
