"""Every registered method on a pretended accelerator (see `pretended`): nothing lies on the wrong device, no recorded step asks or copies, and the numbers are the CPU's. On a real one, where there is one: all executors agree."""
import numpy as np
import pytest
import torch
from pretended import Forbidden, Mismatch, accelerator, home
from test_methods import METHODS, WITHOUT_LABELS, final, has, made

from fedcl_repro.federation.evaluation import evaluate
from fedcl_repro.federation.federation import Fed, toy
from fedcl_repro.federation.loop import EXECUTORS
from fedcl_repro.federation.method import NET, Method, Sweep, ce, stages_of
from fedcl_repro.federation.graphs import Graphs
from fedcl_repro.federation.optimisers import SGD, Adam
from fedcl_repro.federation.rounds import rounds, run
from fedcl_repro.parts.models import cnn
from fedcl_repro.study.training import deterministic, thaw

real = pytest.mark.skipif(not torch.cuda.is_available(), reason='no accelerator here')
FLAGS = 'featarc fedala fedema flt heterofl pfedsim splitmix'.split() # keep flags or counters on the CPU


def federation(name, device): return toy((20, 33, 16, 0, 11), participation=.8, p=.3, opt=Adam(), device=device, **has(name))
def brought_home(fields): return {k: home(v) for k, v in fields.items()}


def trained(name, executor, device='cpu'):
    "Clients and servers after three rounds, and what a test says of them."
    fed = federation(name, device)
    execute = EXECUTORS[executor].make(fed)
    *_, state = rounds(execute, made(name, 3))
    return list(map(brought_home, state.clients)), {k: brought_home(v) for k, v in state.servers.items()}, [] if name in WITHOUT_LABELS else evaluate(execute, made(name, 3), state, 'merged')


def assert_close(a, b):
    "The same to rounding: memory of another alignment may add up in another order."
    for c, d in zip(a[0] + list(a[1].values()), b[0] + list(b[1].values())):
        assert c.keys() == d.keys()
        for k in c:
            if isinstance(c[k], torch.Tensor): torch.testing.assert_close(d[k], c[k], rtol=0, atol=1e-9, equal_nan=True, msg=lambda m: f'{k}: {m}')
    assert [r[:3] for r in a[2]] == [r[:3] for r in b[2]]


@pytest.mark.parametrize('name', METHODS)
@pytest.mark.parametrize('executor', ['batched', 'graphs'])
def test_runs_on_an_accelerator(name, executor, monkeypatch):
    expected = trained(name, executor)
    with accelerator(monkeypatch) as device: found = trained(name, executor, device)
    assert_close(expected, found)


@pytest.mark.parametrize('name', FLAGS)
@pytest.mark.parametrize('executor', ['batched', 'graphs'])
def test_resumes_on_an_accelerator(name, executor, monkeypatch):
    with accelerator(monkeypatch) as device:
        fed = federation(name, device)
        execute = EXECUTORS[executor].make(fed)
        states = list(rounds(execute, made(name, 4)))
        for s in states[1:2]:
            found = dict(vars(s), clients=list(map(brought_home, s.clients)), servers={k: brought_home(v) for k, v in s.servers.items()}, rows=[], seconds=0.)
            last = final(name, fed, execute, 4, thaw(found, device)[0])
            for c, d in zip(states[-1].clients, last.clients): assert_close(([brought_home(c)], {}, []), ([brought_home(d)], {}, []))


FAULTS = dict(asks=(lambda c, b, loss: loss * float(loss.detach() > 0), Forbidden), copies=(lambda c, b, loss: loss + torch.zeros(2).to(loss.device).sum(), Forbidden), masks=(lambda c, b, loss: loss + b.x[b.y > 0].sum(), Forbidden),
              mixes=(lambda c, b, loss: loss + (torch.arange(len(b.y)) * b.y).sum(), Mismatch))


@pytest.mark.parametrize('fault', FAULTS)
def test_faults_are_found(fault, monkeypatch):
    wrong, error = FAULTS[fault]
    method = Method(local=(Sweep(lambda net, c, b: (wrong(c, b, ce(net, c, b)[0]), {}), NET),))
    run(fed := toy(), method, 1, EXECUTORS['graphs'].make(fed)) # on a CPU nothing is wrong
    with accelerator(monkeypatch) as device, pytest.raises(error): run(fed := toy(device=device), method, 1, EXECUTORS['graphs'].make(fed))


@real
@pytest.mark.parametrize('name', METHODS)
@pytest.mark.parametrize('executor', ['loop', 'batched', 'graphs'])
def test_executors_agree_on_cuda(name, executor):
    "In float64, with SGD: the loop on a CPU is not asked, as augmentations and masks are drawn on the device."
    if executor == 'loop': fed = toy((20, 33, 16, 0, 11), participation=.8, opt=SGD(.05, .9), **has(name)); other = toy((20, 33, 16, 0, 11), participation=.8, opt=SGD(.05, .9), device='cuda', **has(name))
    else: fed = other = toy((20, 33, 16, 0, 11), participation=.8, p=.3, opt=SGD(.05, .9), device='cuda', **has(name))
    if executor == 'loop' and fed.augment: pytest.skip('drawn on the device')
    a, b = final(name, fed), final(name, other, EXECUTORS[executor].make(other))
    for c, d in zip(a.clients, b.clients):
        assert c.keys() == d.keys()
        for k in c: torch.testing.assert_close(d[k].cpu(), c[k].cpu(), rtol=0, atol=1e-8, equal_nan=True, msg=lambda m: f'{k}: {m}')


@real
@pytest.mark.parametrize('opt', [SGD(.01, .9), Adam()], ids=['sgd', 'adam'])
def test_places_do_not_matter_on_cuda(opt):
    "Steps that are replayed at the same time share nothing: one place or eight, the same bits, in float32 with matrix products large enough to be split."
    deterministic('cuda')
    x, y, n = torch.randint(256, (4000, 32, 32, 3), dtype=torch.uint8), torch.randint(10, (4000,)), np.arange(4000)
    states = []
    for places in (1, 8):
        fed = Fed((x, y), np.split(n, 16), [[]] * 16, {'cnn': lambda: cnn((3, 32, 32), 10, dropout=0.)}, n_classes=10, opt=opt, local_epochs=3, device='cuda')
        states.append(run(fed, Method(), 3, Graphs(fed, places=places)))
    for k, v in states[0].servers['server'].items(): assert torch.equal(v, states[1].servers['server'][k]), k
