"""Every verdict on committed rows, frozen: a change of form must reproduce them, line by line.

`python tests/test_frozen.py` writes them anew; a commit that does so says which lines changed, and why."""
import json
from pathlib import Path

FROZEN = Path(__file__).with_name('frozen.json')


def line_of(v):
    "A verdict as text: what, word with its size, interval, evidence and place."
    ends = ' to '.join(f'{end:.3f}' for end in v.interval)
    return ' | '.join((v.what, v.said, ends, v.evidence, v.source))


def verdicts_now():
    "The best committed profile of each experiment, and its verdicts: claims, and published cells with ours."
    from fedcl_repro.evidence.experiments import committed_verdicts, experiments
    found = {}
    for name in experiments():
        profile, verdicts = committed_verdicts(name)
        found[name] = dict(profile=profile, verdicts=sorted(map(line_of, verdicts)))
    return found


def test_every_verdict_is_as_it_was():
    before, now = json.loads(FROZEN.read_text(encoding='utf-8')), verdicts_now()
    assert set(now) == set(before)
    changed = {name: sorted(set(now[name]['verdicts']) ^ set(before[name]['verdicts'])) for name in now}
    assert not any(changed.values()), {name: lines[:4] for name, lines in changed.items() if lines}
    assert all(now[name]['profile'] == before[name]['profile'] for name in now)


def ends_of(v): return tuple(round(end, 6) for end in v.interval)


def test_a_claim_has_one_interval_on_whatever_page_it_is_tested():
    from fedcl_repro.evidence.experiments import committed_verdicts, experiments
    found = {}
    for v in (v for name in experiments() for v in committed_verdicts(name)[1]):
        if v.kind == 'claim' and v.interval: found.setdefault((v.what, v.source), set()).add(ends_of(v))
    assert len(found) > 100
    assert not {what: ends for what, ends in found.items() if len(ends) > 1}


if __name__ == '__main__':
    FROZEN.write_text(json.dumps(verdicts_now(), indent=0, ensure_ascii=False) + '\n', encoding='utf-8')
