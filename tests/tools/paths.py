"How many functions of the library four paths run, and in how many files: `python tests/tools/paths.py`."
import contextlib
import io
import sys
import tempfile
from pathlib import Path

import fedcl_repro

PACKAGE = str(Path(fedcl_repro.__file__).parent)


def functions_of(path):
    "Run a path; the functions of this package that it runs, each with its file and line."
    seen = set()
    def note(frame, event, arg):
        code = frame.f_code
        if event == 'call' and code.co_filename.startswith(PACKAGE) and not code.co_name.startswith('<'):
            seen.add((code.co_filename, code.co_firstlineno, code.co_name))
    sys.setprofile(note)
    try: path()
    finally: sys.setprofile(None)
    return seen


def simulate_a_step():
    from fedcl_repro.runs.simulate import simulate
    simulate('fedavg', 'digits', n_clients=4, n_rounds=1)


def row_to_cell():
    from fedcl_repro.evidence.cells import our_cells
    from fedcl_repro.evidence.experiments import committed
    from fedcl_repro.papers.fedcosr.experiments import FEDCOSR
    our_cells(FEDCOSR, committed('fedcosr/table2', 'lite'), ['label', 'column'])


def reproduce_a_page():
    from fedcl_repro.cli import main
    with tempfile.TemporaryDirectory() as out:
        main(['reproduce', 'fedcosr/fig8', '--out', out, '--store', out])


def settings_to_id():
    from fedcl_repro.runs.run import Run, run_id
    run_id(Run.of('fedcosr', data='cifar10'))


PATHS = {'simulate to a step': simulate_a_step, 'row to cell': row_to_cell,
         'settings to id': settings_to_id, 'reproduce to its page': reproduce_a_page}

if __name__ == '__main__':
    from fedcl_repro.evidence.experiments import experiments
    from fedcl_repro.runs.run import load_registers
    load_registers(), experiments() # what is imported once is no part of a path
    for name, path in PATHS.items():
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            seen = functions_of(path)
        print(f'{name}: {len(seen)} functions in {len({file for file, *_ in seen})} files')
