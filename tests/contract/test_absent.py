"""Clients that are absent, are not read, or have one image."""
import pytest
import torch

from fedcl_repro.federation.fed import plan, trains_norm
from fedcl_repro.federation.loop import Loop
from fedcl_repro.federation.method import Sweep
from fedcl_repro.federation.rounds import rounds
from fedcl_repro.parts.fields import select
from fedcl_repro.runs.run import Run, federation, stages

SMALL = dict(data='digits', n_clients=6, n_rounds=4, scarcity='all_clients(share=0.2)')
RESNET = "resnet18_cifar(width=8, proj=(64, 64), pred=(64, 64))"
PLAIN = 'crop_flip(pad=1, flip=0.0)'
MFCL = "mfcl(kind='small', width=8, per_group=4, norm='{}', out=32)"


def trained(run):
    "The federation of a run, and its last state."
    fed = federation(run)
    *_, state = rounds(Loop(fed), stages(run))
    return fed, state


@pytest.mark.parametrize('edges', ['everyone', 'ring'])
def test_a_peer_that_is_read_no_more_keeps_its_size(edges):
    "MAPL's confidence is a peer's share of all samples that were ever read (Eq. 7), not of those read now."
    run = Run.of(f'mapl(warmup=1, edges={edges}, drop_edges=True)', augmentation='mapl', model='cnn_proj',
                 partition='pathological(classes=2)', **SMALL)
    fed, state = trained(run)
    sizes, near = torch.tensor(fed.sizes).float(), (0, 1, 5)
    for i in range(6):
        read = torch.tensor([edges == 'everyone' or (j - i) % 6 in near for j in range(6)])
        assert torch.equal(state.clients[i]['sizes'], torch.where(read, sizes, 0.))


@pytest.mark.parametrize('method, prefix', [('fedema', 'glob.'), ('featarc', 'teacher.')])
def test_a_received_network_has_the_clients_own_statistics_where_none_are_sent(method, prefix):
    run = Run.of(method, augmentation=PLAIN, model=RESNET, buffers='local', **SMALL | dict(n_rounds=2))
    _, state = trained(run)
    for i in range(6):
        received = select(state.clients[i], prefix)
        means = [v for k, v in received.items() if k.endswith('running_mean')]
        assert means and all(v.abs().max() > 0 for v in means)


@pytest.mark.parametrize('norm', ['tn', 'bn'])
def test_one_image_trains_the_parts_without_batch_norm(norm):
    "MFCL(TN)'s client trains on it, although the rServer has batch norm; MFCL(BN)'s does not."
    settings = SMALL | dict(n_rounds=3, augmentation='simclr', model=MFCL.format(norm))
    run = Run.of('mfcl(phase1=1)', **settings)
    fed, sweep = federation(run), next(s for s in stages(run)[0].method.local if isinstance(s, Sweep))
    fed.sizes[0] = 1
    assert any(fed.normed.values()) and trains_norm(fed, 0, sweep) == (norm == 'bn')
    assert [list(rows) for rows in plan(fed, 0, sweep, (0,))] == ([[0]] if norm == 'tn' else [])
