"""The register of what FedCoSR leaves open, says ambiguously or cannot mean (`fedcl_repro/published`): what
an entry says of the paper, of our choice and of the other one is so."""
import math
import re
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from fedcl_repro.core import parse_spec
from fedcl_repro.data.partition import partition
from fedcl_repro.evidence.published import disagreements, published
from fedcl_repro.federation.loop import Loop
from fedcl_repro.federation.rounds import rounds
from fedcl_repro.parts.mixing import keep_share
from fedcl_repro.parts.models import cnn
from fedcl_repro.runs.run import Run, federation, methods, shards, stages

OURS = { # the other choice -> ours, where ours is not a default
    'partition=pathological(balance=True)': 'partition=pathological',
    'partition=random_pathological(classes=10)': 'partition=pathological(classes=10)',
    'method=fedprox(mu=0.1)': 'method=fedprox',
    'method=fedproto(weighted=True)': 'method=fedproto',
}
OTHER_CHOICES = [setting for setting in disagreements().setting if setting]


def outcome(setting):
    "Length of a small run with these settings, its clients' rows, and the server's tensors after a round."
    settings = dict(n_clients=10, n_rounds=1, batch_size=64) | dict(parse_spec(f'run({setting})').settings)
    run = Run.of(settings.pop('method', 'fedcosr'), **settings)
    server = next(rounds(Loop(federation(run)), stages(run))).servers['server']
    rows = [r.tolist() for r in shards(run).train]
    return run.n_rounds, rows, {k: v.tolist() for k, v in server.items()}


@pytest.mark.parametrize('setting', OTHER_CHOICES)
def test_each_other_choice_changes_the_run(setting): assert outcome(setting) != outcome(OURS.get(setting, ''))


def test_a_setting_that_is_ours_changes_nothing():
    assert set(OURS) <= set(OTHER_CHOICES)
    assert outcome('batch_size=64') == outcome('')


def test_a_client_keeps_nothing_of_its_body_in_the_first_aggregation():
    "Whatever gamma is, since no contrastive loss is known yet: so it is no setting."
    assert [keep_share(torch.tensor(math.inf), gamma).item() for gamma in (0., .8, 1e6)] == [0.]*3


def test_our_values_for_other_methods_are_the_defaults():
    we_do = disagreements().set_index('where')['we do']
    told = we_do['V-A4, "the optimal hyperparameters recorded in each work"']
    stand_ins = dict(fedprox=['mu'], moon=['mu', 'temp'], ditto=['mu'], pfedme=['lam'], fedgh=['server_lr'],
                     fedproto=['lam'], fedpac=['lam'])
    for name, settings in stand_ins.items():
        method = methods()[name]
        said = re.search(f"{method.about['title']}( and FedPAC)? [^,;]*", told)[0]
        for s in settings: assert f'{s} = {method.settings[s]:g}' in said, name
    assert methods()['fedproto'].settings['weighted'] is False


def test_ten_classes_dealt_to_blocks_lose_some_of_emnist():
    "Dealt at random, none is lost."
    letters = SimpleNamespace(y=np.repeat(np.arange(47), 28), n_classes=47, n_train=47*28, name='47 classes',
                              held_out=False)
    def lost(split): return len(partition(letters, f'{split}(classes=10)', 20, 0).notes['lost_classes'])
    assert (lost('pathological'), lost('random_pathological')) == (7, 0)


def test_some_published_spreads_are_impossible():
    "If accuracy is a mean m over clients, their standard deviation is at most the root of m (1 - m)."
    cells = published('fedcosr', 'table3', beta=.01)
    table = cells.pivot(index='method', columns='metric', values='value').drop(index='Averaged').dropna()
    share = table.accuracy / 100
    impossible = table.client_std > 100 * np.sqrt(share * (1 - share))
    assert {'LG-FedAvg', 'FedCoSR'} <= set(table.index[impossible])


def test_clipping_to_0_and_1_sets_half_of_the_weights_to_zero():
    weights = np.concatenate([p.detach().flatten().numpy() for p in cnn((3, 32, 32), 10).parameters()])
    assert .45 < (weights < 0).mean() < .55
