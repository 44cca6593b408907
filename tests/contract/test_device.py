"""Every registered method on a pretended accelerator (see `pretended`): nothing lies on the wrong
device, no recorded step asks or copies, and the numbers are the CPU's. On a real one, where there
is one: all executors agree."""
import numpy as np
import pytest
import torch
from pretended import Forbidden, Mismatch, accelerator, home
from federations import METHODS, OWN, WITHOUT_LABELS, final, has, made

from fedcl_repro.federation.evaluation import evaluate
from fedcl_repro.federation.executors import EXECUTORS
from fedcl_repro.federation.fed import Fed, toy
from fedcl_repro.federation.cuda_graphs import Graphs
from fedcl_repro.federation.loop import Loop
from fedcl_repro.federation.method import NET, Method, Sweep, ce, stages_of
from fedcl_repro.federation.optimisers import SGD, Adam
from fedcl_repro.federation.rounds import begin, rounds, run
from fedcl_repro.parts.models import cnn
from fedcl_repro.runs.session import deterministic, from_checkpoint

real = pytest.mark.skipif(not torch.cuda.is_available(), reason='no accelerator here')
FLAGS = 'featarc fedala fedema flt heterofl pfedsim splitmix'.split() # keep flags or counters on the CPU


def federation(name, device='cpu', **settings):
    return toy((9, 16, 8, 0, 11), participation=.8, device=device, **has(name), **settings)


def brought_home(fields): return {k: home(v) for k, v in fields.items()}


def trained(name, executor, device='cpu'):
    "Clients and servers after three rounds, and what a test says of them."
    fed = federation(name, device, p=.3, opt=Adam())
    execute = EXECUTORS[executor].make(fed)
    *_, state = rounds(execute, made(name, 3))
    scores = [] if name in WITHOUT_LABELS else evaluate(execute, made(name, 3), state, 'merged')
    return *home_fields(state), scores


def home_fields(state):
    "Clients and servers."
    return list(map(brought_home, state.clients)), {k: brought_home(v) for k, v in state.servers.items()}


def assert_near(found, expected, tolerance, what):
    torch.testing.assert_close(found, expected, rtol=0, atol=tolerance, equal_nan=True, 
                               msg=lambda m: f'{what}: {m}')


def assert_close(a, b):
    "The same to rounding: memory of another alignment may add up in another order."
    for c, d in zip(a[0] + list(a[1].values()), b[0] + list(b[1].values())):
        assert c.keys() == d.keys()
        for k in c:
            if isinstance(c[k], torch.Tensor): assert_near(d[k], c[k], 1e-9, k)
    assert [r[:3] for r in a[2]] == [r[:3] for r in b[2]]


# a method's own code is the same in both executors; stacks are asked with the methods that keep flags
def runs_on_an_accelerator(name, executor, monkeypatch):
    expected = trained(name, executor)
    with accelerator(monkeypatch) as device: found = trained(name, executor, device)
    assert_close(expected, found)


@pytest.mark.parametrize('name', OWN)
def test_recorded_steps_run_on_an_accelerator(name, monkeypatch):
    runs_on_an_accelerator(name, 'graphs', monkeypatch)


@pytest.mark.parametrize('name', FLAGS)
def test_resumes_on_an_accelerator(name, monkeypatch):
    with accelerator(monkeypatch) as device:
        fed = federation(name, device, p=.3, opt=Adam())
        execute = Graphs(fed)
        states = list(rounds(execute, made(name, 4)))
        clients, servers = home_fields(states[1])
        checkpoint = dict(vars(states[1]), clients=dict(enumerate(clients)), servers=servers)
        checkpoint |= dict(rows=[], seconds=0.)
        last = final(name, fed, execute, 4, from_checkpoint(checkpoint, device, begin(fed))[0])
        assert_close((home_fields(states[-1])[0], {}, []), (home_fields(last)[0], {}, []))


def asks(batch, loss): return loss * float(loss.detach() > 0)
def copies(batch, loss): return loss + torch.zeros(2).to(loss.device).sum()
def masks(batch, loss): return loss + batch.x[batch.y > 0].sum()
def mixes(batch, loss): return loss + (torch.arange(len(batch.y)) * batch.y).sum()


FAULTS = {asks: Forbidden, copies: Forbidden, masks: Forbidden, mixes: Mismatch}


@pytest.mark.parametrize('fault', FAULTS, ids=lambda f: f.__name__)
def test_faults_are_found(fault, monkeypatch):
    def loss(net, client, batch): return fault(batch, ce(net, client, batch)[0]), {}
    def attempt(fed): run(fed, Method(local=(Sweep(loss, NET),)), 1, EXECUTORS['graphs'].make(fed))
    attempt(toy()) # on a CPU nothing is wrong
    with accelerator(monkeypatch) as device, pytest.raises(FAULTS[fault]): attempt(toy(device=device))


@real
@pytest.mark.parametrize('name', METHODS)
@pytest.mark.parametrize('executor', ['loop', 'graphs'])
def test_executors_agree_on_cuda(name, executor):
    "In float64, with SGD. The loop on a CPU is not asked: augmentations and masks are drawn on the device."
    opt = SGD(.05, .9)
    if executor == 'loop': fed, other = federation(name, opt=opt), federation(name, 'cuda', opt=opt)
    else: fed = other = federation(name, 'cuda', p=.3, opt=opt)
    if executor == 'loop' and fed.augment: pytest.skip('drawn on the device')
    a, b = final(name, fed), final(name, other, EXECUTORS[executor].make(other))
    for c, d in zip(a.clients, b.clients):
        assert c.keys() == d.keys()
        for k in c: assert_near(d[k].cpu(), c[k].cpu(), 1e-8, k)


@real
@pytest.mark.parametrize('opt', [SGD(.01, .9), Adam()], ids=['sgd', 'adam'])
def test_streams_do_not_matter_on_cuda(opt):
    """Steps that are replayed at the same time share nothing: on one stream or eight, the same bits,
    in float32 with matrix products large enough to be split."""
    deterministic('cuda')
    store = torch.randint(256, (4000, 32, 32, 3), dtype=torch.uint8), torch.randint(10, (4000,))
    rows = np.split(np.arange(4000), 16)
    archs = {'cnn': lambda: cnn((3, 32, 32), 10, dropout=0.)}
    states = []
    for places in (1, 8):
        fed = Fed(store, rows, [[]] * 16, archs, n_classes=10, opt=opt, local_epochs=3, device='cuda')
        states.append(run(fed, Method(), 3, Graphs(fed, places=places)))
    one, eight = (state.servers['server'] for state in states)
    for k, v in one.items(): assert torch.equal(v, eight[k]), k


@pytest.mark.parametrize('falling', [False, True])
def test_a_recording_is_used_again_while_the_rate_stays(falling):
    def lr(r): return .05 / (r + 1)
    execute, static = Graphs(toy(opt=SGD(lr if falling else .05)), places=2), []
    for _ in rounds(execute, stages_of(Method(), 3)): static.append([s for s, *_ in execute.kept.values()])
    assert [len(some) for some in static] == [2, 2, 2]
    assert (static[0][0] is static[2][0]) is not falling
    assert len(execute.replaced) == 4 * falling
    execute.close()
    assert not execute.replaced and not execute.kept


def test_bfloat16_rounds_the_products_alone_and_in_every_executor():
    trained = {}
    for dtype, kind in ((torch.float32, Loop), (torch.bfloat16, Loop), (torch.bfloat16, Graphs)):
        fed = toy(dtype=dtype, opt=SGD(.05))
        trained[dtype, kind] = run(fed, Method(), 3, kind(fed)).servers['server']['head.weight']
    exact, loop, graphs = trained.values()
    assert {v.dtype for v in trained.values()} == {torch.float32} and loop.equal(graphs)
    first = toy(dtype=torch.float32).init['toy']['head.weight']
    assert 1e-5 < (loop - exact).norm() / (exact - first).norm() < .1
