"""`python concept_pages.py OUT PAGE...`: run these pages on all cores as nbdev-test does, after everything
else, and write what stopped each ('' if nothing did) to OUT, a JSON file: page -> words."""
import io
import json
import os
import sys
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

ROOT = Path(__file__).parents[1]
FLAGS = {'notest', 'slow', 'cuda'}


def attempt(path):
    "Run a concept page: what stopped it, in words; '' if it went through."
    import torch
    from nbdev.test import test_nb
    torch.set_num_threads(1)
    torch.manual_seed(67280421310721) # as in a process of its own
    sys.__stderr__ = said = io.StringIO() # where nbdev writes
    ok, _ = test_nb(str(path), skip_flags=FLAGS, basepath=ROOT)
    return '' if ok else said.getvalue() or 'it failed without a word'


def prepare(jobs):
    "Start of a process that runs pages; it lets the tests go first."
    from fedcl_repro.study.pages import share_cores
    from fedcl_repro.study.processes import with_parent
    with_parent()
    share_cores(jobs)
    os.chdir(ROOT)
    os.nice(19)


def main(out, *pages):
    import seaborn # noqa: F401, imported for all processes, as is what follows
    import nbdev.test # noqa: F401
    from fedcl_repro.study.training import cores
    n = cores()
    with ProcessPoolExecutor(n, get_context('fork'), prepare, (n,)) as pool:
        found = dict(zip(pages, pool.map(attempt, pages)))
    Path(out).write_text(json.dumps(found), encoding='utf-8')


if __name__ == '__main__':
    import concept_pages # a page replaces `__main__`, where a process would look for `attempt`
    concept_pages.main(*sys.argv[1:])
