"Small federations on which every registered method is tried, and comparisons of where they end."
import functools

import pytest
import torch

from fedcl_repro.core import Spec
from fedcl_repro.federation.fed import toy
from fedcl_repro.federation.loop import Loop
from fedcl_repro.federation.messages import Rows
from fedcl_repro.federation.method import stages_of
from fedcl_repro.federation.rounds import rounds
from fedcl_repro.runs.run import methods

METHODS = sorted(methods())


def has(name): return dict(needs=methods()[name].about['needs'])


def trial(name, what, otherwise):
    "What a method's registration says of its tests: `settings`, `cheap`, `lr` or `width`."
    return methods()[name].about['trial'].get(what, otherwise)


def uneven(name, **settings):
    "Clients with a last batch that is not full, of one image, full; one without images, one with few."
    few = dict(batch_size=16, participation=.8, p=.3)
    return toy((20, 33, 16, 0, 11), **few, **has(name), **settings)


def final(name, fed, execute=None, n_rounds=3, state=None):
    *_, last = rounds(execute or Loop(fed), made(name, n_rounds), state)
    return last


def made(name, n_rounds, **settings):
    "Stages of the method, with what makes it cheap enough for a test."
    settings = trial(name, 'cheap', {}) | settings
    return stages_of(methods().build(Spec.of(name, **settings)), n_rounds)


# What the frame does is tested on a few, which together use all that a method can say; what a method's own
# functions do, of all but those that differ from another one in settings alone. The rest is nightly.
FEW = 'fedala fedavg fedcosr fsl mfcl perfedavg splitmix'.split()
VARIANTS = '''
fedamp_compat fedcosr_no_crl fedcosr_no_la fedcosr_no_sep fedssc_supcon mapl_but mapl_no_graph mapl_plus
mapl_watched pfedme_compat
'''.split()


def daily(names):
    "All methods as cases; those that are not named are nightly."
    return [name if name in names else pytest.param(name, marks=pytest.mark.nightly) for name in METHODS]


OF_THE_FRAME, OWN = daily(FEW), daily(set(METHODS) - set(VARIANTS))
WITHOUT_LABELS = [name for name in METHODS if made(name, 4)[-1].method.probe.represent]


def tensors(state):
    "All numbers of a state, with their names."
    for i, c in enumerate(state.clients):
        for k, v in sorted(c.items()): yield f'client {i}: {k}', v
    for s, fields in state.servers.items():
        for k, v in sorted(fields.items()):
            if isinstance(v, Rows):
                have = v.have.reshape((-1,) + (1,) * (v.value.ndim - 1))
                v = torch.where(have, v.value, 0.)
            yield f'{s}: {k}', v


def assert_equal(a, b, tolerance=0.):
    a, b = dict(tensors(a)), dict(tensors(b))
    assert a.keys() == b.keys()
    for k in a:
        assert torch.equal(a[k].isfinite(), b[k].isfinite()), k
        p, q = (t[t.isfinite()].double() for t in (a[k], b[k]))
        assert not p.numel() or (p - q).abs().max() <= tolerance, f'{k} differs by {(p - q).abs().max():.1e}'


@functools.lru_cache(None)
def reached(name): return list(rounds(Loop(uneven(name)), made(name, 3)))


def alone(name): return reached(name)[-1]


@functools.lru_cache(None)
def looped(name, opt, seed): return final(name, uneven(name, opt=opt, seed=seed), n_rounds=2)
