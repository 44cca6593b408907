"""`python run_pages.py FOLDER PAGE...`: run these pages on all cores, after everything else, and write what
stopped each ('' if nothing did) to FOLDER/pages.json: page -> words. The page of an artifact shows committed
rows, as the command executes it where nothing is trained; the others run as by nbdev-test."""
import io
import json
import os
import sys
import warnings
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from unittest import mock

ROOT = Path(__file__).parents[2]
FLAGS = {'notest', 'slow', 'cuda'}
HOUR = 3600 # seconds that a cell may take: it lets the tests go first, which can be most of them


def has_parameters(path):
    "Whether a notebook is the page of an artifact, which the command executes."
    cells = json.loads(Path(path).read_text(encoding='utf-8'))['cells']
    return any('parameters' in c['metadata'].get('tags', []) for c in cells)


def attempt(path, folder):
    "Run a page: what stopped it, in words; '' if it went through."
    import torch
    torch.set_num_threads(1)
    torch.manual_seed(67280421310721) # as in a process of its own
    with mock.patch.dict(os.environ): return shown(path, folder) if has_parameters(path) else tried(path)


def tried(path):
    "What stopped a page that is run as by nbdev-test."
    from nbdev.test import test_nb
    sys.__stderr__ = said = io.StringIO() # where nbdev writes
    ok, _ = test_nb(str(path), skip_flags=FLAGS, basepath=ROOT, cell_timeout=HOUR)
    return '' if ok else said.getvalue() or 'it failed without a word'


def shown(path, folder):
    "What stopped the page of an artifact."
    from fedcl_repro.publish.execute import papermill_error
    out = Path(folder)/f'{Path(path).parent.name}-{Path(path).name}'
    parameters = untrained(folder)
    with warnings.catch_warnings(): return papermill_error(str(path), str(out), parameters)


def untrained(folder):
    "The options of an artifact's page that trains nothing; its store is empty."
    return dict(store=f'{folder}/runs', train=False)


def prepare(jobs):
    "Start of a process that runs pages; it lets the tests go first."
    from fedcl_repro.publish.execute import share_cores
    from fedcl_repro.runs.processes import with_parent
    with_parent()
    share_cores(jobs)
    os.chdir(ROOT)
    os.nice(19)


def main(folder, *pages):
    import seaborn # noqa: F401, imported for all processes, as is what follows
    import nbdev.test # noqa: F401
    from fedcl_repro.runs.workers import cores
    n = cores()
    with ProcessPoolExecutor(n, get_context('fork'), prepare, (n,)) as pool:
        found = dict(zip(pages, pool.map(partial(attempt, folder=folder), pages)))
    (Path(folder)/'pages.json').write_text(json.dumps(found), encoding='utf-8')


if __name__ == '__main__':
    import run_pages # a page replaces `__main__`, where a process would look for `attempt`
    run_pages.main(*sys.argv[1:])
