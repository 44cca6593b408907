"""Every verdict on committed rows, frozen: a change of form must reproduce them, line by line.

`python tests/tools/frozen.py` writes them anew; a commit that does so says which lines changed, and why."""
import json

import frozen
from frozen import FROZEN, verdicts_now


def test_every_verdict_is_as_it_was():
    before, now = json.loads(FROZEN.read_text(encoding='utf-8')), verdicts_now()
    assert set(now) == set(before)
    changed = {name: sorted(set(now[name]['verdicts']) ^ set(before[name]['verdicts'])) for name in now}
    assert not any(changed.values()), {name: lines[:4] for name, lines in changed.items() if lines}
    assert all(now[name]['profile'] == before[name]['profile'] for name in now)


def test_the_verdicts_of_one_experiment_are_written_alone(tmp_path, monkeypatch):
    text, name = FROZEN.read_text(encoding='utf-8'), 'fedcosr/fig4'
    without = {k: v for k, v in json.loads(text).items() if k != name}
    monkeypatch.setattr(frozen, 'FROZEN', tmp_path/'frozen.json')
    frozen.FROZEN.write_text(json.dumps(without), encoding='utf-8')
    frozen.write([name])
    assert json.loads(frozen.FROZEN.read_text(encoding='utf-8')) == json.loads(text) # in whatever order


def ends_of(v): return tuple(round(end, 6) for end in v.interval)


def test_a_claim_has_one_interval_on_whatever_page_it_is_tested():
    from fedcl_repro.evidence.experiments import committed_verdicts, experiments
    found = {}
    for v in (v for name in experiments() for v in committed_verdicts(name)[1]):
        if v.kind == 'claim' and v.interval: found.setdefault((v.what, v.source), set()).add(ends_of(v))
    assert len(found) > 100
    assert not {what: ends for what, ends in found.items() if len(ends) > 1}
