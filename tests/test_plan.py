"""The plan says what runs take; a list of names survives being killed and goes on in its order."""
import json
import os
import re
import time
from dataclasses import replace

import pytest
from fresh import COMMAND

from fedcl_repro.cli import main
from fedcl_repro.evidence.experiments import PROFILES, runs_of, save_results
from fedcl_repro.evidence.plan import (
    Here, Plan, Timing, detail_lines, evaluations, hours_of, images_of_run, passes, plan_line, planned,
    read_backlog, total_text)
from fedcl_repro.runs.run import config, run_id
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


def plan_in(text): return dict(re.findall(r'^(\S+) quick: (.*)$', text, re.M))


def test_the_plan_begins_with_the_total_and_has_a_line_for_each_artifact(tmp_path, capsys):
    "Of another seed as long; of a run at a checkpoint, in proportion to its own rounds."
    store = Store(tmp_path/'runs')
    old, new, waits = (next(r for r in runs_of('fedcosr/fig8', 'quick') if (r.method.name, r.seed) == which)
                       for which in (('fedcosr', 0), ('fedcosr', 1), ('fedcosr_no_la', 0)))
    seconds_said(store, train(old, store), 3600.)
    stopped_at(waits, store, 1, 300.)
    assert main(['plan', 'fedcosr/fig8', 'mapl/fig4', '--store', str(store.root)]) == 0
    first, *lines = capsys.readouterr().out.splitlines()
    assert first.startswith('all together: ') and 'hours of one core' in first
    assert [line.split(':')[0] for line in lines] == ['fedcosr/fig8 quick', 'mapl/fig4 quick']
    assert '1 finished' in lines[0] and 'nan' not in first + ''.join(lines)
    assert main(['plan', 'fedcosr/fig8', '--details', '--store', str(store.root)]) == 0
    assert len(capsys.readouterr().out.splitlines()) > 3
    assert main(['plan', 'fedcosr/fig8', '--json', '--store', str(store.root)]) == 0
    (plan,) = json.loads(capsys.readouterr().out)
    by_id = {json.dumps(r['config'], sort_keys=True): r for r in plan['runs']}
    found = [by_id[json.dumps(json.loads(json.dumps(config(r))), sort_keys=True)] for r in (old, new, waits)]
    assert [r['state'] for r in found] == ['finished', 'not begun', 'waiting']
    left = (waits.n_rounds - 1) * 300
    assert [r['seconds'] for r in found] == pytest.approx([0, 3600, left], rel=1e-4)
    assert found[1]['why'] == '1 run finished in the store' and found[2]['why'] == 'its own rounds 1 to 1'
    assert any(r['seconds'] is None for r in plan['runs'])


def test_hours_are_scaled_by_images_and_evaluations(tmp_path):
    run, here = runs_of('fedcosr/fig8', 'quick')[0], Here(Store(tmp_path))
    train_images, test_images, _ = images_of_run(run, None)
    n, often = run.n_rounds, replace(run, eval_every=3, n_rounds=8)
    assert passes(often, 7) == 7 * 3*train_images + 2 * 2*test_images
    assert [evaluations(often, r) for r in (2, 3, 7, 8)] == [0, 1, 2, 3]
    fewer = replace(run, scarcity=runs_of('fedcosr/fig7', 'quick')[0].scarcity)
    found = planned(run, here, set(), [Timing(fewer, 50., 'finished in the store')])
    assert found.seconds == pytest.approx(50 * passes(run, n) / passes(fewer, n)) and found.seconds > 50
    both = [Timing(run, 90., 'finished in the store'), Timing(run, 7., 'committed')]
    assert planned(run, here, set(), both).seconds == pytest.approx(90), 'this machine before another one'


def test_a_run_that_the_data_do_not_allow_stops_no_plan(tmp_path):
    "A smaller copy of a data set cannot be split as the original; the other runs are planned."
    good, here = runs_of('fedcosr/fig8', 'quick')[0], Here(Store(tmp_path/'runs'))
    runs = [planned(run, here, set(), []) for run in (replace(good, n_clients=1_000), good)]
    plan = Plan('fedcosr/fig8', 'quick', tuple(runs))
    assert [p.state for p in runs] == ['not possible', 'not begun'] and plan.to_train == runs[1:]
    assert plan_line(plan).endswith('1 run to train, 1 of unknown length; 1 not possible')
    assert total_text([plan, plan]) == total_text([plan]), 'a run is counted once'
    assert hours_of([]) == 'nothing to train' and len(detail_lines(plan)) == 1


def test_what_is_committed_is_left_out_of_the_backlog(tmp_path, monkeypatch, capsys):
    name, store = 'fedcosr/precision', Store(tmp_path/'full')
    monkeypatch.setenv('FEDCL_PAPERS', str(tmp_path))
    (tmp_path/'backlog.toml').write_text(f'quick = ["{name}"]')
    first = next(r for r in runs_of(name, 'quick') if r.seed < 1)
    train(first, store)
    save_results(name, 'quick', store)
    asked = ['--backlog', '--seeds', '1', '--store', str(tmp_path/'empty')]
    assert main(['plan', *asked]) == 0
    assert '1 committed' in capsys.readouterr().out
    assert not (tmp_path/'empty').exists(), 'a plan writes nothing'
    assert main(['run', *asked, '--jobs', '1']) == 0
    others = [run_id(r) for r in runs_of(name, 'quick') if r.seed < 1 and r != first]
    assert sorted(path.parent.name for path in finished(tmp_path/'empty')) == sorted(others)


@pytest.mark.parametrize('text, says', [
    ('', 'nothing for profile lite'),
    ('lite = [', 'is no TOML'),
    ('lite = ["fedcosr/fig88"]', "unknown experiment 'fedcosr/fig88' (did you mean"),
    ('[[entry]]\nexperiment = "fedcosr/fig8"', 'has unknown entry'),
    ('paper = ["fedcosr/fig8"]', 'nothing for profile lite: add --profile paper'),
])
def test_a_mistaken_list_is_refused_before_any_work(text, says, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv('FEDCL_PAPERS', str(tmp_path))
    (tmp_path/'backlog.toml').write_text(text)
    for verb in ('run', 'plan'):
        assert main([verb, '--backlog', '--profile', 'lite', '--store', str(tmp_path/'runs')]) == 2
        assert says in capsys.readouterr().err
    assert not (tmp_path/'runs').exists()


def test_the_projects_list_names_experiments_that_train():
    lists = {profile: read_backlog(profile) for profile in PROFILES if profile != 'quick'}
    for profile, names in lists.items():
        assert len(set(names)) == len(names)
        assert all(runs_of(name, profile) for name in names)
