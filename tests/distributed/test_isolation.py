"""The privacy proof of the library. Every method with its server and its clients held apart: a client
has its own images and labels and nobody else's, the server has none, and what passes between them are
bytes. All of them end in the bits of the loop, in which everything lies in one process; so no method
reads what it should not see, and nothing leaves a client but its messages."""
import copy

import pytest
import torch
from federations import METHODS, alone, assert_equal, final, has, made, uneven

from fedcl_repro.federation.clients import Clients
from fedcl_repro.federation.evaluation import evaluate
from fedcl_repro.federation.exchange import ServerSide, from_bytes, known_to, run_apart, score_clients
from fedcl_repro.federation.fed import toy
from fedcl_repro.federation.loop import Loop
from fedcl_repro.federation.method import Method, stages_of
from fedcl_repro.federation.privacy import secure_aggregation
from fedcl_repro.federation.rounds import State, stage_of

N_ROUNDS = 3


def state_of(fed, server, apart):
    "What server and clients hold, put together again; a client that never took part has nothing kept."
    fields = dict(enumerate(from_bytes(content)[0] for content in apart.fields))
    taken = {i: c for i, c in fields.items() if 'stage' in c}
    return State(server.round, Clients(fed, taken), server.servers)


@pytest.mark.parametrize('name', METHODS)
def test_apart_is_together(name):
    "All fields of server and clients, and the scores of merged and trained models."
    fed = uneven(name)
    def make_stages(): return made(name, N_ROUNDS)
    together = alone(name)
    server, apart = run_apart(fed, make_stages, N_ROUNDS)
    assert_equal(together, state_of(fed, server, apart))
    assert not server.refused
    probe = stage_of(make_stages(), N_ROUNDS)[0].method.probe
    if probe.represent: return # tested on pooled images when together
    for moment in ('merged', 'trained'):
        scores = score_clients(server, moment)
        for a, b in zip(scores, evaluate(Loop(fed), make_stages(), together, moment), strict=True):
            assert a[:4] == b[:4]
            assert a.predicted is None # nothing of a single image leaves a client


@pytest.mark.parametrize('name', ['heterofl', 'splitmix'])
def test_surveys_are_messages(name):
    "What all clients are asked before a test also passes as bytes."
    fed = toy((20, 33, 16, 0, 11), norm=True, **has(name))
    server, apart = run_apart(fed, lambda: made(name, 1), 1)
    scores = score_clients(server)
    together = final(name, fed, n_rounds=1)
    for a, b in zip(scores, evaluate(Loop(fed), made(name, 1), together, 'merged'), strict=True):
        assert a[:4] == b[:4]
    assert {kind for kind, *_ in apart.seen} == {'hello', 'turn', 'survey', 'test'}


def test_a_method_that_reads_others_data_is_found():
    "The proof can fail: a method whose clients look at everybody's labels ends elsewhere."
    def keep(client, fed): return dict(seen=fed.y.double().sum())
    def upload(client): return {k: client[k] + 1e-6 * client['seen'] for k in ('head.weight', 'head.bias')}
    fed = uneven('fedavg')
    def make_stages(): return stages_of(Method(keep=keep, upload=upload), N_ROUNDS)
    server, apart = run_apart(fed, make_stages, N_ROUNDS)
    from fedcl_repro.federation.rounds import rounds
    *_, together = rounds(Loop(fed), make_stages())
    with pytest.raises(AssertionError): assert_equal(together, state_of(fed, server, apart))


def test_a_server_that_reads_data_finds_none():
    fed = uneven('fedavg')
    def serve(server, inbox): return dict(brightest=inbox.compute.fed.x.max())
    with pytest.raises((RuntimeError, IndexError)):
        run_apart(fed, lambda: stages_of(Method(serve=serve), 1), 1)


def test_sealed_at_the_client_opened_at_the_server():
    "Secure aggregation apart: the server reads the mean, and the bits of a simulation with other masks."
    fed = uneven('fedavg')
    def sealing(secret): return stages_of(Method(wire=secure_aggregation(secret=secret)), N_ROUNDS)
    from fedcl_repro.federation.exchange import Apart
    from fedcl_repro.federation.rounds import rounds
    apart = Apart(fed, lambda: sealing(7))
    server = ServerSide(known_to(fed), sealing(5), apart) # it opens without a secret
    for _ in range(N_ROUNDS): server.one_round()
    *_, together = rounds(Loop(fed), sealing(99))
    assert_equal(together, state_of(fed, server, apart))
    sent = [from_bytes(answer)[0] for kind, _, _, answer in apart.seen if kind == 'turn']
    assert {v.dtype for m in sent for v in m.values()} == {torch.int32}


def test_an_absent_client_enters_what_it_has_missed():
    "A client that takes part for the first time in the third stage has the fields of all three."
    def keeping(name): return Method(keep=lambda client, fed: {name: torch.tensor(len(client))})
    from fedcl_repro.federation.method import Stage
    from fedcl_repro.federation.rounds import begin, take_turns
    from fedcl_repro.federation.messages import Roster
    fed = toy()
    stages = tuple(Stage(keeping(name), 1) for name in 'abc')
    c = begin(fed).clients[2]
    turns = take_turns(Loop(fed), stages, {2: c}, {2: {}}, Roster(2, (2,), (16,)))
    after = turns.clients[2]
    assert [int(after[name]) for name in 'abc'] == [len(c), len(c) + 1, len(c) + 2]
    assert int(after['stage']) == 2


def test_a_client_that_is_gone_for_a_round_comes_back():
    "Its messages are missing, the others' round goes on, and later it takes part as it is."
    fed = uneven('fedcosr')
    def make_stages(): return made('fedcosr', 4)
    server, apart = run_apart(fed, make_stages, 1)
    deliver, gone = server.deliver, {'now': True}
    def without_1(kind, contents):
        return deliver(kind, {i: m for i, m in contents.items() if i != 1 or not gone['now']})
    server.deliver = without_1
    before = copy.deepcopy(server.servers)
    server.one_round()
    assert not torch.equal(before['server']['body.0.weight'], server.servers['server']['body.0.weight'])
    gone['now'] = False
    server.one_round()
    assert len(score_clients(server)) == 5
