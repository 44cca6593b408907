"""Write every verdict on committed rows anew: `python tests/tools/frozen.py`, or those of some experiments:
`python tests/tools/frozen.py fedcosr/table2 fedcosr/claims`."""
import json
from argparse import ArgumentParser
from pathlib import Path

from fedcl_repro.evidence.experiments import committed_verdicts, experiments

FROZEN = Path(__file__).parents[1]/'contract'/'frozen.json'


def line_of(v):
    "A verdict as text: what, word with its size, interval, evidence and place."
    ends = ' to '.join(f'{end:.3f}' for end in v.interval)
    return ' | '.join((v.what, v.said, ends, v.evidence, v.source))


def verdicts_now(names=()):
    "The best committed profile of these experiments, or all: its verdicts on claims and on published cells."
    found = {}
    for name in names or experiments():
        profile, verdicts = committed_verdicts(name)
        found[name] = dict(profile=profile, verdicts=sorted(map(line_of, verdicts)))
    return found


def write(names):
    "Replace the frozen verdicts of these experiments, or all."
    kept = json.loads(FROZEN.read_text(encoding='utf-8')) if names else {}
    found = kept | verdicts_now(names)
    in_order = {name: found[name] for name in experiments() if name in found}
    FROZEN.write_text(json.dumps(in_order, indent=0, ensure_ascii=False) + '\n', encoding='utf-8')


def main():
    parser = ArgumentParser(description=__doc__)
    parser.add_argument('names', nargs='*', metavar='PAPER/ARTIFACT')
    names = parser.parse_args().names
    unknown = [name for name in names if name not in experiments()]
    if unknown: parser.error(f'no experiment {unknown[0]}: `fedcl list experiments` has their names')
    write(names)


if __name__ == '__main__': main()
