"What a network may be: it trains, or is refused or told before the first round, in a sentence."
import collections
import copy
import functools
import random
import re
from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from given import DIGITS, SMALL, X, Y, Layer, Net, Parts, body, each, refusal, told
from torch.nn.utils import parametrizations, parametrize, prune

from fedcl_repro import simulate
from fedcl_repro.core import Spec
from fedcl_repro.federation.method import Method, stages_of
from fedcl_repro.federation.optimisers import OPTIMISERS
from fedcl_repro.federation.rehearsal import Refused, global_draws, narrow_strides, rehearse
from fedcl_repro.parts.models import Dropout
from fedcl_repro.runs.run import Run, check_federation, federation, methods
from fedcl_repro.runs.simulate import data_spec, fitting, method_spec, model_spec

pytestmark = pytest.mark.usefixtures('registers_as_before')


def run_of(model, method='fedavg', **settings):
    data = data_spec(X, Y)
    settings = fitting(data, SMALL | dict(n_rounds=2) | settings, model, kept=False)
    return Run.of(method_spec(method, kept=False), data=data, **settings)


def said_of(model, method='fedavg', executor='auto', **settings):
    "'trains', or what a rehearsal says; begins with 'refused' where it refuses."
    try: said = told(lambda: check_federation(run_of(model, method, **settings), executor=executor))[1]
    except ValueError as e: return f'refused: {e}'
    return said or 'trains'


def with_layer(make): return lambda shape, n_classes: (body(make()), nn.Linear(16, n_classes))
def with_head(make): return lambda shape, n_classes: (body(nn.ReLU()), make(n_classes))


# --- 1. networks as people write them, as a module and as a function

def ends_in(layer): return Parts(body=body(layer))
def of_layer(fn, **parts): return lambda: ends_in(Layer(fn, **parts))
def forwards(fn): return lambda: type('Mine', (Parts,), dict(forward=fn))()
def head_of(fn): return lambda: Parts(head=Layer(lambda m, z: fn(m.layer(z)), layer=nn.Linear(16, 10)))
def body_of(fn): return of_layer(lambda m, z: fn(z))


def linear(change):
    "A network whose last layer before the head was changed."
    def make():
        layer = nn.Linear(16, 16)
        changed = change(layer)
        return ends_in(changed if isinstance(changed, nn.Module) else layer)
    return make


class StaysInEval(Net):
    def train(self, mode=True): return super().train(False)


def with_branch():
    def forward(m, x): return m.head(m.body(x)) + m.extra(x.flatten(1))
    return type('Skips', (Parts,), dict(forward=forward))(extra=nn.Linear(256, 10))


def half_in_eval():
    net = ends_in(nn.BatchNorm1d(16))
    net.body[2].eval()
    return net


def shared_weights():
    layer = nn.Linear(16, 16)
    return Net(body=body(layer), head=nn.Sequential(layer, nn.Linear(16, 10)))


def listed():
    layer = nn.Linear(16, 16)
    def fn(m, z): return F.linear(z, m.weights[0], m.layer.bias)
    return ends_in(Layer(fn, layer=layer, weights=[layer.weight]))


def hidden():
    layer = nn.Linear(16, 16)
    return ends_in(Layer(lambda m, z: layer(z), layer=layer))


def zeros():
    last = nn.Linear(16, 16)
    for p in last.parameters(): nn.init.zeros_(p)
    return ends_in(Layer(lambda m, z: z + m.last(m.first(z)), first=nn.Linear(16, 16), last=last))


def adapted():
    "A frozen layer with an adapter of low rank."
    def fn(m, z): return m.base(z) + m.up(m.down(z))
    base = nn.Linear(16, 16).requires_grad_(False)
    return ends_in(Layer(fn, base=base, down=nn.Linear(16, 2, bias=False), up=nn.Linear(2, 16, bias=False)))


class Symmetric(nn.Module):
    def forward(self, w): return w.triu() + w.triu(1).T


def by_item(layer):
    if layer.weight.std().item() > 0: layer.bias.data.fill_(layer.weight.abs().max().item())


def by_numpy(layer): layer.weight.data = torch.from_numpy(np.linalg.qr(layer.weight.detach().numpy())[0])
def pretrained(layer): layer.load_state_dict(nn.Linear(16, 16).state_dict())
def pruned(layer): return prune.random_unstructured(layer, 'weight', .5)
def symmetric(layer): return parametrize.register_parametrization(layer, 'weight', Symmetric())
def of_seed(layer): layer.bias.data.fill_(np.random.default_rng(0).random())


def viewed(*first):
    "The first layer, after others, is given `x.view`."
    def fn(m, x):
        x = m.first(x)
        return torch.relu(m.layer(x.view(x.size(0), -1)))
    width = 1024 if first else 256
    return lambda: Parts(body=Layer(fn, first=nn.Sequential(*first), layer=nn.Linear(width, 16)))


def noise(m, z): return z + torch.randn(z.shape[1])
def rare(m, z): return z if random.random() < .99 else 0 * z
def numpy_noise(m, z): return z * float(np.random.random())
def feature_noise(m, z): return F.feature_alpha_dropout(z[..., None], .5, m.training)[..., 0]
def only_in_eval(m, z): return z if m.training else z + torch.rand_like(z)


def grows(m, z):
    m.seen += m.training
    return z * (1 + m.seen)


def recurrent(): return ends_in(Layer(lambda m, z: m.layer(z[..., None])[0][:, -1],
                                      layer=nn.GRU(1, 16, batch_first=True)))


CONSTANT = of_layer(lambda m, z: z @ torch.eye(16))
TRAINED = { # name -> what makes it
    'usual': Net,
    'without forward': Parts,
    'parts in a dict': lambda: nn.ModuleDict(dict(body=body(), head=nn.Linear(16, 10))),
    'in eval mode': lambda: Net().eval(),
    "the library's dropout": lambda: Parts(body=body(Dropout(16, .5))),
    'dropout of nothing': lambda: Parts(body=body(nn.Dropout(0.))),
    'batch norm': lambda: Net(body=body(nn.BatchNorm1d(16))),
    'x.view of grey images': viewed(),
    'a constant in float32': CONSTANT,
    'a number read while it is built': linear(by_item),
    'numpy while it is built': linear(by_numpy),
    'pretrained weights': linear(pretrained),
    'weights of a seed': linear(of_seed),
    'a low-rank adapter': adapted,
    'weight norm': linear(parametrizations.weight_norm),
    'orthogonal weights': linear(parametrizations.orthogonal),
    'symmetric weights': linear(symmetric),
    'a last layer of zeros': zeros,
    'a GRU': recurrent,
}
REFUSED = { # name -> (what makes it, what is said)
    'a ReLU in forward': (forwards(lambda m, x: m.head(torch.relu(m.body(x)))), 'Mine.forward'),
    'a temperature in forward': (forwards(lambda m, x: m.head(m.body(x)) / .5), 'Mine.forward'),
    'forward gives two': (forwards(lambda m, x: (m.body(x), m.head(m.body(x)))), 'Mine.forward'),
    'forward of training alone': (forwards(lambda m, x: m.head(m.body(x) * (1 + m.training))),
                                  'Mine.forward'),
    'forward of two arguments': (forwards(lambda m, x, mask: m.head(m.body(x) * mask)), 'Mine.forward fails'),
    'a branch beside the parts': (with_branch, 'Skips.forward'),
    'a train() of its own': (StaysInEval, 'has a method train()'),
    'a norm in eval mode': (half_in_eval, 'are in eval mode'),
    'one weight in two parts': (shared_weights, 'are one parameter'),
    'a lazy layer': (lambda: Parts(body=nn.Sequential(nn.Flatten(), nn.LazyLinear(16))), 'has no values yet'),
    'complex weights': (lambda: ends_in(nn.Linear(16, 16, dtype=torch.cfloat)), 'is complex'),
    'a norm that counts': (lambda: ends_in(nn.BatchNorm1d(16, momentum=None)), 'momentum=None'),
    'draws: functional': (of_layer(lambda m, z: F.dropout(z, .5, m.training)), 'global random generator'),
    **{f'draws: {fn.__name__}': (of_layer(fn), 'global random generator')
       for fn in (noise, rare, numpy_noise, feature_noise, only_in_eval)},
    'dropout of torch': (lambda: Parts(body=body(nn.Dropout(.5))), 'body.2 (Dropout) draws from a global'),
    'a memory': (of_layer(grows), 'body.2.seen changes in forward'),
    'a spectral norm': (linear(parametrizations.spectral_norm), 'belongs to no network'),
    'x.view after a convolution': (viewed(nn.Conv2d(1, 4, 3, padding=1)), 'take x.flatten(1)'),
    'SyncBatchNorm': (lambda: ends_in(nn.SyncBatchNorm(16)), 'use BatchNorm'),
    'pruned weights': (linear(pruned), ''),
    'weights in a list': (listed, 'forward reads weights'),
    'a tuple of the head': (head_of(lambda z: (z, z)), 'the head returns a tuple'),
    'a dict of the head': (head_of(lambda z: dict(logits=z)), 'the head returns a dict'),
    'an array of the head': (head_of(lambda z: z.detach().numpy()), 'the head returns a ndarray'),
    'one number of the head': (head_of(lambda z: z.mean()), 'the head returns shape ()'),
    'one number for an image': (head_of(lambda z: z.mean(1)), 'the head returns shape (4,)'),
    'scores the other way round': (head_of(lambda z: z.T), 'the head returns shape (10, 4)'),
    'too few scores': (head_of(lambda z: z[:, 1:]), 'the head returns shape (4, 9)'),
    'maps of scores': (head_of(lambda z: z[..., None]), 'the head returns shape (4, 10, 1)'),
    'classes instead of scores': (head_of(lambda z: z.argmax(1)), 'the head returns shape (4,)'),
    'a list of the body': (body_of(lambda z: [z]), 'a list'),
    'a tuple of the body': (body_of(lambda z: (z, z)), 'a tuple'),
    'one vector of the body': (body_of(lambda z: z.mean(0)), 'the body returns shape (16,)'),
}


@pytest.mark.parametrize('form', ['module', 'function'])
@pytest.mark.parametrize('case', [*TRAINED, *REFUSED])
def test_a_network_trains_as_written_or_is_refused_in_a_sentence(case, form):
    make, says = REFUSED.get(case) or (TRAINED[case], 'trains')
    said = said_of(make() if form == 'module' else lambda shape, n_classes: make())
    assert said == 'trains' if case in TRAINED else said.startswith('refused: ') and says in said


def set_to(draw): return linear(lambda layer: layer.bias.data.fill_(draw()))


IN_A_RUN = { # name -> (model, settings, part of what is said)
    'a pair': (with_layer(nn.ReLU), {}, 'trains'),
    'TorchScript': (with_layer(lambda: torch.jit.script(nn.Linear(16, 16))), {}, 'trains'),
    'torch.compile of a part': (lambda shape, n: (torch.compile(body()), nn.Linear(16, n)), {}, 'trains'),
    'torch.compile of a module': (torch.compile(Net()), {}, 'trains'),
    'a GRU, recorded': (recurrent(), dict(executor='graphs'), 'trains'),
    'a constant in float64': (CONSTANT(), dict(dtype='float64'), 'make it a buffer'),
    'weights in a closure': (hidden(), {}, 'do not depend on these weights'),
    'a layer that is not used': (ends_in(Layer(lambda m, z: z, more=nn.Linear(2, 2))), {},
                                 'body.2.more.weight, body.2.more.bias: scores do not depend'),
    'weights of numpy': (lambda shape, n: set_to(np.random.rand)(), {}, 'other weights each time'),
    'weights of random': (lambda shape, n: set_to(random.random)(), {}, 'other weights each time'),
    'all weights frozen': (Net().requires_grad_(False), {}, 'has nothing'),
    **{f'{optimiser}, {executor}': (Net(), dict(optimiser=optimiser, executor=executor), 'trains')
       for executor in ('loop', 'graphs')
       for optimiser in (*OPTIMISERS, 'sgd(cosine_over=2)', 'sgd(cosine_over=2, momentum=.9)',
                         'clipped_sgd(cosine_over=2)')},
}


@each('model, settings, says', IN_A_RUN)
def test_what_is_said_of_a_network_in_a_run(model, settings, says): assert says in said_of(model, **settings)


# --- 2. fields that are not weights

def selected(m, z): return z[:, m.table.long()]
def masked(m, z): return z.masked_fill(~m.table, 0.)
def gained(m, z): return z * (1 + m.table.to(z.dtype).flatten()[0])
def attended(m, z): return z + (z[:, None] * torch.exp(m.table)[None]).sum(2)
def rotated(m, z): return torch.view_as_real(torch.view_as_complex(z.reshape(-1, 8, 2)) * m.table).flatten(1)
def embedded(m, z): return z + F.embedding(m.table, m.positions).sum(0)
def dequantised(m, z): return z @ (m.table.float() * .01).to(z.dtype)


def counted(m, z):
    m.table += 1
    return z


REVERSED, FUTURE = torch.arange(15, -1, -1), torch.full((16, 16), -torch.inf).triu(1)
RELATIVE = torch.arange(16)[:, None] - torch.arange(16) + 15
KEPT = {
    'whole numbers': (selected, REVERSED),
    'int32': (selected, REVERSED.int()),
    'int16': (selected, REVERSED.short()),
    'uint8': (selected, REVERSED.byte()),
    'truth values': (masked, torch.arange(16) % 3 > 0),
    'a truth value': (gained, torch.tensor(True)),
    'relative positions': (gained, RELATIVE),
    'a causal mask': (attended, FUTURE),
    'frequencies of rotations': (rotated, torch.polar(torch.ones(8), torch.arange(8.))),
    'a counter that nothing reads': (counted, torch.tensor(0)),
    'quantised weights': (dequantised, torch.randint(-127, 127, (16, 16), dtype=torch.int8)),
    'no entries': (lambda m, z: z, torch.zeros(0, dtype=torch.long)),
}


@pytest.mark.parametrize('method', ['fedavg', 'fedper', 'fedcosr', 'feddyn'])
@each('fn, table', KEPT)
def test_what_cannot_be_averaged_is_kept(fn, table, method):
    model = with_layer(lambda: Layer(fn, table=table.clone()))
    kept = simulate(method, X, Y, model=model, **SMALL | dict(n_rounds=2)).model(0).body[2].table
    assert kept.dtype == table.dtype and torch.equal(kept, table)


def test_position_numbers_of_an_embedding_and_frozen_whole_numbers_are_kept():
    def positions():
        return Layer(embedded, positions=nn.Parameter(torch.randn(4, 16)), table=torch.arange(4))
    def frozen():
        levels = nn.Parameter(torch.randint(-9, 9, (16, 16), dtype=torch.int8), requires_grad=False)
        return Layer(dequantised, table=levels)
    for make in (positions, frozen): assert said_of(with_layer(make)) == 'trains'


# --- 3. state outside the fields

def centred(m, z, keep):
    "Centred by the batch in training, in tests by a running mean that is kept somehow."
    if not m.training: return z - m.mean
    keep(m, .9 * m.mean + .1 * z.detach().mean(0))
    return z - z.mean(0)


def assign(m, new): m.mean = new
def fill(m, new): m.mean.copy_(new)
def by_data(m, new): m.mean.data = new
def of(keep, **how): return lambda: Layer(functools.partial(centred, keep=keep), **how)


def from_list(m, z):
    if m.training: m.past.append(z.detach().mean(0))
    return z - sum(m.past) / max(1, len(m.past)) if not m.training else z


def from_dict(m, z):
    if m.training: m.past['mean'] = z.detach().mean(0)
    return z - m.past.get('mean', 0.)


SHARED = dict(mean=0.)


def from_global(m, z):
    if m.training: SHARED['mean'] += float(z.detach().mean())
    return z if m.training else z - SHARED['mean']


def from_class(m, z):
    if m.training: type(m).level = getattr(type(m), 'level', 0.) + 1
    return z + getattr(type(m), 'level', 0.)


def first_batch(m, z): # as ActNorm does
    if m.training and not m.ready:
        m.mean.copy_(z.detach().mean(0))
        m.ready.fill_(True)
    return z - m.mean


def counts(m, z):
    if m.training: m.table += 1
    return z / (1 + m.table)


def hooked():
    layer = Layer(lambda m, z: z if m.training else z - m.mean, plain=dict(mean=torch.zeros(16)))
    def hook(m, given, out):
        if m.training: m.mean = out.detach().mean(0)
    layer.register_forward_hook(hook)
    return layer


def used_codes(m, z): # a codebook that moves by how often a code was used
    if m.training: m.counts += F.one_hot(z.argmax(1), 16).sum(0)
    return z + m.counts.to(z.dtype) / (1 + m.counts.sum())


def lazily(m, z):
    if not hasattr(m, 'positions'): m.positions = torch.linspace(0, 1, 16, dtype=z.dtype)
    return z + m.positions


def looks(m, z):
    m.seen += 1
    m.last = z.detach()
    return z


MEMORIES = { # name -> (layer, the name of what is refused)
    'a buffer, assigned': (of(assign, mean=torch.zeros(16)), 'mean'),
    'a buffer that is not persistent': (of(fill, persistent=False, mean=torch.zeros(16)), 'mean'),
    'the same, assigned': (of(assign, persistent=False, mean=torch.zeros(16)), 'mean'),
    'an attribute': (of(assign, plain=dict(mean=torch.zeros(16))), 'mean'),
    'an attribute, filled': (of(fill, plain=dict(mean=torch.zeros(16))), 'mean'),
    'a number': (lambda: Layer(grows), 'seen'),
    'a list': (lambda: Layer(from_list, past=[]), 'something'),
    'a queue': (lambda: Layer(from_list, past=collections.deque(maxlen=3)), 'something'),
    'a dict': (lambda: Layer(from_dict, past={}), 'something'),
    'a variable of the module': (lambda: Layer(from_global), 'something'),
    'an attribute of the class': (lambda: Layer(from_class), 'something'),
    'a hook': (hooked, 'mean'),
    'a flag of the first batch': (lambda: Layer(first_batch, mean=torch.zeros(16), ready=torch.tensor(False)),
                                  'ready'),
    'a count that is read': (lambda: Layer(counts, table=torch.tensor(0)), 'table'),
    'counts of a codebook': (lambda: Layer(used_codes, counts=torch.zeros(16, dtype=torch.long)), 'counts'),
    'a mean in a buffer, filled': (of(fill, mean=torch.zeros(16)), ''),
    'the same through .data': (of(by_data, mean=torch.zeros(16)), ''),
    'a slow mean': (of(lambda m, new: m.mean.lerp_(new, .001), mean=torch.zeros(16)), ''),
    'made at first': (lambda: Layer(lazily), ''),
    'looked at': (lambda: Layer(looks), ''),
    'counted': (lambda: Layer(counted, table=torch.tensor(0)), ''),
    'batch norm': (lambda: nn.BatchNorm1d(16), ''),
    'a constant': (lambda: Layer(lambda m, z: z - m.mean, persistent=False, mean=torch.ones(16)), ''),
}


@pytest.mark.parametrize('dtype', ['float32', 'float64', 'bfloat16'])
@each('make, name', MEMORIES)
def test_a_memory_outside_the_fields_is_refused_by_name(make, name, dtype):
    said = said_of(with_layer(make), dtype=dtype)
    if not name: assert said == 'trains'
    else: assert said.startswith('refused: ') and f'{name} changes in forward' in said.replace('body.2.', '')


# --- 4. predictions that depend on companions

def attention(first):
    layer = nn.MultiheadAttention(16, 2, batch_first=first)
    return Layer(lambda m, z: m.layer(*3 * [z[:, None]])[0][:, 0], layer=layer)


def encoder(first):
    layer = nn.TransformerEncoderLayer(16, 2, 16, dropout=0., batch_first=first)
    return Layer(lambda m, z: m.layer(z[:, None])[:, 0], layer=layer)


COMPANIONS = { # name -> (layer, whether predictions depend on other images)
    'norm without running statistics': (lambda: nn.BatchNorm1d(16, track_running_stats=False), True),
    'minus the mean': (lambda: Layer(lambda m, z: z - z.mean(0)), True),
    'by the spread': (lambda: Layer(lambda m, z: z / (1 + z.var(0, correction=0))), True),
    'a softmax over images': (lambda: Layer(lambda m, z: z.softmax(0)), True),
    'a length over images': (lambda: Layer(lambda m, z: F.normalize(z, dim=0)), True),
    'the largest image': (lambda: Layer(lambda m, z: z - z.amax(0)), True),
    'ranks': (lambda: Layer(lambda m, z: z + z.detach().argsort(0).argsort(0)), True),
    'sums so far': (lambda: Layer(lambda m, z: z.cumsum(0)), True),
    'the next image': (lambda: Layer(lambda m, z: z + z.roll(1, 0)), True),
    'attention over images': (lambda: attention(False), True),
    'an encoder over images': (lambda: encoder(False), True),
    'distances between images': (lambda: Layer(lambda m, z: z + torch.cdist(z, z).mean(1)[:, None]), True),
    'a norm of layers': (lambda: nn.LayerNorm(16), False),
    'a norm of groups': (lambda: nn.GroupNorm(4, 16), False),
    'batch norm': (lambda: nn.BatchNorm1d(16), False),
    'dropout': (lambda: Dropout(16, .5), False),
    'attention in an image': (lambda: attention(True), False),
    'an encoder of an image': (lambda: encoder(True), False),
}


@each('make, depends', COMPANIONS)
def test_predictions_that_depend_on_companions_are_told_with_both_numbers(make, depends):
    said = said_of(with_layer(make))
    if not depends: assert said == 'trains'
    else: assert re.search('depends on the other images of the batch.*a score is .* among ', said)


@pytest.mark.parametrize('n', [1, 2])
def test_a_single_image_is_tested_if_it_occurs(n):
    "And the generators that all code shares are where they were, although building draws from them."
    def pairs(m, z): return z if len(z) > 1 else z.view(0)
    def make(shape, n_classes):
        np.random.rand(), random.random(), torch.rand(1)
        return nn.ModuleDict(dict(body=body(Layer(pairs)), head=nn.Linear(16, n_classes)))
    fed = federation(run_of(make))
    fed.chunk = 4
    fed.put_rows('test', [rows[:4 + n] for rows in fed.rows['train']])
    before = global_draws()
    try: said = rehearse(fed, stages_of(Method(), 1))
    except Refused as e: said = str(e)
    assert 'cannot be tested on' in said if n == 1 else not said
    assert global_draws() == before

# --- 5. maps, and heads that no method reads

class Cosine(nn.Module): # its weight is (k, C)
    def __init__(self, n_classes):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, n_classes) / 4)
        self.scale = nn.Parameter(torch.tensor(10.))

    def forward(self, z): return F.normalize(z, dim=1) @ F.normalize(self.weight, dim=0) * self.scale


def maps(shape, n_classes):
    "A body that returns maps, and a head that pools them."
    head = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4, n_classes))
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU()), head


def tokens(shape, n_classes):
    head = nn.Sequential(Layer(lambda m, z: z.mean(1)), nn.Linear(16, n_classes))
    rows = Layer(lambda m, x: x.reshape(len(x), 16, 16))
    return nn.Sequential(nn.Flatten(2), rows, nn.Linear(16, 16)), head


MAPPED = sorted(n for n, e in methods().items() if e.about['needs'] in ('', 'vectors'))


@pytest.mark.parametrize('model', [maps, tokens], ids=lambda f: f.__name__)
@pytest.mark.parametrize('name', MAPPED)
def test_maps_train_where_no_method_needs_vectors(name, model):
    said = said_of(model, name)
    assert ('compares vectors' in said) == (methods()[name].about['needs'] == 'vectors')
    if 'vectors' not in said and said != 'trains': assert said.startswith('refused: ')


def test_maps_are_measured_flat():
    result = simulate('fedavg', X, Y, model=maps, **SMALL)
    arrays = result.store.arrays(result.rows.run.iloc[0], 'representations')
    assert arrays['z'].shape[1] == 4 * 14 * 14


HEADS = {
    'two layers': lambda n: nn.Sequential(nn.Linear(16, 8), nn.ReLU(), nn.Linear(8, n)),
    'no bias': lambda n: nn.Linear(16, n, bias=False),
    'a weight the other way round, and a scalar': Cosine,
    'a norm before': lambda n: nn.Sequential(nn.LayerNorm(16), nn.Linear(16, n)),
}
PLAIN = [n for n, e in methods().items() if set(e.about['needs'].split()) <= {'vectors', 'linear'}]


@pytest.mark.parametrize('head', HEADS)
@pytest.mark.parametrize('name', sorted(PLAIN))
def test_any_head_trains_where_no_method_reads_it(name, head):
    said = said_of(with_head(HEADS[head]), name)
    linear = 'linear' in methods()[name].about['needs'] and head != 'no bias'
    assert ('a vector for each class from the head' in said) == linear, said
    assert linear or said == 'trains' or name in ('splitmix', 'perfedavg'), said

# --- 6. buffers that belong to one client's weights

def kept(update, **buffers):
    def fn(m, z):
        if m.training: update(m, z.detach())
        return z
    return lambda: Layer(fn, **(buffers or dict(mean=torch.full((16,), .1))))


def moving(m, z): m.mean.mul_(.9).add_(.1 * z.mean(0))
def direction(m, z): m.mean.copy_(F.normalize(m.mean + z.mean(0), dim=0))
def largest(m, z): m.mean.copy_(torch.maximum(m.mean, z.amax(0)))
def squared(m, z): m.mean.copy_((.9 * m.mean**2 + .1 * z.var(0)).sqrt())
def product(m, z): m.mean.mul_(1 + z.abs().mean(0) * m.mean)
def geometric(m, z): m.mean.copy_((.9 * m.mean.log() + .1 * (z.abs().mean(0) + .1).log()).exp())
def rounded(m, z): m.mean.copy_((m.mean + z.mean(0)).round(decimals=1))


def codebook(m, z): # moved by exponential averages, and divided
    hits = F.one_hot((z @ m.codes.T).argmax(1), 16).to(z.dtype)
    m.size.mul_(.9).add_(.1 * hits.sum(0))
    m.total.mul_(.9).add_(.1 * hits.T @ z)
    m.codes.copy_(m.total / (m.size[:, None] + .1))


CODES = dict(size=torch.ones(16), total=torch.randn(16, 16), codes=torch.randn(16, 16))
BUFFERS = { # name -> (layer, whether its buffers may be averaged)
    'a running mean': (kept(moving), True),
    'batch norm': (lambda: nn.BatchNorm1d(16), True),
    'batch norm of one\'s own': (lambda: type('Mine', (nn.BatchNorm1d,), {})(16), True),
    'a constant': (lambda: Layer(lambda m, z: z + m.mean, mean=torch.ones(16)), True),
    'a sum': (kept(lambda m, z: m.mean.add_(z.sum(0))), True),
    'a norm after a mean': (lambda: nn.Sequential(kept(moving)(), nn.ReLU(), nn.BatchNorm1d(16)), True),
    'spectral norm': (lambda: parametrizations.spectral_norm(nn.Linear(16, 16)), False),
    'the old spectral norm': (lambda: nn.utils.spectral_norm(nn.Linear(16, 16)), False),
    'a direction': (kept(direction), False),
    'the largest so far': (kept(largest), False),
    'a spread': (kept(squared), False),
    'a product': (kept(product), False),
    'a geometric mean': (kept(geometric), False),
    'rounded numbers': (kept(rounded), False),
    'a codebook': (kept(codebook, **CODES), False),
}


@each('layer, averaged', BUFFERS)
def test_buffers_are_averaged_only_if_an_average_means_something(layer, averaged):
    said = said_of(with_layer(layer))
    assert said == 'trains' if averaged else said.startswith('refused: ') and "buffers='local'" in said
    local = said_of(with_layer(layer), buffers='local')
    assert local == 'trains' if averaged else 'Each client keeps its own' in local
    alone = said_of(with_layer(layer), 'local')
    assert alone == 'trains' if averaged else not alone.startswith('refused')


def test_a_client_without_test_images_is_no_reason_to_refuse():
    fed = federation(Run.of('fedavg', n_clients=2))
    before = rehearse(fed, stages_of(Method(), 1))
    fed.put_rows('test', [fed.rows['test'][0].cpu(), []])
    assert rehearse(fed, stages_of(Method(), 1)) == before


# --- 7. what is trained, and who owns it

def freeze(*names):
    net = Parts(body=body(nn.BatchNorm1d(16), nn.Linear(16, 16)))
    for name, p in net.named_parameters():
        if name.startswith(names): p.requires_grad_(False)
    return net


@pytest.mark.parametrize('method', ['fedavg', 'fedper', 'fedcosr', 'ditto', 'moon'])
@pytest.mark.parametrize('names', [('body.',), ('body.1',), ('body.1', 'head.weight')], ids=str)
def test_frozen_weights_stay_as_they_are(method, names):
    net = freeze(*names)
    start = {k: p.clone() for k, p in net.named_parameters()}
    more = dict(augmentation='crop_flip') if method == 'moon' else {}
    result = simulate(method, X, Y, model=net, **SMALL, **more)
    for client in range(2):
        now = dict(result.model(client).named_parameters())
        for k, p in start.items():
            same = [v for name, v in now.items() if name == k or name == 'field_' + k.replace('.', '__')]
            if k.startswith(names): assert all(torch.equal(v, p) for v in same), k
            elif method == 'fedavg': assert not torch.equal(same[0], p), k


def test_models_and_the_callers_module_share_nothing():
    net = Net(body=body(nn.BatchNorm1d(16)))
    before = copy.deepcopy(net.state_dict())
    result = simulate('fedavg', X, Y, model=net, **SMALL)
    first, second = result.model(0), result.model(0)
    for p in first.parameters(): p.data.zero_()
    assert all(torch.equal(net.state_dict()[k], v) for k, v in before.items()) and net.training
    assert net.body[2].num_batches_tracked is not None
    for module in second, net: assert any(p.abs().sum() > 0 for p in module.parameters())
    for p in net.parameters(): p.data.zero_()
    assert any(p.abs().sum() > 0 for p in result.model(1).parameters())


def test_a_function_that_returns_one_module_gives_copies():
    one = Net()
    before = copy.deepcopy(one.state_dict())
    def build(shape, n_classes): return one
    result = simulate('fedavg', X, Y, model=build, **SMALL)
    again = simulate('fedavg', X, Y, model=build, **SMALL)
    assert all(torch.equal(one.state_dict()[k], v) for k, v in before.items())
    assert result.rows.value.tolist() == again.rows.value.tolist()


@each('settings, n', [(dict(batch_size=1), 2), ({}, 0)])
def test_batch_norm_on_single_images_is_warned_of(settings, n):
    model = model_spec(Parts(body=body(nn.BatchNorm1d(16))), DIGITS)
    run = Run.of('fedavg', data=data_spec(X, Y), model=model, **SMALL, **settings)
    said = told(lambda: check_federation(run))[1]
    assert (f'{n} of 2 clients learn nothing' in said) == bool(n)
    plain = replace(run, model=Spec.of('mlp', layers=2, width=8))
    assert 'learn nothing' not in told(lambda: check_federation(plain))[1]


def test_a_module_has_its_own_beginning():
    with refusal("beginning='own'"): simulate('fedavg', X, Y, model=Net(), beginning='own', **SMALL)


@pytest.mark.parametrize('layer, refused', [
    (lambda: nn.Conv2d(4, 8, 1, stride=2), True), (lambda: nn.Conv2d(7, 2, 1, stride=(1, 2)), True),
    (lambda: nn.Conv2d(8, 8, 1, stride=2), False), (lambda: nn.Conv2d(1, 8, 1, stride=2), False),
    (lambda: nn.Conv2d(4, 8, 1), False), (lambda: nn.Conv2d(4, 8, 3, stride=2), False)], ids=str)
def test_layers_whose_gradient_is_wrong_on_some_processors_are_named(layer, refused, monkeypatch):
    "By oneDNN with AVX2 and no AVX-512; nothing is trained here, as it may end the process."
    def processor(has): monkeypatch.setattr(torch.backends.cpu, 'get_cpu_capability', lambda: has)
    net = nn.ModuleDict(dict(body=nn.Sequential(nn.ReLU(), layer())))
    processor('AVX2')
    assert narrow_strides(net) == ['body.1'] * refused
    processor('AVX512')
    assert narrow_strides(net) == []


def test_a_network_with_a_narrow_stride_is_refused_before_it_trains(monkeypatch):
    monkeypatch.setattr(torch.backends.cpu, 'get_cpu_capability', lambda: 'AVX2')
    said = said_of('resnet18_cifar(width=4, proj=(64, 64), pred=(64, 64))')
    assert said.startswith('refused: body.') and 'Give it 8 channels' in said, said
