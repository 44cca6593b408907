"Compute how much replicates vary anew, after some were committed: `python tests/tools/spread.py`."
from argparse import ArgumentParser
from dataclasses import replace

import numpy as np
import pandas as pd

from fedcl_repro.core import Spec, write_text
from fedcl_repro.evidence.experiments import PROFILES, committed, experiments
from fedcl_repro.evidence.intervals import pooled_spread
from fedcl_repro.evidence.cells import MEASURES, PAPER_OF, run_facts, spreads_path
from fedcl_repro.runs.rows import table_of_means

SHOWN = 'table', 'figure', 'text'
LEAST_DF = 3 # with fewer degrees of freedom, nothing is said of a spread
COLUMNS = ['paper', 'measure', 'owner', 'common', 'own', 'df', 'settings']


def alike(run):
    "What replicates of all methods have in common, as text."
    return str(replace(run, method=Spec('any'), seed=0, partition_seed=0))


def family_spreads(paper, rows):
    "The spread between replicates of each measure and kind of method, pooled over these rows' settings."
    facts, on, lines = run_facts(paper, rows), [*paper.keys, 'label', 'seed'], []
    facts = facts.assign(setting=[alike(r) for r in facts.settings])
    for of in (*MEASURES, *paper.measures):
        values = paper.measured(rows, of)
        if not {*on, 'value'} <= set(values): continue
        table = values[[*on, 'value']].merge(facts, on=on)
        for owner, part in table.groupby('owner'):
            some = (table_of_means(t, 'seed', 'label', 'value') for _, t in part.groupby('setting'))
            some = [t.dropna(axis=1) for t in some if len(t) > 1]
            repeated = [t for t in some if t.shape[1] and np.isfinite(t.to_numpy()).all()]
            found = pooled_spread(repeated)
            if found is None or found.df < LEAST_DF or not 0 < found.own < np.inf: continue
            lines.append((paper.name, of, owner, found.common, found.own, found.df, len(repeated)))
    return pd.DataFrame(lines, columns=COLUMNS)


def rows_of(paper):
    """The committed rows of the paper's own tables and figures, those of a run that several have only once.
    Experiments beside them train other settings under the same labels."""
    shown = [n for n, e in experiments().items() if e.about['paper'] == paper and e.about['kind'] in SHOWN]
    rows = [committed(n, profile) for n in shown for profile in PROFILES[1:]]
    rows = pd.concat([r for r in rows if len(r)] or [pd.DataFrame(columns=['run'])])
    same = ['run', 'round', 'client', 'moment', 'split', 'metric', 'owner']
    return rows.drop_duplicates(same) if len(rows) else rows


def spreads_now():
    "The spreads of each paper."
    experiments() # its papers are imported
    known = {name: rows_of(name) for name in PAPER_OF}
    each = [family_spreads(PAPER_OF[name], rows) for name, rows in known.items() if len(rows)]
    return pd.concat(each, ignore_index=True)


if __name__ == '__main__':
    ArgumentParser(description=__doc__).parse_args()
    write_text(spreads_path(), spreads_now().to_csv(index=False, float_format='%.6f'))
