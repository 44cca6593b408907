"""Claims in simulated federations whose truth is known: each kind of claim has an interval that contains the
truth in at least 95 % of the cases, and a large difference is found."""
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from fedcl_repro.evidence.intervals import Spread, images_redrawn, interval, moved
from fedcl_repro.evidence.claim import Claim, above, best, closer, gains, level, ordered, top
from fedcl_repro.evidence.decision import Chance, answer, turned, variances

COMMON, OWN = 2., .35 # points: what all methods of a replicate share, and what each has for itself
LABELS = 'ABCDEF'
CASES = 400
NEARLY = .95 - 2 * (.05 * .95 / CASES)**.5 # two standard errors of the simulation


def table(case:int, replicates:int, gaps=(0.,)*6):
    "Numbers of six methods in some replicates, each better by its gap."
    rng = np.random.default_rng([case, replicates])
    shape = replicates, len(LABELS)
    values = 75 + np.array(gaps) + COMMON * rng.normal(size=(replicates, 1)) + OWN * rng.normal(size=shape)
    return pd.DataFrame(values, columns=list(LABELS), index=pd.Index(range(replicates), name='seed'))


def most_above(than='A')->Claim:
    "More than half of the other methods are above one of them."
    def votes(t): return t.drop(columns=than).sub(t[than], axis=0) > 0
    return Claim('most', tuple(LABELS), lambda t: votes(t).mean(axis=1) - .5, votes=votes)


KINDS = dict(
    above=above('A', 'B'),
    best=best('A', LABELS),
    ordered=ordered('ABC', 'A, then B, then C'),
    level=level('', .0001, gap='AB'), # the smallest claim of equality: false, and not to be refuted by chance
    most=most_above(),
    some=above(['A', 'B', 'C'], ['D', 'E'], some=True),
    top=top('A', 2, LABELS, ''),
    gap=level('', .0001, gap=LABELS),
    span=level('', .0001, span=LABELS),
    gains=gains('', 'ABC', 'DEF', ''),
    closer=closer('', 'AB', 'CD'),
)
TRUTH = 0. # the smallest margin of each of them without a difference, to a tenth of a thousandth


def covers(v, truth=TRUTH): return not v.interval or v.interval[0] - 1e-3 <= truth <= v.interval[1] + 1e-3


@pytest.mark.parametrize('replicates', [2, 3, 6])
@pytest.mark.parametrize('kind', KINDS)
def test_an_interval_contains_the_truth(kind, replicates):
    found = [answer(KINDS[kind], table(case, replicates)) for case in range(CASES)]
    assert np.mean([covers(v) for v in found]) >= NEARLY
    for word in ('holds', 'fails'): assert np.mean([v.word == word for v in found]) <= 1 - NEARLY, word


def one_test_set(case, replicates, images=500, shared=.25):
    "Two global models whose replicates are tested on the same images, and these images drawn again."
    rng = np.random.default_rng([case, 2, replicates])
    hard = rng.random(images) - .5
    right = (.7 + hard + shared * rng.normal(size=(2, images))).clip(0, 1)
    hits = {m: (rng.random((replicates, images)) < p).astype(float) for m, p in zip('AB', right)}
    seeds = pd.Index(range(replicates), name='seed')
    numbers = pd.DataFrame({m: 100 * h.mean(axis=1) for m, h in hits.items()}, index=seeds)
    return numbers, images_redrawn(numbers, hits, {}, draws=60)


@pytest.mark.parametrize('replicates', [2, 3, 6])
def test_images_that_replicates_share_make_no_interval_too_narrow(replicates):
    cases = (one_test_set(case, replicates) for case in range(CASES))
    found = [answer(KINDS['above'], t, chance=Chance(images=drawn)) for t, drawn in cases]
    assert np.mean([covers(v) for v in found]) >= NEARLY


def test_added_variance_never_narrows_an_interval():
    margin = [1.2, 2.1, 4.3]
    assert interval(margin, images=.01).high > interval(margin).high
    assert interval(margin, images=40.).high > interval(margin, images=4.).high


@pytest.mark.parametrize('kind, gaps', [
    ('above', (3., 0, 0, 0, 0, 0)), ('best', (3., 0, 0, 0, 0, 0)), ('ordered', (6., 3., 0, 0, 0, 0)),
    ('most', (-3., 0, 0, 0, 0, 0))])
def test_a_large_difference_is_found(kind, gaps):
    def share(word,
              gaps): return np.mean([answer(KINDS[kind], table(c, 6, gaps)).word == word for c in range(80)])
    assert share('holds', gaps) > .9
    assert share('fails', tuple(-g for g in gaps)) > .9


def test_two_standard_errors_are_found_as_often_as_promised():
    gaps = 2 * OWN * 2**.5 / 6**.5, 0, 0, 0, 0, 0
    words = [answer(KINDS['above'], table(case, 6, gaps)).word for case in range(240)]
    assert words.count('holds') > .3 * 240 and words.count('fails') <= .02 * 240


def test_one_level_for_all_comparisons_of_a_claim():
    "The interval of the smallest margin decides, and is a two-sided one of 95 %, whatever the word."
    from scipy.stats import t
    numbers = table(0, 6, (1., 0, 0, 0, 0, 0))
    v = answer(KINDS['best'], numbers)
    apart = numbers[list('BCDEF')].rsub(numbers.A, axis=0)
    se, mean = apart.std(ddof=1) / 6**.5, apart.mean()
    low, high = (mean - t.ppf(.975, 5) * se).min(), (mean + t.ppf(1 - .025 / 5, 5) * se).min()
    assert v.interval == pytest.approx((low, high))
    assert v.word == ('holds' if low > 0 else 'fails' if high < 0 else 'open')


def test_a_single_run_is_open_and_shows_the_spread_of_its_family():
    family = dict.fromkeys(LABELS, Spread(COMMON, OWN, 12))
    one = table(0, 1, (17., 0, 0, 0, 0, 0))
    v = answer(KINDS['above'], one, chance=Chance(alone=(12, moved(one, family))))
    assert (v.word, v.reason) == ('open', 'one run') and v.interval[0] > 0
    assert answer(KINDS['above'], one).interval == ()


def as_many(n, mean, variance):
    "Margins of `n` replicates with exactly this mean and this variance."
    apart = np.arange(n) - (n - 1) / 2
    return mean + apart * (variance / apart.var(ddof=1))**.5


def with_replicates(n, means, spreads):
    "A table of `n` replicates in which A is above each label by these means, with these variances."
    gaps = {label: as_many(n, means[label], spreads[label]) for label in means.index}
    return pd.DataFrame({'A': np.zeros(n)} | {label: -gap for label, gap in gaps.items()})


def number_named(v):
    "How many replicates an open verdict says would decide it, if it names a number."
    named = re.search(r'about (\d+) replicates would decide', v.evidence)
    return int(named[1]) if named else 0


@pytest.mark.parametrize('replicates', [2, 3, 6])
@pytest.mark.parametrize('kind', ['above', 'best', 'level'])
def test_as_many_replicates_as_an_open_claim_names_decide_it(kind, replicates):
    "With the same means and variances, and no fewer do."
    c, named = KINDS[kind] if kind != 'level' else level('', .6, gap='AB'), 0
    for case in range(40):
        found = table(case, replicates, (.3 * (case % 4 - 1), 0, 0, 0, 0, 0))
        margins = found.rsub(found.A, axis=0).drop(columns='A')
        def word(n): return answer(c, with_replicates(n, margins.mean(), margins.var())).word
        n = number_named(answer(c, found))
        if not n: continue
        named += 1
        assert n > replicates and word(n) in ('holds', 'fails')
        assert n == replicates + 1 or word(n - 1) == 'open'
    assert named > 15


@pytest.mark.parametrize('gap', [.4, 1.5, 17.])
def test_one_run_names_as_many_replicates_as_decide_with_its_borrowed_variance(gap):
    c, one = above('A', 'B'), pd.DataFrame(dict(A=[70. + gap], B=[70.]), index=pd.Index([0], name='seed'))
    drawn = moved(one, dict.fromkeys('AB', Spread(COMMON, OWN, 64)))
    means, spreads = pd.Series(dict(B=gap)), pd.Series(dict(B=variances(c, drawn)['A - B']))
    n = number_named(answer(c, one, chance=Chance(alone=(64, drawn))))
    def word(n): return answer(c, with_replicates(n, means, spreads)).word
    assert n > 1 and word(n) == 'holds' and (n == 2 or word(n - 1) == 'open')


def test_no_number_decides_without_a_rival_or_with_seeds_of_one_partition():
    found = judged_table(dict(B=[1., -.2, .5, .1, .9, -.1]))
    assert number_named(found) > 6
    assert not number_named(judged_table(dict(B=[1., -.2, .5, .1, .9, -.1]), partitions=1))
    margins = pd.DataFrame(dict(A=[50.] * 6, B=50. - np.array([1., -.2, .5, .1, .9, -.1])))
    assert not number_named(answer(best('A', 'ABC'), margins)), 'C was not trained'


def test_a_borrowed_interval_is_marked_wherever_it_is_shown():
    "Its verdict knows it, its evidence has the mark, and so have README, pages and the table of a paper."
    from fedcl_repro.evidence.experiments import committed_verdicts, experiments
    from fedcl_repro.evidence.verdict import BORROWED, BORROWED_NOTE
    from fedcl_repro.show.findings import findings_table, status_table
    from fedcl_repro.show.result_page import conditions_of, margins_of
    every = [v for name in experiments() for v in committed_verdicts(name)[1]]
    claims = [v for v in every if v.kind == 'claim']
    lone = [v for v in claims if v.interval and 'one run' in v.evidence.split('; ')]
    assert len(lone) > 100 and lone == [v for v in claims if v.borrowed]
    assert all(v.borrowed for v in every if v.interval and v.reason == 'one run')
    for v in every: assert v.borrowed == (BORROWED in v.evidence)
    for v in lone: assert BORROWED in margins_of(v) and BORROWED_NOTE in conditions_of(v)
    for shown in (findings_table(), status_table(['mapl/table1', 'fedcosr/fig6'])):
        *lines, _, note = shown.splitlines()
        assert note == BORROWED_NOTE and any(BORROWED in line for line in lines)
    clear = status_table(['fedcosr/fig8'])
    assert BORROWED not in clear and clear.splitlines()[-1].startswith('|')


def test_a_single_cell_of_a_published_table_is_marked():
    from fedcl_repro.evidence.experiments import committed
    from fedcl_repro.evidence.verdict import BORROWED
    from fedcl_repro.papers.fedcosr.experiments import FEDCOSR
    from fedcl_repro.show.tables import setting_blocks, table_cells
    found = table_cells(FEDCOSR, FEDCOSR.published('table2'), committed('fedcosr/table2', 'lite'), 'lite')
    one = setting_blocks(FEDCOSR, found, 'lite', {})['practical CIFAR-10'][0]
    known = one.difference.str.contains(' to ')
    assert (one.difference[known].str.contains(BORROWED) == (one.replicates[known] == 1)).all()
    assert (one.replicates[known] == 1).any() and (one.replicates[known] > 1).any()


def test_runs_of_one_method_and_seed_borrow_no_spread():
    "float32 beside bfloat16: the spread between methods and seeds says nothing of them."
    from fedcl_repro.evidence.experiments import committed_verdicts
    _, verdicts = committed_verdicts('fedcosr/precision')
    asked = [v for v in verdicts if 'bfloat16' in v.what]
    assert len(asked) == 5
    for v in asked:
        assert (v.said, v.interval, v.borrowed) == ('open (one run)', (), False)
        assert 'no interval yet; one run each on the same seed' in v.evidence


def rounds(*pairs): return pd.DataFrame(pairs, columns=['FedSSC', 'MOON'], dtype=float)


def test_a_replicate_in_which_neither_reaches_the_target_is_left_out():
    from fedcl_repro.papers.fedssc.statements import sooner
    c, never = sooner('', 'FedSSC', 'MOON'), np.inf
    three = (20, 24), (21, 26), (24, 27)
    with_never = answer(c, rounds(*three, (never, never)))
    assert with_never.interval == answer(c, rounds(*three)).interval
    assert with_never.margin == pytest.approx(4.)
    assert with_never.evidence.startswith('21.7 and 25.7 rounds in the 3 of 4 replicates in which both reach')
    assert '1 of 4 replicates left out' in with_never.evidence
    assert answer(c, rounds(*three)).evidence.startswith('21.7 and 25.7 rounds; ')
    only = answer(c, rounds((never, never)))
    assert (only.word, only.margin) == ('open', None)


def test_a_replicate_in_which_one_reaches_the_target_is_ranked():
    from fedcl_repro.papers.fedssc.statements import sooner
    c, never = sooner('', 'FedSSC', 'MOON'), np.inf
    ahead = answer(c, rounds(*[(20, 24), (21, never)] * 3))
    assert ahead.word == 'holds' and ahead.margin is None # of no unit
    assert answer(c, rounds(*[(20, 24), (21, never)])).word == 'open'
    both = answer(c, rounds(*[(20, 24), (21, never), (30, 24)] * 2))
    assert both.word == 'open' and both.reason == 'too few replicates'
    assert both.evidence.startswith('FedSSC is sooner in 4 of 6 replicates, MOON never in 2; ranked')
    # the method that never gets there loses these replicates, though it is sooner wherever both do
    behind = answer(c, rounds(*[(20, 24)] * 2, *[(never, 24)] * 10))
    assert behind.word == 'fails'
    assert behind.evidence.startswith('FedSSC is sooner in 2 of 12 replicates, FedSSC never in 10')


def test_ranked_replicates_decide_as_a_sign_test_does():
    from scipy.stats import binomtest
    from fedcl_repro.papers.fedssc.statements import sooner
    c, never = sooner('', 'FedSSC', 'MOON'), np.inf
    for n in range(2, 12):
        for ahead in range(n + 1):
            pairs = [(20, never)] * ahead + [(never, 20)] * (n - ahead)
            decided = binomtest(ahead, n).pvalue < .05
            assert (answer(c, rounds(*pairs)).word != 'open') == decided, (ahead, n)


def test_rounds_and_their_margin_are_of_the_same_replicates():
    "On the committed rows: the two means differ by the margin, and the replicates are said."
    from fedcl_repro.evidence.experiments import committed_verdicts
    asked = [v for v in committed_verdicts('fedssc/table1')[1]
             if 'fewer rounds' in v.what and v.basis == 'runs' and v.margin is not None]
    assert len(asked) == 2
    for v in asked:
        said = re.match(r'([\d.]+) and ([\d.]+) rounds in the (\d) of (\d) replicates', v.evidence)
        assert float(said[2]) - float(said[1]) == pytest.approx(v.margin, abs=.11)
        assert (said[3], said[4]) == ('5', '6') and '; 5 replicates; 1 of 6 replicates left out' in v.evidence


def test_images_are_drawn_from_the_seeds_whose_hits_are_known():
    "Test images add as much as the stored hits say, paired, and not as much as independent ones would."
    from fedcl_repro.papers.fedssc.experiments import FEDSSC
    from fedcl_repro.evidence.experiments import committed, committed_hits
    from fedcl_repro.evidence.ask import ask, facts_by_setting, shared_images
    from fedcl_repro.evidence.cells import by_seed
    rows = committed('fedssc/table1', 'lite')
    (key, numbers), = by_seed(FEDSSC.measured(rows, 'accuracy'), FEDSSC.keys).items()
    facts = facts_by_setting(FEDSSC, rows)[key]
    known = set(facts[facts.run.isin(committed_hits('fedssc'))].seed)
    assert known and known <= set(numbers.index)
    drawn = shared_images(FEDSSC, numbers[['FedSSC', 'FedAvg']], facts)
    assert set(drawn.index.unique('seed')) == known
    assert (drawn.FedSSC - drawn.FedAvg).groupby('draw').mean().var() < .1 # as if independent: 0.5
    claim, = (c for c in FEDSSC.claims_on('table1', 'lite')
              if c.statement == 'FedSSC is more accurate than FedAvg')
    v, = ask(FEDSSC, [claim], rows, 'lite')
    assert v.interval[1] - v.interval[0] < 1.8 # was 3.1


def test_below_a_trivial_baseline_nothing_was_learned_whoever_wins():
    from fedcl_repro.papers.mfcl.statements import FLOORS
    def word(own, rival, claim=above('A', 'B', floors=FLOORS)):
        numbers = pd.DataFrame(dict(A=own, B=rival) | dict.fromkeys(FLOORS, 40.), index=range(6))
        return answer(claim, numbers + .1 * np.random.default_rng(0).normal(size=numbers.shape)).word
    assert [word(30., 20.), word(20., 30.), word(30., 50.)] == ['not learned'] * 3
    assert word(50., 30.) == 'not learned' # above a method that failed
    assert [word(50., 45.), word(45., 50.)] == ['holds', 'fails']


def test_claims_of_mfcl_know_all_floors():
    "Thumbnails and a random encoder are above every method of the committed runs without labels."
    from fedcl_repro.evidence.experiments import committed_verdicts
    _, verdicts = committed_verdicts('mfcl/table2')
    asked = [v for v in verdicts if v.kind == 'claim' and v.basis == 'runs' and 'ξ = 0.01' in v.what]
    assert len(asked) > 5 and {v.word for v in asked} == {'not learned'}
    across = [v for v in verdicts if v.what.startswith('MFCL(TN) works best under skew')
              and v.basis == 'runs']
    assert across and {v.word for v in across} == {'not learned'}


def test_a_claim_says_where_its_sign_is_another():
    """The other moment of a round, and another share of the images, stand in the evidence, the card and the
    answer."""
    from fedcl_repro.evidence.experiments import committed_verdicts
    from fedcl_repro.show.result_page import answer_of, conditions_of
    numbers = pd.DataFrame(dict(A=[60., 61.], B=[50., 52.]))
    v = answer(KINDS['above'], numbers,
               chance=Chance(elsewhere={'after local training': numbers[['B', 'A']].set_axis(
        ['A', 'B'], axis=1), 'on a tenth of the images': numbers}, tested='before local training'))
    assert v.turned == 'but -9.50 after local training' and v.turned in v.evidence
    assert v.turned in answer_of(v) and 'tested before local training' in conditions_of(v)
    said = {v.what: v for v in committed_verdicts('fedcosr/table2')[1]}
    whole = said['FedCoSR is above Local: practical CIFAR-10']
    assert whole.turned == 'but +1.07 with 10 % of the images' # below with all images, above with a tenth


def test_headlines_say_where_their_sign_is_another():
    "On the scoreboard, too: with another share of the images, and with other views of a rival."
    import matplotlib.pyplot as plt
    from fedcl_repro.show.scoreboard import headlines, scoreboard_figure, scoreboard_html
    turned = {line.claim: line.turned for line in headlines() if line.turned}
    assert turned == {'MAPL, two views: beats training alone': 'but -0.17 from Local with two views',
                      'FedCoSR beats training alone': 'but +1.07 with 10 % of the images'}
    page = scoreboard_html(headlines(), str)
    for narrow in (False, True):
        fig = scoreboard_figure(narrow=narrow)
        drawn = ' '.join(text.get_text() for text in fig.axes[0].texts)
        plt.close(fig)
        for words in turned.values(): assert words in drawn and words in page


def test_a_method_in_place_of_another_is_told_only_if_it_turns_the_sign():
    numbers = pd.DataFrame(dict(A=[60., 61., 62.], B=[50., 52., 53.], C=[63., 64., 62.]))
    rival = {'from C': ('B', 'C')}
    def told(table):
        from fedcl_repro.evidence.ask import elsewhere
        from fedcl_repro.evidence.cells import Paper
        c = above('A', 'B', instead=rival)
        tables = elsewhere(Paper(('x',), lambda x, profile: x), c, ('x',), {('x',): table}, {}, 'lite')
        return answer(c, table, chance=Chance(elsewhere=tables)).turned
    assert told(numbers) == 'but -2.00 from C'
    assert told(numbers.assign(C=40.)) == told(numbers.drop(columns='C')) == ''


def test_a_decided_verdict_has_its_share_in_every_table():
    "In the numbers of findings, the first answers of pages, and the article."
    from fedcl_repro.show.findings import findings_table, papers_table, status_table
    article = (Path(__file__).parents[2]/'nbs/papers/findings.ipynb').read_text(encoding='utf-8')
    of_article = re.findall(r'<td[^>]*><span[^>]*>. (holds|fails)</span>([^<]*)<', article)
    cells = [word + rest for word, rest in of_article]
    lines = [findings_table(), papers_table(), status_table(['arena/arena', 'fedcosr/table2', 'mfcl/table2'])]
    cells += re.findall(r'[●■] ((?:holds|fails)[^|]*)', '\n'.join(lines))
    assert len(cells) > 12 and all(re.match(r'(holds|fails) at ', cell) for cell in cells), cells


def test_both_moments_stand_side_by_side():
    from fedcl_repro.evidence.cells import our_cells
    from fedcl_repro.evidence.experiments import committed
    from fedcl_repro.papers.fedcosr.experiments import FEDCOSR
    from fedcl_repro.papers.mapl.experiments import MAPL
    cells = our_cells(FEDCOSR, committed('fedcosr/table2', 'lite'),
                      ['label', 'column']).set_index(['column', 'label'])
    whole = cells.loc['practical CIFAR-10']
    assert whole.merged.FedPer != whole.trained.FedPer and whole.micro.FedPer == whole.merged.FedPer
    assert whole.micro['FedAvg + epoch'] == pytest.approx(whole.trained.FedAvg) # a baseline of its own
    assert whole.micro['FedAvg + epoch'] - whole.micro.FedAvg > 20
    mapl = our_cells(MAPL, committed('mapl/table1', 'lite'), ['label', *MAPL.keys])
    assert mapl.micro.to_list() == pytest.approx(mapl.trained.to_list()) and mapl.merged.notna().all()


def judged_table(margins, partitions=6):
    "The answer to 'A is the best' on a table with these leads over rivals, a list for each; None: not run."
    table = pd.DataFrame({'A': [50.] * 6} | {name: [np.nan if m is None else 50. - m for m in leads]
                                             for name, leads in margins.items()})
    return answer(best('A', list(margins)), table, chance=Chance(partitions=partitions))


CLEAR = [4., 4.1, 3.9, 4., 4.2, 3.8]


def test_the_smallest_margin_has_an_interval_if_each_rival_has_one():
    assert judged_table(dict(B=CLEAR, C=CLEAR)).word == 'holds'
    once = judged_table(dict(B=CLEAR, C=[5., *[None] * 5]))
    assert (once.word, once.reason, once.interval) == ('open', 'one run', ())
    below = judged_table(dict(B=[-m for m in CLEAR], C=[5., *[None] * 5]))
    assert below.word == 'fails' and below.interval[1] < 0, 'one rival is enough'


def test_seeds_of_one_partition_decide_nothing():
    assert judged_table(dict(B=CLEAR)).word == 'holds'
    alone = judged_table(dict(B=CLEAR), partitions=1)
    assert (alone.word, alone.reason) == ('open', 'one partition') and alone.interval


def test_a_sign_turns_only_among_the_same_methods():
    table, fewer = pd.DataFrame(dict(A=[50.], B=[51.], C=[40.])), pd.DataFrame(dict(A=[50.], C=[40.]))
    c = best('A', ['B', 'C'])
    assert not turned(c, table, {'with 10 %': fewer})
    assert turned(c, table, {'with 10 %': fewer.assign(B=45.)}) == 'but +5.00 with 10 %'


def test_a_margin_in_points_says_so_and_no_other_does():
    table = pd.DataFrame(dict(A=[51., 52.], B=[50., 50.5], C=[40., 41.]))
    assert answer(above('A', 'B'), table).unit == 'points'
    assert answer(above('A', 'B', told='rank {each}'), table).unit == ''
