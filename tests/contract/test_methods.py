"""Every registered method, on a federation with unequal clients, one of them empty, not all taking part."""
from dataclasses import fields

from federations import (
    FEW, METHODS, OF_THE_FRAME, OWN, WITHOUT_LABELS, alone, assert_equal, final, has, looped,
    made, reached, tensors, trial, uneven)
import pytest
import torch

from fedcl_repro.core import load_all
from fedcl_repro.federation.evaluation import evaluate, micro
from fedcl_repro.federation.executors import EXECUTORS
from fedcl_repro.federation.fed import toy
from fedcl_repro.federation.loop import Loop
from fedcl_repro.federation.method import Method
from fedcl_repro.federation.optimisers import SGD, Adam
from fedcl_repro.federation.rehearsal import rehearse
from fedcl_repro.federation.rounds import begin, rounds
from fedcl_repro.runs.run import methods

load_all('fedcl_repro.federation')


@pytest.mark.parametrize('name', OWN)
def test_same_config_same_bits(name):
    "And what a federation begins with is not written into."
    fed = uneven(name)
    first = begin(fed)
    copies = [{k: v.clone() for k, v in c.items()} for c in first.clients]
    assert_equal(alone(name), final(name, fed, state=first))
    for c, d in zip(first.clients, copies):
        for k in d: assert torch.equal(c[k], d[k]), k


@pytest.mark.parametrize('name', OF_THE_FRAME)
def test_threads_do_not_matter(name):
    fed = uneven(name)
    assert_equal(alone(name), final(name, fed, Loop(fed, 3)))


@pytest.mark.parametrize('name', OF_THE_FRAME)
def test_another_seed_is_another_run(name):
    a, b = dict(tensors(alone(name))), dict(tensors(final(name, uneven(name, seed=1))))
    assert any(not torch.equal(a[k], b[k]) for k in a if k.endswith('head.weight'))


@pytest.mark.parametrize('name', OWN)
def test_resumed_is_uninterrupted(name):
    "From each round a new federation goes on to the next."
    n_rounds = 3 if len(made(name, 3)) == 1 else 4 # those with several stages: one round more
    states = reached(name) if n_rounds == 3 else list(rounds(Loop(uneven(name)), made(name, n_rounds)))
    for s, after in zip(states, states[1:]):
        assert_equal(next(rounds(Loop(uneven(name)), made(name, n_rounds), s)), after)


@pytest.mark.parametrize('name', OWN)
def test_training_trains(name):
    "After some rounds a method fits its own clients better than the initial network does."
    if name in WITHOUT_LABELS: pytest.skip('it learns without labels')
    if name.endswith('_head'): pytest.skip('its heads are trained at each test, at the first one too')
    fed = toy(opt=Adam(trial(name, 'lr', .01)), width=trial(name, 'width', 6), **has(name))
    stages = made(name, 12, **trial(name, 'settings', {}))
    *_, state = rounds(Loop(fed), stages)
    def accuracy(state): return micro(evaluate(Loop(fed), stages, state, 'trained'))
    assert accuracy(state) > .25 + accuracy(begin(fed))


def first_loss(name, lr):
    "Mean training loss of the first round in which clients train."
    fed = toy(width=16, norm=True, opt=Adam(lr), local_epochs=20, **has(name))
    for state in rounds(Loop(fed), made(name, 4)):
        trained = [c for c in state.clients if 'train.rows' in c]
        if trained:
            samples = sum(c['train.rows'] for c in trained)
            return float(sum(c['train.loss'] for c in trained) / samples)


@pytest.mark.parametrize('name', WITHOUT_LABELS)
def test_training_without_labels_trains(name):
    """The loss falls below that of an untrained network on the same batches, within a round (the goal
    of the next may be another one), and what the method makes of images can be classified by a
    line. Not better than what a random network makes of them: on so small images a line classifies
    these too."""
    assert first_loss(name, .01) < .98 * first_loss(name, 0.)
    fed = toy(width=16, opt=Adam(.003), **has(name))
    assert fed.y.bincount().max() < .35 * len(fed.y)
    stages = made(name, 6)
    *_, state = rounds(Loop(fed), stages)
    assert micro(evaluate(Loop(fed), stages, state, 'merged')) > .5


def single_executors():
    "All but the loop, those that train several federations together, and those that need an extra."
    one = {name: e for name, e in EXECUTORS.items() if not e.about['extra']}
    return sorted(set(one) - {'loop'})


def bound(opt):
    "Adam amplifies the rounding of gradients that are zero."
    return 1e-10 if isinstance(opt, SGD) else 1e-6


def executors_agree(name, opt, executor):
    fed = uneven(name, opt=opt)
    assert_equal(looped(name, opt, 0), final(name, fed, EXECUTORS[executor].make(fed), 2), bound(opt))


@pytest.mark.parametrize('name', OWN)
@pytest.mark.parametrize('executor', single_executors())
def test_executors_agree(name, executor):
    "All fields of all clients and servers after two rounds, in float64."
    executors_agree(name, SGD(.05, .9), executor)


@pytest.mark.parametrize('name', OF_THE_FRAME)
@pytest.mark.parametrize('executor', single_executors())
def test_executors_agree_with_another_optimiser(name, executor): executors_agree(name, Adam(), executor)


HOOKS = {f.name for f in fields(Method)}


def test_the_few_use_all_that_a_method_can_say():
    said = {hook for name in FEW for stage in made(name, 4) for hook in HOOKS
            if getattr(stage.method, hook) != getattr(Method(), hook)}
    others = {'wire', 'received'} # have tests of their own, in `test_isolation` and `test_mfcl`
    assert said == HOOKS - others, 'let one of the few use it'


@pytest.mark.parametrize('name', METHODS)
def test_a_rehearsal_has_nothing_to_say(name):
    fed = uneven(name)
    assert rehearse(fed, made(name, 4), methods()[name].about['needs']) == []


@pytest.mark.parametrize('name', METHODS)
def test_about(name):
    about = methods()[name].about
    from fedcl_repro.show.figures import PALETTE
    assert about['family'] in PALETTE
    assert about['owner'] in ('shared', 'personal')
    assert about['revision'] >= 1
    assert about['title'] and methods()[name].doc
    assert set(about['trial']) <= {'settings', 'cheap', 'lr', 'width'}
