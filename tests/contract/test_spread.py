"""How much replicates vary, family by family: `nbs/papers/spread.csv`, with which single runs are judged.

`python tests/tools/spread.py` computes it anew, after replicates were committed."""
import pandas as pd
import pytest
from spread import spreads_now

from fedcl_repro.evidence.cells import spreads_path


def test_the_spreads_are_those_of_the_committed_rows():
    "Each family that they have; one of runs that are shown no more keeps what it had."
    family = ['paper', 'measure', 'owner']
    there, now = (t.set_index(family) for t in (pd.read_csv(spreads_path()), spreads_now()))
    assert len(now) and set(now.index) <= set(there.index)
    for column in ('common', 'own', 'df', 'settings'):
        found, wanted = (list(t.loc[now.index, column]) for t in (now, there))
        assert found == pytest.approx(wanted, abs=1e-4), column
