"""Give runs the names that they have today.

`python tests/tools/rename_runs.py` renames committed runs and their golden lines, and keeps both names in
`renamed_runs.json`. `python tests/tools/rename_runs.py STORE [DATA]` renames the finished runs of a store;
checkpoints keep their names, so what was not finished is trained from its beginning."""
import hashlib
import io
import json
import sys
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pandas as pd

from fedcl_repro.core import atomic_write, write_text
from fedcl_repro.evidence.experiments import hits_path, maps_path, read_hits
from fedcl_repro.runs import run as runs
from fedcl_repro.runs.store import SUMS, Store, file_digest

ROOT = Path(__file__).parents[2]
GOLDEN, RENAMED = ROOT/'tests'/'contract'/'golden.json', Path(__file__).with_name('renamed_runs.json')


def name_of(config, fingerprint, revision):
    "The name of a run that was trained on these data by this revision of its method."
    run = runs.run_recorded(config)
    about = runs.methods()[run.method.name].about
    def known(spec, root): return fingerprint
    with patch.object(runs, 'fingerprint', known), patch.dict(about, revision=revision):
        return runs.run_id(run)


def with_names(path, names):
    "The text of a table whose column `run` has other names, in their order."
    table = pd.read_csv(path, dtype=str, keep_default_na=False)
    return table.assign(run=table.run.map(names)).sort_values('run', kind='stable').to_csv(index=False)


def rename_committed(path, golden, names):
    "Rename the runs of one JSON file of provenance and of the files beside it."
    records, rows = json.loads(path.read_text()), path.with_suffix('.csv')
    for about in records:
        told = golden[about['run']]
        names[about['run']] = name_of(about['config'], told['fingerprint'], told['revision'])
    for table in filter(Path.exists, (rows, maps_path(rows))): write_text(table, with_names(table, names))
    hits = {f'{names[id]}-{n}': bits for id, (n, bits) in read_hits(hits_path(rows)).items()}
    if hits:
        buffer = io.BytesIO()
        np.savez_compressed(buffer, **dict(sorted(hits.items())))
        hits_path(rows).write_bytes(buffer.getvalue())
    digest = hashlib.sha256(rows.read_bytes()).hexdigest()
    for about in records: about |= dict(run=names[about['run']])
    for about in records:
        if 'rows_sha256' in about: about['rows_sha256'] = digest
    write_text(path, json.dumps(records, indent=1))


def rename_all_committed():
    golden, names = json.loads(GOLDEN.read_text()), {}
    for path in sorted((ROOT/'nbs'/'papers').glob('*/results/*.json')):
        rename_committed(path, golden['committed'], names)
    golden['committed'] = {names[id]: told for id, told in golden['committed'].items() if id in names}
    write_text(GOLDEN, json.dumps(golden, indent=0, sort_keys=True) + '\n')
    write_text(RENAMED, json.dumps(names, indent=0, sort_keys=True) + '\n')
    print(len(names), 'committed runs')


def rename_stored(store, data_root):
    "Rename the finished runs of a store."
    for path in sorted(store.root.glob('*/run.json')):
        about = json.loads(path.read_text())
        old, new = path.parent.name, runs.run_id(runs.run_recorded(about['config']), data_root)
        if new == old: continue
        with atomic_write(path) as file: file.write_text(json.dumps(about | dict(run=new), indent=1))
        sums = [f'{file_digest(p)}  {p.name}' for p in sorted(path.parent.iterdir()) if p.name != SUMS]
        write_text(path.parent/SUMS, '\n'.join(sums) + '\n')
        path.parent.rename(store.folder(new))
        store.check(new)
        print(old, '->', new)


if __name__ == '__main__':
    if len(sys.argv) > 1: rename_stored(Store(sys.argv[1]), *(sys.argv[2:] or [None]))
    else: rename_all_committed()
