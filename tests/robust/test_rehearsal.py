"What a run cannot take is refused or told before its first round: networks, by kind, each with members."
import collections
import functools
import random
import warnings

import numpy as np
import pytest
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.utils import parametrizations, parametrize

from fedcl_repro import simulate
from fedcl_repro.data.datasets import load
from fedcl_repro.federation.method import Method, stages_of
from fedcl_repro.federation.optimisers import OPTIMISERS
from fedcl_repro.federation.rehearsal import Refused, global_draws, rehearse
from fedcl_repro.parts.models import Dropout
from fedcl_repro.runs.run import REGISTERS, Run, check_federation, federation, methods
from fedcl_repro.runs.simulate import data_spec, fitting, method_spec

@pytest.fixture(autouse=True)
def registers_as_before():
    "What a test registers is gone after it: other tests send all entries to processes."
    before = {name: dict(register) for name, register in REGISTERS.items()}
    yield
    for name, register in REGISTERS.items():
        for key in set(register) - set(before[name]): del register[key]


DIGITS = load('digits')
X, Y = DIGITS.x[:120], DIGITS.y[:120]
SMALL = dict(n_clients=2, n_rounds=2, partition='quantity(minimum=8)')


def said_of(model, method='fedavg', x=X, executor='auto', **settings):
    "'trains', or what a rehearsal says; begins with 'refused' where it refuses."
    data = data_spec(x, Y)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter('always')
        try:
            settings = fitting(data, SMALL | settings, model, kept=False)
            run = Run.of(method_spec(method, kept=False), data=data, **settings)
            check_federation(run, executor=executor)
        except ValueError as e: return f'refused: {e}'
    told = [str(w.message) for w in said if issubclass(w.category, UserWarning)]
    return ' '.join(t for t in told if not t.startswith('The .grad attribute')) or 'trains' # of TorchScript


def body(*layers): return nn.Sequential(nn.Flatten(), nn.Linear(256, 16), *layers)
def with_layer(make): return lambda shape, n_classes: (body(make()), nn.Linear(16, n_classes))
def with_head(make): return lambda shape, n_classes: (body(nn.ReLU()), make(n_classes))


class Layer(nn.Module):
    "A layer of 16 numbers, with buffers; `fn(layer, z)` is its forward."
    def __init__(self, fn, parameters=(), plain=(), persistent=True, **buffers):
        super().__init__()
        self.fn, self.seen = fn, 0
        for k, v in buffers.items(): self.register_buffer(k, v, persistent)
        for k, v in dict(parameters).items(): self.register_parameter(k, v)
        for k, v in dict(plain).items(): setattr(self, k, v)

    def forward(self, z): return self.fn(self, z)


# --- 1. fields that are not weights

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
@pytest.mark.parametrize('case', KEPT)
def test_what_cannot_be_averaged_is_kept(case, method):
    fn, table = KEPT[case]
    model = with_layer(lambda: Layer(fn, table=table.clone()))
    result = simulate(method, X, Y, model=model, **SMALL)
    kept = result.model(0).body[2].table
    assert kept.dtype == table.dtype and torch.equal(kept, table)


def test_position_numbers_of_an_embedding_and_frozen_whole_numbers_are_kept():
    def positions():
        return Layer(embedded, dict(positions=nn.Parameter(torch.randn(4, 16))), table=torch.arange(4))
    def frozen():
        levels = nn.Parameter(torch.randint(-9, 9, (16, 16), dtype=torch.int8), requires_grad=False)
        return Layer(dequantised, dict(table=levels))
    for make in (positions, frozen): assert said_of(with_layer(make)) == 'trains'


# --- 2. state outside the fields

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


def grows(m, z):
    m.seen += m.training
    return z * (1 + m.seen)


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


FORGOTTEN = {
    'a buffer, assigned': (of(assign, mean=torch.zeros(16)), 'mean'),
    'a buffer that is not persistent': (of(fill, persistent=False, mean=torch.zeros(16)), 'mean'),
    'the same, assigned': (of(assign, persistent=False, mean=torch.zeros(16)), 'mean'),
    'an attribute': (of(assign, plain=dict(mean=torch.zeros(16))), 'mean'),
    'an attribute, filled': (of(fill, plain=dict(mean=torch.zeros(16))), 'mean'),
    'a number': (lambda: Layer(grows), 'seen'),
    'a list': (lambda: Layer(from_list, plain=dict(past=[])), 'something'),
    'a queue': (lambda: Layer(from_list, plain=dict(past=collections.deque(maxlen=3))), 'something'),
    'a dict': (lambda: Layer(from_dict, plain=dict(past={})), 'something'),
    'a variable of the module': (lambda: Layer(from_global), 'something'),
    'an attribute of the class': (lambda: Layer(from_class), 'something'),
    'a hook': (hooked, 'mean'),
    'a flag of the first batch': (lambda: Layer(first_batch, mean=torch.zeros(16), ready=torch.tensor(False)),
                                  'ready'),
    'a count that is read': (lambda: Layer(counts, table=torch.tensor(0)), 'table'),
    'counts of a codebook': (lambda: Layer(used_codes, counts=torch.zeros(16, dtype=torch.long)), 'counts'),
}


@pytest.mark.parametrize('dtype', ['float32', 'float64', 'bfloat16'])
@pytest.mark.parametrize('case', FORGOTTEN)
def test_a_memory_outside_the_fields_is_refused_by_name(case, dtype):
    make, name = FORGOTTEN[case]
    said = said_of(with_layer(make), dtype=dtype)
    assert said.startswith('refused: ') and f'{name} changes in forward' in said.replace('body.2.', '')


def lazily(m, z):
    if not hasattr(m, 'positions'): m.positions = torch.linspace(0, 1, 16, dtype=z.dtype)
    return z + m.positions


def looks(m, z):
    m.seen += 1
    m.last = z.detach()
    return z


HARMLESS = dict(
    filled=of(fill, mean=torch.zeros(16)),
    data_assigned=of(by_data, mean=torch.zeros(16)),
    made_at_first=lambda: Layer(lazily),
    looked_at=lambda: Layer(looks),
    counted=lambda: Layer(counted, table=torch.tensor(0)),
    slow=of(lambda m, new: m.mean.lerp_(new, .001), mean=torch.zeros(16)),
    norm=lambda: nn.BatchNorm1d(16),
    constant=lambda: Layer(lambda m, z: z - m.mean, persistent=False, mean=torch.ones(16)),
)


@pytest.mark.parametrize('dtype', ['float32', 'float64', 'bfloat16'])
@pytest.mark.parametrize('case', HARMLESS)
def test_a_memory_in_the_fields_or_without_effect_trains(case, dtype):
    assert said_of(with_layer(HARMLESS[case]), dtype=dtype) == 'trains'


# --- 3. predictions that depend on companions

def sequence(layer): return Layer(lambda m, z: layer(z[:, None])[:, 0])


class Attention(nn.Module):
    def __init__(self, first):
        super().__init__()
        self.first, self.attention = first, nn.MultiheadAttention(16, 2, batch_first=first)

    def forward(self, z):
        z = z[:, None]
        return self.attention(z, z, z)[0][:, 0]


class Encoder(nn.Module):
    def __init__(self, first):
        super().__init__()
        self.layer = nn.TransformerEncoderLayer(16, 2, 16, dropout=0., batch_first=first)

    def forward(self, z): return self.layer(z[:, None])[:, 0]


DEPENDING = {
    'norm without running statistics': lambda: nn.BatchNorm1d(16, track_running_stats=False),
    'minus the mean': lambda: Layer(lambda m, z: z - z.mean(0)),
    'by the spread': lambda: Layer(lambda m, z: z / (1 + z.var(0, correction=0))),
    'a softmax over images': lambda: Layer(lambda m, z: z.softmax(0)),
    'a length over images': lambda: Layer(lambda m, z: F.normalize(z, dim=0)),
    'the largest image': lambda: Layer(lambda m, z: z - z.amax(0)),
    'ranks': lambda: Layer(lambda m, z: z + z.detach().argsort(0).argsort(0)),
    'sums so far': lambda: Layer(lambda m, z: z.cumsum(0)),
    'the next image': lambda: Layer(lambda m, z: z + z.roll(1, 0)),
    'attention over images': lambda: Attention(False),
    'an encoder over images': lambda: Encoder(False),
    'distances between images': lambda: Layer(lambda m, z: z + torch.cdist(z, z).mean(1, keepdim=True)),
}


@pytest.mark.parametrize('case', DEPENDING)
def test_predictions_that_depend_on_companions_are_told_with_both_numbers(case):
    said = said_of(with_layer(DEPENDING[case]))
    assert 'depends on the other images of the batch' in said and 'a score is' in said and ' among ' in said


ALONE = dict(layer=lambda: nn.LayerNorm(16), attention=lambda: Attention(True), encoder=lambda: Encoder(True),
             group=lambda: nn.GroupNorm(4, 16), norm=lambda: nn.BatchNorm1d(16),
             dropout=lambda: Dropout(16, .5))


@pytest.mark.parametrize('case', ALONE)
def test_predictions_of_single_images_are_not_warned_of(case):
    assert said_of(with_layer(ALONE[case])) == 'trains'


@pytest.mark.parametrize('n', [1, 2])
def test_a_single_image_is_tested_if_it_occurs(n):
    "And the generators that all code shares are where they were, although building draws from them."
    def pairs(m, z): return z if len(z) > 1 else z.view(0)
    def make(shape, n_classes):
        np.random.rand(), random.random(), torch.rand(1)
        return nn.ModuleDict(dict(body=body(Layer(pairs)), head=nn.Linear(16, n_classes)))
    data = data_spec(X, Y)
    fed = federation(Run.of('fedavg', data=data, **fitting(data, SMALL, make, kept=False)))
    fed.chunk = 4
    fed.put_rows('test', [rows[:4 + n] for rows in fed.rows['train']])
    before = global_draws()
    try: said = rehearse(fed, stages_of(Method(), 1))
    except Refused as e: said = str(e)
    assert 'cannot be tested on' in said if n == 1 else not said
    assert global_draws() == before


# --- 4. shapes and kinds of outputs

class Returns(nn.Module):
    "What `fn` makes of the outputs of a linear layer."
    def __init__(self, fn, n=16, m=16):
        super().__init__()
        self.layer, self.fn = nn.Linear(n, m), fn

    def forward(self, z): return self.fn(self.layer(z))


class Cosine(nn.Module): # its weight is (k, C)
    def __init__(self, n_classes):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(16, n_classes) / 4)
        self.scale = nn.Parameter(torch.tensor(10.))

    def forward(self, z): return F.normalize(z, dim=1) @ F.normalize(self.weight, dim=0) * self.scale


def head_of(fn): return with_head(lambda n: Returns(fn, 16, n))
def body_of(fn): return with_layer(lambda: Returns(fn))


NO_OUTPUTS = {
    'a tuple of the head': (head_of(lambda z: (z, z)), 'the head returns a tuple'),
    'a dict of the head': (head_of(lambda z: dict(logits=z)), 'the head returns a dict'),
    'an array of the head': (head_of(lambda z: z.detach().numpy()), 'the head returns a ndarray'),
    'one number of the head': (head_of(lambda z: z.mean()), 'the head returns shape ()'),
    'one number for an image': (head_of(lambda z: z.mean(1)), 'the head returns shape (4,)'),
    'scores the other way round': (head_of(lambda z: z.T), 'the head returns shape (10, 4)'),
    'too few scores': (head_of(lambda z: z[:, 1:]), 'the head returns shape (4, 9)'),
    'maps of scores': (head_of(lambda z: z[..., None]), 'the head returns shape (4, 10, 1)'),
    'a list of the body': (body_of(lambda z: [z]), 'a list'),
    'a tuple of the body': (body_of(lambda z: (z, z)), 'a tuple'),
    'one vector of the body': (body_of(lambda z: z.mean(0)), 'the body returns shape (16,)'),
    'classes instead of scores': (head_of(lambda z: z.argmax(1)), 'the head returns shape (4,)'),
}


@pytest.mark.parametrize('case', NO_OUTPUTS)
def test_outputs_that_are_no_scores_are_refused(case):
    model, says = NO_OUTPUTS[case]
    said = said_of(model)
    assert said.startswith('refused: ') and says in said


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


# --- 5. networks as people write them

class View(nn.Module):
    def __init__(self, conv=False):
        super().__init__()
        self.conv = nn.Conv2d(1, 4, 3, padding=1) if conv else nn.Identity()
        self.layer = nn.Linear(256 * (4 if conv else 1), 16)

    def forward(self, x):
        x = self.conv(x)
        return torch.relu(self.layer(x.view(x.size(0), -1)))


class Net(nn.Module):
    def __init__(self, **parts):
        super().__init__()
        self.body, self.head = body(nn.ReLU()), nn.Linear(16, 10)
        for k, part in parts.items(): setattr(self, k, part)

    def forward(self, x): return self.head(self.body(x))


class Adapted(nn.Module):
    "A frozen layer with an adapter of low rank."
    def __init__(self):
        super().__init__()
        self.base = nn.Linear(16, 16).requires_grad_(False)
        self.down, self.up = nn.Linear(16, 2, bias=False), nn.Linear(2, 16, bias=False)

    def forward(self, z): return self.base(z) + self.up(self.down(z))


class Symmetric(nn.Module):
    def forward(self, w): return w.triu() + w.triu(1).T


def symmetric():
    layer = nn.Linear(16, 16)
    parametrize.register_parametrization(layer, 'weight', Symmetric())
    return layer


def by_item():
    layer = nn.Linear(16, 16)
    if layer.weight.std().item() > 0: layer.bias.data.fill_(layer.weight.abs().max().item())
    return layer


def by_numpy():
    layer = nn.Linear(16, 16)
    layer.weight.data = torch.from_numpy(np.linalg.qr(layer.weight.detach().numpy())[0])
    return layer


def pretrained():
    layer = nn.Linear(16, 16)
    layer.load_state_dict(nn.Linear(16, 16).state_dict())
    return layer


def pruned():
    layer = nn.Linear(16, 16)
    nn.utils.prune.random_unstructured(layer, 'weight', .5)
    return layer


def constant(m, z): return z @ torch.eye(16)
def view(conv): return lambda shape, n: (View(conv), nn.Linear(16, n))


AS_WRITTEN = { # name -> (model, settings, part of what is said)
    'x.view of grey images': (view(False), {}, 'trains'),
    'x.view after a convolution': (view(True), {}, 'take x.flatten(1)'),
    'a constant of float32': (with_layer(lambda: Layer(constant)), dict(dtype='float64'), 'make it a buffer'),
    'the same in float32': (with_layer(lambda: Layer(constant)), {}, 'trains'),
    'SyncBatchNorm': (with_layer(lambda: nn.SyncBatchNorm(16)), {}, 'use BatchNorm'),
    'a number read while it is built': (with_layer(by_item), {}, 'trains'),
    'numpy while it is built': (with_layer(by_numpy), {}, 'trains'),
    'pretrained weights': (with_layer(pretrained), {}, 'trains'),
    'torch.compile of a module': (torch.compile(Net()), {}, 'trains'),
    'weights of numpy': (with_layer(lambda: set_to(np.random.rand())), {}, 'other weights each time'),
    'weights of random': (with_layer(lambda: set_to(random.random())), {}, 'other weights each time'),
    'weights of a seed': (with_layer(lambda: set_to(np.random.default_rng(0).random())), {}, 'trains'),
    'torch.compile of a part': (lambda shape, n: (torch.compile(body()), nn.Linear(16, n)), {}, 'trains'),
    'a low-rank adapter': (with_layer(Adapted), {}, 'trains'),
    'weight norm': (with_layer(lambda: parametrizations.weight_norm(nn.Linear(16, 16))), {}, 'trains'),
    'orthogonal weights': (with_layer(lambda: parametrizations.orthogonal(nn.Linear(16, 16))), {}, 'trains'),
    'symmetric weights': (with_layer(symmetric), {}, 'trains'),
    'pruned weights': (with_layer(pruned), {}, 'refused: '),
    'TorchScript': (with_layer(lambda: torch.jit.script(nn.Linear(16, 16))), {}, 'trains'),
    'weights in a list': (with_layer(lambda: Listed()), {}, 'refused: forward reads weights'),
    'weights in a closure': (with_layer(lambda: closed()), {}, 'do not depend on these weights'),
    'a layer that is not used': (with_layer(lambda: unused()), {},
                                 'body.2.more.weight, body.2.more.bias: scores do not depend'),
    'a last layer of zeros': (with_layer(lambda: zeros()), {}, 'trains'),
    'a GRU': (with_layer(lambda: Recurrent(nn.GRU(1, 16, batch_first=True))), {}, 'trains'),
    'a GRU, recorded': (with_layer(lambda: Recurrent(nn.GRU(1, 16, batch_first=True))),
                        dict(executor='graphs'), 'trains'),
}


OPTIMISED = [*OPTIMISERS, 'sgd(cosine_over=2)', 'sgd(cosine_over=2, momentum=.9)',
             'clipped_sgd(cosine_over=2)']


@pytest.mark.parametrize('executor', ['loop', 'graphs'])
@pytest.mark.parametrize('optimiser', OPTIMISED)
def test_every_optimiser_is_rehearsed_as_in_a_round(optimiser, executor):
    assert said_of(Net(), optimiser=optimiser, executor=executor) == 'trains'


class Listed(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)
        self.weights = [self.layer.weight]

    def forward(self, z): return F.linear(z, self.weights[0], self.layer.bias)


def set_to(value):
    layer = nn.Linear(16, 16)
    layer.bias.data.fill_(value)
    return layer


def closed():
    layer = nn.Linear(16, 16)
    return Layer(lambda m, z: layer(z), plain=dict(layer=layer))


def unused(): return Layer(lambda m, z: z, plain=dict(more=nn.Linear(2, 2)))


def zeros():
    first, last = nn.Linear(16, 16), nn.Linear(16, 16)
    for p in last.parameters(): nn.init.zeros_(p)
    return Layer(lambda m, z: z + m.last(m.first(z)), plain=dict(first=first, last=last))


class Recurrent(nn.Module):
    def __init__(self, layer):
        super().__init__()
        self.layer = layer

    def forward(self, z): return self.layer(z[..., None])[0][:, -1]


@pytest.mark.parametrize('case', AS_WRITTEN)
def test_networks_as_written_train_or_are_refused_in_a_sentence(case):
    model, settings, says = AS_WRITTEN[case]
    assert says in said_of(model, **settings)


# --- 6. buffers that belong to one client's weights

def spectral(): return parametrizations.spectral_norm(nn.Linear(16, 16))
def old_spectral(): return nn.utils.spectral_norm(nn.Linear(16, 16))


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
    'spectral norm': (spectral, False),
    'the old spectral norm': (old_spectral, False),
    'a direction': (kept(direction), False),
    'the largest so far': (kept(largest), False),
    'a spread': (kept(squared), False),
    'a product': (kept(product), False),
    'a geometric mean': (kept(geometric), False),
    'rounded numbers': (kept(rounded), False),
    'a codebook': (kept(codebook, **CODES), False),
}


@pytest.mark.parametrize('case', BUFFERS)
def test_buffers_are_averaged_only_if_an_average_means_something(case):
    layer, averaged = BUFFERS[case]
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
