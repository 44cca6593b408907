"""A method, an executor, an experiment and a paper are each one new module; no other file is touched.
Data sets, partitions, augmentations and models are tried in `test_data`."""
import json

METHOD = '''
from fedcl_repro.federation.method import METHODS, Method, send, take

@METHODS.add('share_head', title='Shared head', family='personal_layers', owner='personal')
def share_head():
    "Share the head, keep the body."
    return Method(merge=take('head.'), upload=send('head.'))
'''

EXECUTOR = '''
from fedcl_repro.federation.executors import EXECUTORS, Executor
from fedcl_repro.federation.loop import Loop

@EXECUTORS.add('reversed', title='the last client first')
class Reversed(Executor):
    "The loop, over the clients in the other order."
    def __init__(self, fed, workers=1):
        self.fed = fed
        self.loop = Loop(fed, workers)

    def __call__(self, sweep, clients, key):
        turned = dict(reversed(clients.items()))
        done = self.loop(sweep, turned, key)
        return {i: done[i] for i in clients}

    def map(self, fn, ids): return self.loop.map(fn, ids)
    def close(self): self.loop.close()
'''

PAPER = '''
from fedcl_repro.evidence.experiments import EXPERIMENTS, TableRun
from fedcl_repro.evidence.claim import above, claims
from fedcl_repro.evidence.ask import ask
from fedcl_repro.evidence.cells import Paper
from fedcl_repro.runs.run import Run

def say(data, profile): return data
NEWCOMER = Paper(('data',), say)
CLAIMS = claims('Newcomer 1', above('Shared head', 'Local'))
def judge(rows, profile): return ask(NEWCOMER, CLAIMS, rows, profile)

ABOUT = dict(paper='newcomer', artifact='table1', kind='table', title='A table', judge=judge)

@EXPERIMENTS.add('newcomer/table1', **ABOUT)
def table1(profile):
    runs = [Run.of(m, data='digits', n_rounds=1, n_clients=3) for m in ('share_head', 'local')]
    return [TableRun(run, dict(data='digits')) for run in runs]
'''

PLACES = dict(methods=METHOD, federation=EXECUTOR)

START = '''
import sys
from pathlib import Path
root = Path(sys.argv.pop(1))
import fedcl_repro.methods, fedcl_repro.federation, fedcl_repro.papers
for package in (fedcl_repro.methods, fedcl_repro.federation, fedcl_repro.papers):
    package.__path__.append(str(root/package.__name__.split('.')[-1]))
from fedcl_repro.cli import main
sys.exit(main(sys.argv[1:]))
'''


def command(fresh, folder, *arguments):
    "Run `fedcl` in a fresh process that also looks for modules in a folder."
    for package, text in PLACES.items():
        (folder/package).mkdir(exist_ok=True)
        (folder/package/'newcomer.py').write_text(text, encoding='utf-8')
    paper = folder/'papers'/'newcomer'
    paper.mkdir(parents=True, exist_ok=True)
    (paper/'__init__.py').write_text('')
    (paper/'settings.py').write_text(PAPER, encoding='utf-8')
    return fresh.run(START, folder, *arguments, FEDCL_STORE=str(folder/'runs'))


def test_they_are_listed(tmp_path, fresh):
    wanted = dict(methods='share_head', executors='reversed', experiments='newcomer/table1')
    for what, name in wanted.items():
        done = command(fresh, tmp_path, 'list', what, '--json')
        assert done.returncode == 0, done.stderr
        assert name in [row['name'] for row in json.loads(done.stdout)]


def test_they_run_together(tmp_path, fresh):
    "The new paper's experiment trains the new method with the new executor."
    done = command(fresh, tmp_path, 'run', 'newcomer/table1', '--executor', 'reversed', '--jobs', '1')
    assert done.returncode == 0, done.stderr
    runs = [json.loads(path.read_text()) for path in (tmp_path/'runs').glob('*/run.json')]
    assert {about['config']['method']['name'] for about in runs} == {'share_head', 'local'}
    assert {about['executor'] for about in runs} == {'reversed'}
