"Write every verdict on committed rows anew: `python tests/tools/frozen.py`."
import json
from pathlib import Path

FROZEN = Path(__file__).parents[1]/'contract'/'frozen.json'


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


if __name__ == '__main__':
    FROZEN.write_text(json.dumps(verdicts_now(), indent=0, ensure_ascii=False) + '\n', encoding='utf-8')
