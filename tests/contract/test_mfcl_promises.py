"""MFCL's promises: who receives what, what survives a lost table or a restart, what is plain training.
The page of the method has the first of them."""
import copy
from dataclasses import replace

import torch
from fastcore import test as check

from fedcl_repro.core import stream
from fedcl_repro.federation.evaluation import clients_at
from fedcl_repro.federation.fed import batches, pixels, toy
from fedcl_repro.federation.loop import Loop, Worker
from fedcl_repro.federation.messages import Deferred, lossy
from fedcl_repro.federation.method import METHODS, Sweep, stages_of
from fedcl_repro.federation.optimisers import Adam
from fedcl_repro.federation.rounds import rounds, run, run_steps
from fedcl_repro.methods.mfcl import AUTOENCODER, ENCODINGS, ask_views, mfcl, pairs_of_epoch
from fedcl_repro.methods.mfcl import reconstruct, server_batches
from fedcl_repro.parts.autoencoder import reconstruction
from fedcl_repro.parts.fields import select

needs = 'enc dec chi proj views'
small = dict(phase1=2, server_batch=16)
fed = toy((20, 33, 16, 0, 11), needs=needs)


def numbers(v):
    "All numbers in fields or an entry of a message."
    if isinstance(v, dict): return torch.cat([torch.zeros(0, dtype=torch.double), *map(numbers, v.values())])
    if isinstance(v, Deferred):
        n, pairs = v.shape[:2]
        if n == 0: return torch.zeros(0, dtype=torch.double)
        v = v.make(torch.arange(n).repeat_interleave(pairs), torch.arange(pairs).repeat(n))
    return v.detach().double().flatten()


def told(fed, method, n_rounds, state=None):
    "Run on: the states, and the numbers that each server received or held."
    seen = {}
    def spy(stage):
        def serve(server, inbox):
            after = stage.method.serve(server, inbox)
            before = seen.get(stage.server, torch.zeros(0))
            seen[stage.server] = torch.cat([before, *map(numbers, (server, *inbox.messages, after))])
            return after
        return replace(stage, method=replace(stage.method, serve=serve))
    return list(rounds(Loop(fed), tuple(map(spy, stages_of(method, n_rounds))), state)), seen


def turn_up(marks, seen):
    "How many of the numbers seen are among the marks, to nine digits."
    return int(torch.isin(seen.mul(1e9).round(), marks[marks != 0].mul(1e9).round()).sum())


def table_of(i, client, r=3):
    "What client i offers the rServer."
    measured = stages_of(mfcl(phase1=2), 4)[-1].method.local[0]
    return run_steps(Loop(fed), (measured,), {i: client}, r)[i]['z']


def test_no_parameter_of_the_autoencoder_reaches_the_rserver():
    "Numbers that one client alone has are written into both; a client that sent its encoder would be caught."
    from_start, _ = told(fed, mfcl(**small), 3)
    handed = from_start[-1]
    for i, c in enumerate(handed.clients):
        c['enc.0.weight'][0, 0, 0, 0] = .123456789 + i
        c['dec.0.weight'][0, 0, 0, 0] = .987654321 + i
    marks = {}
    for i, c in enumerate(handed.clients):
        for k, v in select(c, *AUTOENCODER).items():
            all_equal = (v == v.flatten()[0]).all()         # biases that are all 0 or all 1
            if not all_equal: marks[f'{i}.{k}'] = v
    marks = numbers(marks)
    check.test_eq(turn_up(marks, numbers(handed.clients[2])) > 50, True)
    _, seen = told(fed, mfcl(**small), 5, handed)
    check.test_eq((list(seen), turn_up(marks, seen['rserver'])), (['rserver'], 0))

    def talkative(n_rounds):
        "MFCL whose clients also send their encoder in phase 2."
        *rest, two = stages_of(mfcl(**small), n_rounds)
        def upload(client): return two.method.upload(client) | select(client, 'enc.')
        return (*rest, replace(two, method=replace(two.method, upload=upload)))
    _, seen = told(fed, talkative, 5, handed)
    assert turn_up(marks, seen['rserver']) >= 5


def test_no_image_reaches_the_gserver():
    "One image has a brightness that occurs nowhere else; a client that also sent it would be caught."
    spotted = toy((20, 33, 16, 0, 11), needs=needs)
    spotted.x[spotted.x == 77] = 78
    mine = int(spotted.rows['train'][0][4])
    spotted.x[mine] = 77
    image = pixels(spotted.x[[mine]], spotted.dtype)
    pixel = image.unique()
    check.test_eq((image.shape, len(pixel)), ((1, 1, 6, 6), 1))

    path, seen = told(spotted, mfcl(**small), 5)
    def code_of(client):
        with torch.no_grad(): return Worker(spotted).net(0, client, False).enc(image).flatten()
    measured = stages_of(mfcl(phase1=2), 4)[-1].method.local[0]
    client = path[-1].clients[0] | dict(offered=torch.tensor(0.))
    table = run_steps(Loop(spotted), (measured,), {0: client}, 0)[0]['z']
    of_views = table.make(torch.tensor([4]*8), torch.arange(8)).flatten()
    coded = torch.cat([*(code_of(s.clients[0]) for s in path), of_views])
    check.test_eq((turn_up(pixel, seen['gserver']), turn_up(coded, seen['gserver'])), (0, 0))
    check.test_eq(turn_up(pixel, seen['rserver']), 0)
    assert turn_up(coded, seen['rserver']) >= 8*2*10
    def careless(n_rounds):
        "MFCL whose clients also send the image in phase 1."
        one, *rest = stages_of(mfcl(**small), n_rounds)
        def upload(client): return one.method.upload(client) | dict(seen=image)
        return (replace(one, method=replace(one.method, upload=upload)), *rest)
    _, seen = told(spotted, careless, 5)
    assert turn_up(pixel, seen['gserver']) >= 36


def test_only_the_linear_classifier_uses_labels():
    "With permuted labels all networks end with the same bits."
    state = run(fed, mfcl(**small), 5)
    other = toy((20, 33, 16, 0, 11), needs=needs)
    other.y = other.y[torch.randperm(len(other.y), generator=torch.Generator().manual_seed(0))]
    assert other.y.tolist() != fed.y.tolist()
    blind = run(other, mfcl(**small), 5)
    for s in state.servers:
        for k, v in state.servers[s].items(): check.test_eq(v, blind.servers[s][k])


def test_a_representation_is_recomputed_from_stored_numbers():
    "The same each time, and whatever other images are in its batch."
    *_, after = rounds(Loop(fed), stages_of(mfcl(**small), 4))
    first, second = table_of(1, after.clients[1], 3), table_of(1, after.clients[1], 4)
    images = torch.tensor([4, 9, 30])
    some = first.make(images, torch.tensor([2, 2, 2]))
    alone = torch.cat([second.make(images[k:k+1], torch.tensor([2])) for k in range(3)])
    check.test_close(some, alone, eps=1e-12)
    check.test_eq(first.shape[:3], (33, 8, 2))


def test_the_three_kinds_of_positives_cost_the_same():
    "Across pairs, twins, and alone."
    *_, after = rounds(Loop(fed), stages_of(mfcl(**small), 4))
    epoch_views = {p: pairs_of_epoch(9, 8, p) for p in ENCODINGS}
    check.test_eq(epoch_views, dict(across=(1, 2), twins=(1, 1), alone=(1, 1)))
    owner, image = torch.tensor([1, 1, 0]), torch.tensor([4, 9, 3])
    both = [table_of(i, c) for i, c in enumerate(after.clients)]
    across, one, two = (ask_views(both, owner, image, p) for p in ((1, 2), (1, 1), (2, 2)))
    check.test_eq(across, torch.stack([one[:, 0], two[:, 1]], 1))
    sent = {p: run(fed, mfcl(**small, positives=p), 4) for p in ENCODINGS}
    check.test_eq({s.up for s in sent.values()}, {sent['twins'].up})
    weights = {p: s.servers['rserver']['chi.1.weight'] for p, s in sent.items()}
    for p in ('across', 'alone'): assert not torch.equal(weights[p], weights['twins'])


def test_batches_do_not_depend_on_how_many_are_fetched_at_once():
    "And an epoch has each image once."
    *_, after = rounds(Loop(fed), stages_of(mfcl(**small), 4))
    tables = [table_of(i, c) for i, c in enumerate(after.clients)]
    offered = [t for t in tables if t.shape[0]]
    bundled, single = (list(server_batches(offered, (1, 2), 16, stream(0, 'b'), room)) for room in (2**27, 1))
    for a, b in zip(bundled, single):
        check.test_eq(a.y, b.y)
        check.test_close(a.z, b.z, eps=1e-12)
    check.test_eq((len(bundled), len(torch.cat([b.y for b in bundled]).unique())), (5, 80))


def test_a_run_resumes_in_phase_2_with_the_same_bits():
    "The rServer's momentum is among its fields."
    method = stages_of(mfcl(**small), 6)
    uninterrupted = list(rounds(Loop(fed), method))
    *_, resumed = rounds(Loop(fed), method, uninterrupted[3])
    for k, v in uninterrupted[-1].servers['rserver'].items(): check.test_eq(v, resumed.servers['rserver'][k])
    assert any(k.startswith('opt.lars.chi.') for k in resumed.servers['rserver'])


def test_all_clients_begin_phase_2_with_the_same_encoder():
    "Even with three of five clients in each round; each sends its table once."
    z = 4*6*6*8 # bytes of one representation: 4 channels of 6x6 pixels in double precision
    part = toy((20, 33, 16, 0, 11), needs=needs, participation=.6)
    path = list(rounds(Loop(part), stages_of(mfcl(phase1=2, server_batch=80), 5)))
    encoder = select(path[2].servers['gserver'], 'enc.')
    for c in path[2].clients:
        for k, v in encoder.items(): check.test_eq(c[k], v)
    different = {float(c['enc.0.weight'].sum()) for c in path[1].clients}
    assert len(different) > 1                                         # it was not so before
    check.test_eq(path[-1].servers['rserver']['held'].tolist(), [True]*5)
    check.test_eq(path[-1].up[3:], (16 * sum(part.sizes) * z, 0))


def test_a_lost_table_is_not_sent_again():
    "The rServer goes on with those that arrived."
    bad = toy((20, 33, 16, 0, 11), needs=needs, wire=lossy(.4))
    stages = stages_of(mfcl(phase1=2, server_batch=8), 6)
    path = list(rounds(Loop(bad), stages))
    held = path[3].servers['rserver']['held']
    assert 0 < held.sum() < 5
    for s in path[4:]: check.test_eq(s.servers['rserver']['held'], held)
    asked = set()
    def watched(i, table, r):
        "Client i's table, noting the rounds in which it is asked for rows."
        def make(images, views):
            asked.add((r, i))
            return table.make(images, views)
        return replace(table, make=make)

    def watching(stage):
        "The stage with all tables watched."
        if stage.server != 'rserver': return stage
        def serve(server, inbox):
            messages = []
            for i, m in zip(inbox.who, inbox.messages):
                messages.append({'z': watched(i, m['z'], inbox.round)} if 'z' in m else m)
            return stage.method.serve(server, replace(inbox, messages=tuple(messages)))
        return replace(stage, method=replace(stage.method, serve=serve))

    *_, _ = rounds(Loop(bad), tuple(map(watching, stages)))
    having = [i for i in range(5) if held[i] and bad.sizes[i]]
    for r in (3, 4, 5): check.test_eq(sorted(i for q, i in asked if q == r), having)


def test_clients_that_drop_out_still_get_the_whole_model():
    "They send no table."
    z = 4*6*6*8 # bytes of one representation: 4 channels of 6x6 pixels in double precision
    stages = stages_of(mfcl(**small, dropout=.4), 4)
    *_, fewer = rounds(Loop(fed), stages)
    sent = [i for i, c in enumerate(fewer.clients) if c['offers']]
    check.test_eq((len(sent), fewer.up[-1]), (3, 16 * sum(fed.sizes[i] for i in sent) * z))
    chi = fewer.servers['rserver']['chi.1.weight']
    _, tested = clients_at(Loop(fed), stages, fewer, 'merged')
    for c in tested.values(): check.test_eq(c['chi.1.weight'], chi)
    everybody = run(fed, mfcl(**small, dropout=0.), 4)
    check.test_ne(everybody.servers['rserver']['chi.1.weight'].tolist(), chi.tolist())


def test_impossible_settings_are_refused():
    "In words."
    with check.expect_fail(ValueError, contains='dropout must lie in [0, 1)'):
        METHODS.resolve('mfcl(dropout=1.0)')
    with check.expect_fail(ValueError, contains='5 rounds of phase 1 and one to hand over do not fit into 5'):
        stages_of(mfcl(phase1=5), 5)
    with check.expect_fail(ValueError, contains="must be 'across' or 'twins'"):
        METHODS.resolve('mfcl(positives="far")')
    with check.expect_fail(ValueError, contains="need two pairs of each image, got pairs=1"): mfcl(pairs=1)


def test_secure_aggregation_and_datamix_change_what_they_should():
    "The average by rounding alone; what is sent, but not phase 1."
    everybody = run(fed, mfcl(**small, dropout=0.), 4)
    sealed, mixed = run(fed, mfcl(**small, secure=True), 4), run(fed, mfcl(**small, mix=True), 4)
    for k, v in everybody.servers['gserver'].items():
        check.test_close(sealed.servers['gserver'][k], v, eps=1e-4)
        check.test_eq(mixed.servers['gserver'][k], v)
    def differ(other, server, k):
        check.test_ne(other.servers[server][k].tolist(), everybody.servers[server][k].tolist())
    differ(sealed, 'gserver', 'enc.0.weight')
    differ(mixed, 'rserver', 'chi.1.weight')


def test_phase_1_of_one_client_is_plain_training():
    "With a full batch."
    single = toy((12,), needs=needs, batch_size=12, opt=Adam(.01))
    got = run(single, mfcl(phase1=3), 4).servers['gserver']
    net = copy.deepcopy(single.nets['toy'])
    opt = torch.optim.Adam([*net['enc'].parameters(), *net['dec'].parameters()], .01)
    for r in range(3):
        b, = batches(single, 0, Sweep(reconstruct, AUTOENCODER, views=2), (r, 'local', 0))
        opt.zero_grad()
        reconstruction(net['dec'](net['enc'](b.views)), b.views).backward()
        opt.step()
    for k, v in got.items(): check.test_close(v, net.state_dict()[k], eps=1e-12)
