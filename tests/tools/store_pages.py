"""Execute pages of the book and store what they show: each figure as an SVG and as a PNG of twice the size.

`python tests/tools/store_pages.py` for all pages of results, or with names, such as
`papers/fedcosr/table2 parts/graph`.

A page of results is executed on committed rows alone. Its own run would train its profile `quick`; what is
stored is the evidence, without a stand-in. A cell that is no test (`#| slow`) keeps its outputs."""
import re
import sys
import tempfile
from pathlib import Path

import nbformat
from nbclient import NotebookClient
from run_pages import FLAGS, has_parameters, untrained

NBS = Path(__file__).parents[2]/'nbs'
WIDGET = 'application/vnd.jupyter.widget-view+json'
FRAME = 'from fedcl_repro.show.figures import set_formats\nset_formats()'
NOT_RUN = re.compile(rf'^#\| *({"|".join(FLAGS)}|eval: *false)\b', re.M)


def stored(path):
    "Execute a page and write its outputs; its cells stay as they are written."
    nb = nbformat.read(path, as_version=4)
    written = [(cell, cell.source, cell.get('outputs')) for cell in nb.cells]
    frame = nbformat.v4.new_code_cell(FRAME)
    with tempfile.TemporaryDirectory() as folder:
        for cell, source, _ in written:
            if NOT_RUN.search(source): cell.source = ''
            if 'parameters' in cell.metadata.get('tags', []):
                cell.source += ''.join(f'\n{name} = {value!r}' for name, value in untrained(folder).items())
        nb.cells.insert(0, frame)
        NotebookClient(nb, timeout=600, resources=dict(metadata=dict(path=str(path.parent)))).execute()
    nb.cells.remove(frame)
    for cell, source, outputs in written:
        if NOT_RUN.search(source) and cell.cell_type == 'code': cell.outputs = outputs
        cell.source = source
        if cell.cell_type == 'code': cell.outputs = [o for o in cell.outputs if is_kept(o)]
    nb.metadata.pop('widgets', None)
    nbformat.write(nb, path)


def is_kept(output):
    "Whether an output is for readers: no progress or warning, no slider, which needs a kernel."
    return output.get('name') != 'stderr' and WIDGET not in output.get('data', {})


def main(names):
    paths = [NBS/f'{name}.ipynb' for name in names]
    for path in paths or filter(has_parameters, sorted(NBS.glob('papers/*/*.ipynb'))):
        stored(path)
        print(path.relative_to(NBS), flush=True)


if __name__ == '__main__': main(sys.argv[1:])
