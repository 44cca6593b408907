"""Write nbs/course/curves.csv: every curve that a page of the course shows, for five seeds, by running it.

`python tests/tools/store_curves.py` for all pages, or with names, such as `05_contrast`."""
import re
import sys
from collections import defaultdict
from contextlib import ExitStack, redirect_stdout
from io import StringIO
from pathlib import Path
from unittest.mock import patch

import matplotlib
import matplotlib.pyplot as plt
import nbformat
import numpy as np
import pandas as pd

COURSE = Path(__file__).parents[2]/'nbs'/'course'
FILE = COURSE/'curves.csv'
SEEDS = range(5)
SHOWS = 'show_curves', 'last_values'


def code_of(page, seed):
    """The code cells of a page for a seed, up to the last one that shows curves. The check with the library
    is left out: it is made for the page's own seed. (With seed 4, page 8 differs from it by 1.3e-12.)"""
    cells = [c.source for c in nbformat.read(COURSE/f'{page}.ipynb', 4).cells if c.cell_type == 'code']
    last = max((k for k, s in enumerate(cells) if re.search(rf'^({"|".join(SHOWS)})\(', s, re.M)), default=-1)
    code = [re.sub('^assert difference.*', '', source, flags=re.M) for source in cells[:last + 1]]
    return [re.sub('^seed = 0$', f'seed = {seed}', source, flags=re.M) for source in code]


def curves_of(page, seed):
    "Name -> percent after each round, of all curves that the page shows."
    curves, code = {}, code_of(page, seed)
    def collect(_, shown, *__, **___): curves.update(shown)
    def unknown(_): return defaultdict(lambda: np.zeros((len(SEEDS), 10)))
    matplotlib.use('agg')
    with ExitStack() as stack:
        for name in SHOWS: stack.enter_context(patch(f'fedcl_repro.teaching.lent.{name}', collect))
        stack.enter_context(patch('fedcl_repro.teaching.lent.stored_curves', unknown))
        stack.enter_context(redirect_stdout(StringIO()))
        space = {}
        for source in code: exec(source, space)
    plt.close('all')
    return curves


def rows_of(page):
    "A row for each seed, curve and round."
    for seed in SEEDS:
        for name, curve in curves_of(page, seed).items():
            for r, value in enumerate(curve, 1): yield page, name, seed, r, round(value, 4)


def main(names):
    pages = names or [p.stem for p in sorted(COURSE.glob('*.ipynb'))]
    columns = ['page', 'name', 'seed', 'round', 'value']
    kept = pd.read_csv(FILE).query('page not in @pages') if names else pd.DataFrame(columns=columns)
    for page in pages:
        new = pd.DataFrame(list(rows_of(page)), columns=columns)
        if len(new): kept = pd.concat([kept, new]) if len(kept) else new
        kept.sort_values('page', kind='stable').to_csv(FILE, index=False)
        print(page, len(new), flush=True)


if __name__ == '__main__': main(sys.argv[1:])
