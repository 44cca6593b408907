"""What MFCL's privacy and its norm give away: two strangers, a colluding client, a principal component."""
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from sklearn.datasets import load_sample_images

from fedcl_repro.federation import privacy
from fedcl_repro.federation.evaluation import probed
from fedcl_repro.federation.fed import toy
from fedcl_repro.federation.loop import Loop
from fedcl_repro.federation.messages import Inbox, Roster
from fedcl_repro.federation.method import Method, Probe
from fedcl_repro.methods.partners import partner_found
from fedcl_repro.methods.mfcl import pairs_of_epoch
from fedcl_repro.papers.mfcl.experiments import MFCL, mfcl_published
from fedcl_repro.papers.mfcl.attacks import seen_by_pca
from fedcl_repro.parts.autoencoder import mfcl_model
from fedcl_repro.parts.contrastive import ntxent
from fedcl_repro.evidence.experiments import committed
from fedcl_repro.runs.run import Run, label
from fedcl_repro.show.tables import repeats, table_cells


def strangers_found(positives, steps=60):
    """Share of strangers, normalised together, that a server finds. All images are noise and differ from each
    other, the two of a pair as well, so that nothing but the norm tells who is whose."""
    g = torch.Generator().manual_seed(0)
    torch.manual_seed(0)
    encoder = mfcl_model((1, 8, 8), 10, kind='small', width=32, per_group=8)['enc']
    server = nn.Sequential(nn.BatchNorm1d(64), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 32))
    opt = torch.optim.Adam(server.parameters(), .003)
    def rand(*shape): return torch.rand(shape, generator=g)
    def sent(n):
        noise = torch.randn(2, n, 1, 8, 8, generator=g) * (.3 + rand(2, n, 1, 1, 1))
        with torch.no_grad(): z = encoder(noise + 2*rand(2, n, 1, 1, 1) - 1)
        return torch.cat([z.mean((3, 4)), z.square().mean((3, 4)).sqrt()], 2)
    for _ in range(steps):
        one, other = sent(128), sent(128)
        z = one if positives == 'twins' else torch.stack([one[0], other[1]])
        loss = ntxent(server(z.flatten(0, 1)), .2).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    server.eval()
    with torch.no_grad(): first, second = server(sent(256).flatten(0, 1)).split(256)
    return partner_found(first, second)


def test_only_a_server_trained_on_twins_finds_strangers():
    found = {positives: strangers_found(positives) for positives in ('twins', 'across')}
    assert found['twins'] > .15 > .04 > found['across'], found


def test_across_is_the_default_and_takes_two_pairs():
    run = Run.of('mfcl', model='mfcl(kind="small")', augmentation='simclr')
    assert label(run) == 'MFCL(TN)' and dict(run.method.settings)['positives'] == 'across'
    for epoch in range(20):
        first, second = pairs_of_epoch(epoch, 8, 'across')
        assert first != second and {first, second} <= set(range(8))


def read_by(inbox, guessed, target=0):
    "What the server reads of a message once it takes off the masks of these secrets."
    m = inbox.messages[target]['w'].clone()
    roster = Roster(inbox.round, inbox.who, tuple(inbox.n.tolist()))
    for j, secret in guessed.items():
        shared = privacy.mask(secret, privacy.purpose_of(roster), {'w': m})['w']
        m = m - shared if target < j else m + shared
    return m.double() / inbox.places / float(inbox.n[target])


@pytest.mark.parametrize('one_for_all', [False, True])
def test_one_client_and_the_server_cannot_unmask_another(one_for_all, monkeypatch):
    "With one secret for all pairs, as it was, they could: the attack must then succeed."
    if one_for_all: monkeypatch.setattr(privacy, 'pair_secret', lambda root, a, b: bytes(32))
    sent = torch.randn(200, generator=torch.Generator().manual_seed(0))
    n = torch.tensor([10., 5., 1., 7.])
    box = Inbox((0, 1, 2, 3), n, ({'w': sent},) * 4, 4, 11)
    sealed = privacy.secure_aggregation(secret=5)(box)
    given = privacy.secrets_known_to(1, box.who, 5)
    assert set(given) == {0, 2, 3}
    error = float((read_by(sealed, dict.fromkeys((1, 2, 3), given[0])) - sent).abs().max())
    assert error < 1e-5 if one_for_all else error > 1
    all_others = privacy.secrets_known_to(0, box.who, 5)
    assert float((read_by(sealed, all_others) - sent).abs().max()) < 1e-5


def test_representations_alone_show_the_picture():
    "Without collusion, a principal component is enough: 'nothing to decode with' is false."
    photos = [torch.tensor(im[:384, :608]).movedim(2, 0).float() / 255 for im in load_sample_images().images]
    small = F.avg_pool2d(torch.stack(photos), 3)
    x = small.unfold(2, 32, 16).unfold(3, 32, 16).flatten(2, 3).movedim(2, 1).flatten(0, 1)[:48]
    views = torch.stack([x, x.flip(3)])
    torch.manual_seed(0)
    encoder = mfcl_model((3, 32, 32), 10, kind='small', width=16, per_group=8)['enc']
    with torch.no_grad(): z = encoder(views * 2 - 1)
    assert seen_by_pca(z, views)[1].median() > .6
    shuffled = z.flatten(3)[..., torch.randperm(1024)].view(z.shape)
    assert seen_by_pca(shuffled, views)[1].median() < .3


def test_a_classifier_fitted_to_what_was_received_differs_only_where_encoders_differ():
    "The paper's joint option: each training image is represented by its owner."
    fed = toy((20, 20), norm=True)
    method = Method(probe=Probe(lambda net, client, x: net.body(x)))
    def losses(clients, owners=None):
        return [s.loss for s in probed(Loop(fed), method, clients, 'test', owners)]
    alike = {i: fed.client(i) for i in range(2)}
    assert losses(alike, alike) == pytest.approx(losses(alike), rel=1e-6)
    shifted = alike[1] | {'body.1.running_mean': alike[1]['body.1.running_mean'] + 1.}
    apart = {0: alike[0], 1: shifted}
    assert losses(apart, apart) != pytest.approx(losses(apart), rel=1e-3)


@pytest.mark.parametrize('artifact', ['table1', 'table16', 'table17'])
def test_a_cell_shows_the_balanced_accuracy_of_its_own_run(artifact):
    "CIFAR-10's test images are balanced, so it is the accuracy; a cell without a run has neither."
    table = table_cells(MFCL, mfcl_published(artifact), committed(f'mfcl/{artifact}', 'lite'), 'lite')
    missing = table.ours.isna()
    assert missing.any() and not missing.all()
    assert table.balanced[missing].isna().all()
    assert table.balanced.notna().any() and repeats(table.balanced, table.ours)
