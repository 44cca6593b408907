"""The plan says what runs take and decide; the backlog survives being killed and goes on in its order."""
import json
import os
import re
import time
from dataclasses import replace

import pytest
from fresh import COMMAND

from fedcl_repro.cli import main
from fedcl_repro.study.backlog import read_backlog, work_down
from fedcl_repro.study.experiments import runs_of, save_results
from fedcl_repro.study.plan import (
    Here, Part, Timing, evaluations, images_of_run, most_first, passes, plan_text, plans_of, standings)
from fedcl_repro.study.runs import run_id
from fedcl_repro.study.store import Store, load_checkpoint, save_checkpoint
from fedcl_repro.study.training import train

ENTRY = '''
[[entry]]
experiment = "fedcosr/fig8"
profile = "quick"
method = ["fedcosr", "fedcosr_no_la"]
partition = "dirichlet"
'''
SHORT = ENTRY.replace('fig8', 'table3').replace('"fedcosr", "fedcosr_no_la"', '"fedavg", "local"')
SHORT = SHORT.replace('"dirichlet"', '"dirichlet(concentration=0.01)"')


def two_seeds(entry, path):
    "A list of two entries, the second seed first."
    path.write_text(entry + 'seed = 1\n' + entry + 'seed = 0\n')
    return path


@pytest.fixture
def listed(tmp_path): return two_seeds(ENTRY, tmp_path/'list.toml') # its runs answer claims


@pytest.fixture
def short(tmp_path): return two_seeds(SHORT, tmp_path/'list.toml') # its runs are short


def night(fresh, path, store, jobs):
    "Start the command that works down a list."
    return fresh.start(COMMAND, 'run', '--backlog', path, '--store', store, '--jobs', jobs)


def seconds_said(store, id, seconds):
    "Let a finished run have taken so many seconds."
    path = store.folder(id)/'run.json'
    path.write_text(json.dumps(json.loads(path.read_text()) | dict(seconds=seconds, core_seconds=seconds)))


def planned(capsys, *argv):
    "What `fedcl plan ... --json` prints."
    capsys.readouterr()
    assert main(['plan', *argv, '--json']) == 0
    return json.loads(capsys.readouterr().out)


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


def children(pid):
    with open(f'/proc/{pid}/task/{pid}/children') as f: return [int(child) for child in f.read().split()]


@pytest.mark.yields
@pytest.mark.skipif(not os.path.exists('/proc/self/task'), reason='needs /proc to see children')
def test_a_killed_backlog_goes_on(short, tmp_path, fresh):
    "After kill -9 in the middle, what is finished stays as it is, and the same command finishes the rest."
    store = tmp_path/'runs'
    p = night(fresh, short, store, 2)
    until(lambda: finished(store), 'a finished run')
    nice = [os.getpriority(os.PRIO_PROCESS, who) for who in (p.pid, *children(p.pid))]
    assert len(nice) >= 3 and set(nice) == {19}, 'the command and its workers let others go first'
    p.kill()
    p.wait()
    early = {path: path.stat().st_mtime_ns for path in finished(store)}
    done = night(fresh, short, store, 1).done()
    assert done.returncode == 0, done.stderr
    assert len(finished(store)) == 4 and not list(store.glob('.new-*'))
    assert all(path.stat().st_mtime_ns == at for path, at in early.items()), 'no run is trained twice'
    now, before = (sum(map(int, found)) for found in (
        re.findall(r'(\d) of 2 runs finished now', done.stdout), re.findall(r'(\d) before', done.stdout)))
    assert before >= len(early) and now + before == 4


def test_a_backlog_continues_from_a_checkpoint(short, tmp_path):
    here, parts = Here(Store(tmp_path/'runs')), read_backlog(short)
    part = replace(parts[0], runs=tuple(replace(run, n_rounds=2) for run in parts[0].runs))
    run = part.runs[0]
    stopped_at(run, here.store, 1, 1e6)
    assert [s.word for s in standings(part, here)] == ['waiting', 'not begun']
    work_down([replace(part, runs=(run,))], here, quiet=True)
    _, about = here.store.read(run_id(run))
    assert about['seconds'] >= 1e6, 'the seconds before the checkpoint count, so it was not begun again'
    assert about['core_seconds'] >= 1e6, 'so do the seconds that cores worked'


def test_the_list_is_worked_down_in_its_order(short, tmp_path):
    here, parts = Here(Store(tmp_path/'runs')), read_backlog(short)
    wanted = [run for part in parts for run in part.runs]
    assert [run.seed for run in wanted] == [1, 1, 0, 0]
    outcomes = work_down(parts, here, jobs=1, quiet=True)
    assert [o.run for o in outcomes] == wanted
    assert [path.parent.name for path in finished(here.store.root)] == [run_id(run) for run in wanted]


def test_no_time_no_work(short, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr(os, 'nice', lambda by: None)
    store = tmp_path/'runs'
    asked = ['run', '--backlog', str(short), '--store', str(store), '--minutes', '0.00001', '--jobs', '1']
    assert main(asked) == 0
    said = capsys.readouterr()
    assert not finished(store) and '4 runs wait' in said.err
    assert said.out.count('0 of 2 runs finished now, 0 before; 2 waiting, hours unknown') == 2


@pytest.mark.yields
def test_two_processes_share_a_list(short, tmp_path, fresh):
    store = tmp_path/'runs'
    both = [p.done() for p in [night(fresh, short, store, 1) for _ in range(2)]]
    assert [p.returncode for p in both] == [0, 0]
    assert len(finished(store)) == 4 and all('of 2 runs finished now' in p.stdout for p in both)


def test_a_run_that_the_data_do_not_allow_stops_no_plan(tmp_path):
    "A smaller copy of a data set cannot be split as the original; the other runs of the part are planned."
    good = runs_of('fedcosr/fig8', 'quick')[0]
    part = Part('fedcosr/fig8', 'quick', (replace(good, n_clients=1_000), good))
    (plan,) = plans_of([part], Here(Store(tmp_path/'runs')), [])
    assert [s.word for s in plan.standings] == ['not possible', 'not begun']
    assert list(plan.estimates) == [good] and '1 not possible' in plan_text(plan)


def test_hours_come_from_earlier_runs(tmp_path, capsys):
    "Of another seed as long; of a run at a checkpoint, in proportion to its own rounds."
    store = Store(tmp_path/'runs')
    old, new, waits = (next(r for r in runs_of('fedcosr/fig8', 'quick') if (r.method.name, r.seed) == which)
                       for which in (('fedcosr', 0), ('fedcosr', 1), ('fedcosr_no_la', 0)))
    seconds_said(store, train(old, store), 3600.)
    stopped_at(waits, store, 1, 300.)
    (plan,) = planned(capsys, 'fedcosr/fig8', '--store', str(store.root))
    by_id = {json.dumps(r['config'], sort_keys=True): r for r in plan['runs']}
    found = [by_id[json.dumps(config_of(r), sort_keys=True)] for r in (old, new, waits)]
    assert [r['standing'] for r in found] == ['finished', 'not begun', 'waiting']
    assert [r['hours'] for r in found] == pytest.approx([0, 1, (waits.n_rounds - 1) * 300 / 3600], rel=1e-4)
    assert found[1]['why'] == '1 run finished in the store' and found[2]['why'] == 'its own rounds 1 to 1'
    assert plan['unknown'] == sum(r['hours'] is None for r in plan['runs']) > 0
    assert plan['decisions_an_hour'] is None, 'unknown hours give no rate'


def config_of(run):
    from fedcl_repro.study.runs import config
    return json.loads(json.dumps(config(run)))


def test_hours_are_scaled_by_images_and_evaluations():
    run = runs_of('fedcosr/fig8', 'quick')[0]
    train_images, test_images, _ = images_of_run(run, None)
    n, often = run.n_rounds, replace(run, eval_every=3, n_rounds=8)
    assert passes(often, 7) == 7 * 3*train_images + 2 * 2*test_images
    assert [evaluations(often, r) for r in (2, 3, 7, 8)] == [0, 1, 2, 3]
    fewer = replace(run, scarcity=runs_of('fedcosr/fig7', 'quick')[0].scarcity)
    here, part = Here(Store('nowhere')), Part('fedcosr/fig8', 'quick', (run,))
    (plan,) = plans_of([part], here, [Timing(fewer, n, 50., 'store')])
    assert plan.hours * 3600 == pytest.approx(50 * passes(run, n) / passes(fewer, n))
    assert plan.hours * 3600 > 50 and 'scaled from' in plan.estimates[run].why
    earlier = [Timing(run, n, seconds, origin) for seconds, origin in ((7., 'committed'), (90., 'store'))]
    (plan,) = plans_of([part], here, earlier)
    assert plan.hours * 3600 == pytest.approx(90), 'this machine tells more than another one'


def test_most_decisions_an_hour_come_first(listed, tmp_path):
    "The same claims in a tenth of the time, and nothing for the seed whose claims are answered by then."
    first, again = read_backlog(listed)
    here = Here(Store(tmp_path/'runs'))
    def timed(seconds): return [Timing(r, r.n_rounds, seconds, 'store') for r in first.runs]
    slow, quick = (plans_of([first], here, timed(seconds))[0] for seconds in (3600., 360.))
    assert slow.decisions == quick.decisions and slow.decisions.decided
    assert quick.per_hour == pytest.approx(10 * slow.per_hour)
    _, later = plans_of([first, again], here, timed(3600.))
    assert later.decisions.decided == () and later.decisions.checked >= len(slow.decisions.decided)
    (unknown,) = plans_of([again], here, [])
    assert most_first([later, unknown, slow, quick]) == [quick, slow, later, unknown]


def test_what_is_committed_is_not_trained_again(listed, tmp_path, monkeypatch, capsys):
    monkeypatch.setenv('FEDCL_PAPERS', str(tmp_path))
    full, empty = Here(Store(tmp_path/'full')), Here(Store(tmp_path/'empty'))
    parts = read_backlog(listed)
    work_down(parts[:1], full, jobs=1, quiet=True)
    save_results('fedcosr/fig8', 'quick', full.store)
    assert [[s.word for s in standings(part, empty)] for part in parts] == [['committed']*2, ['not begun']*2]
    assert work_down(parts[:1], empty) == []
    first, second = planned(capsys, '--backlog', str(listed), '--store', str(empty.store.root))
    assert (first['hours'], first['decides']) == (0, [])
    assert second['unknown'] == 0 and 'committed, on whatever machine' in second['runs'][0]['why']
    assert not empty.store.root.exists(), 'a plan writes nothing'


@pytest.mark.parametrize('text, says', [
    ('', 'is empty'),
    ('[[entry]', 'is no TOML'),
    (ENTRY.replace('fig8', 'fig88'), "entry 1: unknown experiment 'fedcosr/fig88' (did you mean"),
    (ENTRY + 'rounds = 3', 'entry 1: unknown rounds: an entry has experiment, profile, method'),
    (ENTRY + ENTRY + 'seed = 7', 'entry 2: fedcosr/fig8 in profile quick has no such run'),
])
def test_a_mistaken_list_is_refused_before_any_work(text, says, tmp_path, capsys):
    path, store = tmp_path/'list.toml', tmp_path/'runs'
    path.write_text(text)
    for verb in ('run', 'plan'):
        assert main([verb, '--backlog', str(path), '--store', str(store)]) == 2
        assert says in capsys.readouterr().err
    assert not store.exists()


def test_the_projects_list(tmp_path):
    "Every entry selects runs, something of it is still to be trained, and the cheapest decisions come first."
    parts, here = read_backlog(), Here(Store(tmp_path/'empty'))
    assert [part.name for part in parts[:3]] == ['fedcosr/table2', 'fedssc/fig1', 'fedcosr/table2']
    assert all(part.runs for part in parts)
    done = [part.name for part in parts if all(s.word == 'committed' for s in standings(part, here))]
    assert not done, 'finished: take these entries off nbs/papers/backlog.toml'
