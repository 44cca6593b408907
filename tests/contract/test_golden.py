"""Nothing moves: the rows of every method, and the names of all committed runs, are what they were.

A change of what a method computes raises that method's `revision` and writes its lines anew, by
`python tests/tools/golden.py`."""
import pickle
import subprocess
import sys

from golden import committed_ids, committed_records, golden, lines_of, run_of
import pytest

from fedcl_repro.runs.run import Run, changed_settings, config, methods, run_id


@pytest.mark.parametrize('name', sorted(methods()))
def test_rows_of_a_method(name):
    told = {id: line for id, line in golden()['methods'].items() if line[0].startswith(f'{name},')}
    assert told, f'{name} has no lines: write them with `python tests/tools/golden.py {name}`'
    found = lines_of(name)
    assert found.keys() == told.keys(), 'a run has another name'
    for id, (what, n, total) in found.items():
        assert n == told[id][1], what
        assert total == pytest.approx(told[id][2], rel=1e-6, abs=1e-6), what


def id_of(run, fingerprint, monkeypatch):
    "The run's name where its data have this fingerprint."
    monkeypatch.setattr('fedcl_repro.runs.run.fingerprint', lambda spec, root: fingerprint)
    return run_id(run)


def test_committed_runs_keep_their_names(monkeypatch):
    "Each committed configuration is still a run, says the same of itself, and keeps its name unless revised."
    told = golden()['committed']
    for id, said in committed_ids().items():
        assert id in told, f'{id} is new: add its name with `python tests/tools/golden.py --committed`'
        run = run_of(said)
        assert changed_settings(config(run)) == changed_settings(said), id
        if methods()[run.method.name].about['revision'] != told[id]['revision']: continue
        assert id_of(run, told[id]['fingerprint'], monkeypatch) == id


def test_every_committed_run_is_of_an_experiment():
    "Rows of former settings, which no page would show, are counted nowhere."
    from fedcl_repro.evidence.experiments import PROFILES, committed_runs, experiments
    shown = {id for name in experiments() for profile in PROFILES for id in committed_runs(name, profile)}
    assert not set(committed_records()) - shown


def test_a_run_has_its_name_in_a_process_that_has_just_started():
    "As in a worker, which gets the run and knows no register yet."
    run = Run.of('fedcosr', data='digits(side=16)', n_rounds=3)
    code = f'import pickle; run = pickle.loads({pickle.dumps(run)!r})\n' \
           'from fedcl_repro.runs.run import run_id\nprint(run_id(run))'
    assert subprocess.check_output([sys.executable, '-c', code], text=True).split() == [run_id(run)]


def test_rows_of_an_earlier_revision_say_so():
    "A committed row that the method would not give today has a note, which its page shows."
    told, records = golden()['committed'], committed_records()
    silent = [id for id, about in records.items()
              if methods()[about['method']].about['revision'] != told[id]['revision']
              and 'earlier revision' not in about['note']]
    assert not silent


def test_an_earlier_network_has_rows_only_until_the_present_one_has():
    "Otherwise both stand under one label."
    from fedcl_repro.papers.mfcl.experiments import before_its_norm
    networks = {about['config']['model']['name'] for about in committed_records().values()
                if about['method'] == 'orchestra'}
    assert networks == {p.run.model.name for p in before_its_norm('lite')}, 'drop `before_its_norm`'
