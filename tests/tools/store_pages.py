"""Execute pages of results on committed rows alone and store what they show.

`python tests/tools/store_pages.py` for all, or with names, such as `fedcosr/table2`.

A page's own run would train its profile `quick`; what is stored is the evidence, without a stand-in."""
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from run_pages import has_parameters, untrained

PAPERS = Path(__file__).parents[2]/'nbs'/'papers'


def stored(path):
    "Execute a page that trains nothing; its parameters stay as they are written."
    if not has_parameters(path): return False
    nb = nbformat.read(path, as_version=4)
    cell, = (c for c in nb.cells if 'parameters' in c.metadata.get('tags', []))
    written = cell.source
    with tempfile.TemporaryDirectory() as folder:
        asked = (f'{name} = {value!r}' for name, value in untrained(folder).items())
        cell.source = '\n'.join([written, *asked])
        NotebookClient(nb, timeout=600, resources=dict(metadata=dict(path=str(path.parent)))).execute()
    cell.source = written
    for c in nb.cells:
        if c.cell_type == 'code': c.outputs = [o for o in c.outputs if o.get('name') != 'stderr']
    nbformat.write(nb, path)
    return True


def main(names):
    paths = [PAPERS/f'{name}.ipynb' for name in names] or sorted(PAPERS.glob('*/*.ipynb'))
    for path in paths:
        if stored(path): print(path.relative_to(PAPERS), flush=True)


if __name__ == '__main__': main(sys.argv[1:])
