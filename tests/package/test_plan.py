"""What is missing is counted; a list of names survives being killed and goes on in its order."""
import json
import os
import time
from dataclasses import replace
from pathlib import Path

import pytest
from fresh import COMMAND

from fedcl_repro.cli import main
from fedcl_repro.commands.study import read_study
from fedcl_repro.evidence.experiments import runs_of, save_results
from fedcl_repro.evidence.plan import Standing, plan_line, state_of
from fedcl_repro.runs.run import run_id
from fedcl_repro.runs.store import Store, load_checkpoint, save_checkpoint
from fedcl_repro.runs.train import train

NAMES = 'fedcosr/precision', 'mapl/fig4' # two runs each


def names_worked_down(fresh, store, jobs, *names):
    "Start the command that works down names, one seed of each run."
    return fresh.start(COMMAND, 'run', *(names or NAMES), '--seeds', '1', '--store', store, '--jobs', jobs)


def seconds_said(store, id, seconds):
    "Let a finished run have taken so many seconds."
    path = store.folder(id)/'run.json'
    path.write_text(json.dumps(json.loads(path.read_text()) | dict(seconds=seconds, core_seconds=seconds)))
    (path.parent/'SHA256SUMS').unlink() # as of a run from before files had digests


def stopped_at(run, store, rounds, seconds):
    "Leave a run at a checkpoint after so many rounds, which took so many seconds."
    def stop(done):
        if done > rounds: raise InterruptedError
    with pytest.raises(InterruptedError): train(run, store, every=0., progress=stop)
    found = load_checkpoint(store, run_id(run))
    save_checkpoint(store, run_id(run), found | dict(seconds=seconds, core_seconds=seconds))


def until(holds, what, seconds=600):
    for _ in range(10 * seconds):
        if holds(): return
        time.sleep(.1)
    raise AssertionError(f'waited {seconds} s for {what}')


def finished(store): return sorted(store.glob('*/run.json'), key=lambda p: p.stat().st_mtime_ns)


def wanted(): return [run for name in NAMES for run in runs_of(name, 'quick') if run.seed < 1]


@pytest.mark.skipif(not os.path.exists('/proc/self/task'), reason='needs /proc')
def test_killed_work_on_names_goes_on_in_their_order(tmp_path, fresh):
    "After kill -9 in the middle, what is finished stays as it is, and the same command finishes the rest."
    store = tmp_path/'runs'
    p = names_worked_down(fresh, store, 1)
    until(lambda: len(finished(store)) >= 2, 'two finished runs')
    p.kill()
    p.wait()
    early = {path: path.stat().st_mtime_ns for path in finished(store)}
    done = names_worked_down(fresh, store, 1).done()
    assert done.returncode == 0, done.stderr
    assert [path.parent.name for path in finished(store)] == [run_id(run) for run in wanted()]
    assert all(path.stat().st_mtime_ns == at for path, at in early.items()), 'no run is trained twice'
    assert not list(store.glob('.new-*'))


def test_no_time_no_work(tmp_path, capsys):
    store = tmp_path/'runs'
    asked = ['run', *NAMES, '--seeds', '1', '--store', str(store), '--minutes', '0.00001', '--jobs', '1']
    assert main(asked) == 0
    assert not finished(store) and f'{len(wanted())} runs wait' in capsys.readouterr().err


def test_what_is_missing_begins_with_the_total_and_has_a_line_for_each_artifact(tmp_path, capsys):
    "Seconds are those that finished and waiting runs took, and a run of two artifacts counts once."
    store = Store(tmp_path/'runs')
    done, waits = (next(r for r in runs_of('fedcosr/fig8', 'quick') if r.method.name == name and r.seed == 0)
                   for name in ('fedcosr', 'fedcosr_no_la'))
    seconds_said(store, train(done, store), 3600.)
    stopped_at(waits, store, 1, 300.)
    assert main(['run', 'fedcosr/fig8', 'mapl/fig4', 'fedcosr/fig8', '--dry', '--store',
                 str(store.root)]) == 0
    first, *lines = capsys.readouterr().out.partition('profile quick: digits stand in')[0].splitlines()
    n, m = (len(runs_of(name, 'quick')) for name in ('fedcosr/fig8', 'mapl/fig4'))
    end = '1 of them waiting at a checkpoint; 1 finished; 3,900 s trained until now'
    assert lines == [f'fedcosr/fig8 quick: {n - 1} of {n} runs to train, {end}',
                     f'mapl/fig4 quick: {m} of {m} runs to train']
    assert first == f'all together: {n + m - 1} of {n + m} runs to train, {end}'
    assert not list(store.root.glob('.new-*')) and len(finished(store.root)) == 1, 'nothing is trained'


def test_a_run_that_the_data_do_not_allow_stops_no_count(tmp_path):
    "A smaller copy of a data set cannot be split as the original; the other runs are counted."
    good, store = runs_of('fedcosr/fig8', 'quick')[0], Store(tmp_path/'runs')
    states = [state_of(run, store) for run in (replace(good, n_clients=1_000), good)]
    assert states == [Standing('not possible'), Standing('not begun')]
    assert plan_line('two', states) == 'two: 1 of 2 runs to train; 1 not possible'


def test_what_is_committed_is_left_out_of_a_file_of_experiments(tmp_path, monkeypatch, capsys):
    name, store = 'fedcosr/precision', Store(tmp_path/'full')
    monkeypatch.setenv('FEDCL_PAPERS', str(tmp_path))
    (tmp_path/'backlog.toml').write_text(f'experiments = ["{name}"]')
    first = next(r for r in runs_of(name, 'quick') if r.seed < 1)
    train(first, store)
    save_results(name, 'quick', store)
    asked = ['run', str(tmp_path/'backlog.toml'), '--seeds', '1', '--store', str(tmp_path/'empty')]
    assert main([*asked, '--dry']) == 0
    assert '1 committed' in capsys.readouterr().out
    n = sum(r.seed < 1 for r in runs_of(name, 'quick'))
    assert main(['run', name, '--seeds', '1', '--dry', '--store', str(tmp_path/'empty')]) == 0
    assert f'{n} of {n} runs to train' in capsys.readouterr().out, 'who names the artifact repeats it'
    assert not (tmp_path/'empty').exists(), 'counting writes nothing'
    assert main([*asked, '--jobs', '1']) == 0
    others = [run_id(r) for r in runs_of(name, 'quick') if r.seed < 1 and r != first]
    assert sorted(path.parent.name for path in finished(tmp_path/'empty')) == sorted(others)


@pytest.mark.parametrize('text, says', [
    ('', 'names no runs'),
    ('experiments = [', 'is no TOML'),
    ('experiments = ["fedcosr/fig88"]', "unknown experiment 'fedcosr/fig88' (did you mean"),
    ('experiments = [["fedcosr/fig8"]]', 'unknown experiment'),
    ('[[entry]]\nexperiment = "fedcosr/fig8"', 'has unknown entry'),
    ('profile = "huge"\nexperiments = ["fedcosr/fig8"]', "unknown profile 'huge'"),
])
def test_a_mistaken_list_is_refused_before_any_work(text, says, tmp_path, capsys):
    (tmp_path/'list.toml').write_text(text)
    for dry in ([], ['--dry']):
        assert main(['run', str(tmp_path/'list.toml'), '--store', str(tmp_path/'runs'), *dry]) == 2
        assert says in capsys.readouterr().err
    assert not (tmp_path/'runs').exists()


def test_the_projects_lists_name_experiments_that_train():
    papers = Path(__file__).parents[2]/'nbs'/'papers'
    lists = [read_study(papers/name) for name in ('backlog.toml', 'card.toml')]
    assert [s.profile for s in lists] == ['lite', 'paper']
    for study in lists:
        assert len(set(study.experiments)) == len(study.experiments)
        assert all(runs_of(name, study.profile) for name in study.experiments)
