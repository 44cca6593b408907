"""No peer, file or page is trusted: odd messages are refused by name or harmless, in both directions and for
every method, a round goes on without their sender, and a flipped bit in a stored file is noticed."""
import copy
import functools
import io
import json
import os
import random
import shutil
import threading
import tracemalloc
import warnings
import zipfile
import zlib
from dataclasses import replace
from multiprocessing.connection import Client

import numpy as np
import pytest
import torch
from golden import golden_run
from federations import METHODS, has, made
from given import each, refusal

from fedcl_repro.federation.exchange import (
    ClientSide, ServerSide, expected_by_client, from_bytes, known_to, received, run_apart, samples_in,
    score_clients, score_in, to_bytes, upload_in)
from fedcl_repro.federation.fed import toy
from fedcl_repro.federation.loop import Loop
from fedcl_repro.federation.messages import BadMessage, Deferred, Roster, Rows
from fedcl_repro.federation.method import Method, stages_of
from fedcl_repro.data.own_data import own_dataset
from fedcl_repro.federation.privacy import secure_aggregation
from fedcl_repro.federation import rounds
from fedcl_repro.federation.rounds import Replies, server_of, stage_of
from fedcl_repro.federation.schema import ASKED, Expected, Schema, check_said, sent_numbers
from fedcl_repro.distributed.flower import Courier
from fedcl_repro.core import Spec, parse_spec
from fedcl_repro.distributed import resident
from fedcl_repro.distributed.nodes import (
    Node, SharedPlan, dealt, write_private)
from fedcl_repro.distributed.resident import answered
from fedcl_repro.runs.models import read_models
from fedcl_repro.publish.execute import read_verdicts
from fedcl_repro.runs.run import Run, config, dataset, federation, methods, run_id, stages
from fedcl_repro.runs.store import (
    DamagedRun, NotKept, Store, file_digest, load_checkpoint, locked, save_checkpoint)
from fedcl_repro.runs.rows import read_rows
from fedcl_repro.runs.workers import lacking, train_all
from fedcl_repro.runs.session import usable_checkpoint
from fedcl_repro.runs.watch import Extras

ODD_VALUES = (
    'x', -1, 2**62, 1e308, float('inf'), float('nan'), None, True, [], [[[[]]]], {'a': 1}, 3.5, 10**30)
ODD_NUMBERS = float('nan'), float('inf'), 1e300, -5., 2.**62


def odd_bytes(content, rng):
    "Bytes with a few errors."
    at, n = rng.randrange(len(content)), rng.randrange(1, 60)
    kind = rng.randrange(5)
    if kind == 0: return content[:at] + bytes([content[at] ^ (1 << rng.randrange(8))]) + content[at + 1:]
    if kind == 1: return content[:at]
    if kind == 2: return content[:at] + content[at + n:]
    if kind == 3: return content[:at] + rng.randbytes(n) + content[at:]
    return content[:at] + content[max(0, at - n):]


def odd_tensor(v, rng):
    "A tensor of another shape or type, or with other numbers."
    kind = rng.randrange(8)
    types = torch.float16, torch.complex64, torch.int64, torch.bool, torch.float32, torch.uint8
    if kind == 0: return v.to(rng.choice(types))
    if kind == 1: return v[:-1] if v.ndim else v[None]
    if kind == 2: return torch.cat([v, v]) if v.ndim else v.expand(3)
    if kind == 3: return v.flatten()
    if kind == 4: return v[..., None]
    if not v.numel() or not v.is_floating_point(): return ~v if v.dtype == torch.bool else v + 2**40
    v = v.clone()
    v.view(-1)[rng.randrange(v.numel())] = rng.choice(ODD_NUMBERS)
    return v


def odd_entry(v, rng):
    if isinstance(v, Rows):
        if rng.random() < .3: return v.value.nan_to_num()
        if rng.random() < .3: return Rows(v.value.nan_to_num(), torch.ones_like(v.have))
        value = odd_tensor(v.value.nan_to_num(), rng)
        return Rows(value, v.have) if len(value.shape) and len(value) == len(v.have) else value
    if isinstance(v, Deferred):
        if rng.random() < .5: return torch.zeros(2, 2)
        table = copy.copy(v)
        object.__setattr__(table, 'make', lambda *at: odd_tensor(v.make(*at), random.Random(0)))
        return table
    return odd_tensor(v, rng)


def odd_message(content, rng):
    "A message with something else in it than an honest peer sends."
    if rng.random() < .4: return odd_bytes(content, rng)
    message, about = from_bytes(content)
    what = rng.choice(['value', 'field', 'field', 'field', 'lacks', 'more', 'other'])
    if what == 'value' and about: about[rng.choice(list(about))] = rng.choice(ODD_VALUES)
    elif what == 'lacks' and message: message.pop(rng.choice(list(message)))
    elif what == 'other' and about: about.pop(rng.choice(list(about)))
    elif what == 'field' and message:
        name = rng.choice(list(message))
        message[name] = odd_entry(message[name], rng)
    else: message |= {rng.choice(['head.weight', 'more', 'opt.m', '']): torch.ones(2)}
    return to_bytes(message, **about)


class Recorded:
    "A federation between its second and its third round, and what passes in the third."
    def __init__(self, name, most=10**9):
        self.fed = toy((9, 12, 8), batch_size=4, **has(name))
        self.make = lambda: made(name, 3)
        self.server, self.apart = run_apart(self.fed, self.make, 2)
        self.before = dict(self.server.servers), [list(self.apart.fields), self.kept()]
        self.apart.seen.clear()
        self.server.one_round()
        self.after = self.server.servers
        self.honest = {i: (down, up) for kind, i, down, up in self.apart.seen}
        self.used = 0   # messages that were not refused
        self.most = most # of them to train and serve with; the others are only read
        self.back()

    def kept(self): return [(c.session, c.last) for c in self.apart.clients]

    def back(self):
        "To where it was between the two rounds."
        self.server.servers, (self.apart.fields, kept) = dict(self.before[0]), copy.copy(self.before[1])
        self.apart.fields = list(self.apart.fields)
        for c, (c.session, c.last) in zip(self.apart.clients, kept): pass
        self.server.round, self.server.refused, self.server.traffic = 2, [], []

    def up(self, content):
        "Whether the server refuses this message of client 1; if not, it goes on with it."
        server, (stage, place) = self.server, stage_of(self.server.stages, 2)
        fields, tables = server_of(server.fed, stage, server.servers), dict(server.tables)
        replies = Replies(server.fed, stage.method, fields)
        def read(i, content): return upload_in(server, place, replies, i, content)
        messages = server.understood({1: content}, read)
        self.used += 1 in messages
        if 1 in messages and self.used <= self.most:
            messages |= server.understood({i: up for i, (_, up) in self.honest.items() if i != 1}, read)
            assert len(messages) == 3
            roster = Roster(2, (0, 1, 2), tuple(server.fed.sizes), server.session)
            check_well(received(server, stage, fields, messages, roster))
        server.tables = tables
        return self.told()

    def told(self):
        refused, self.server.refused = self.server.refused, []
        assert all(i == 1 and why for _, i, why in refused)
        return bool(refused)

    def down(self, kind, content):
        "Whether client 1 refuses this message; it answers the next one in either case."
        client = self.apart.clients[1]
        client.fields, _ = from_bytes(self.apart.fields[1])
        before, kept = client.fields, (client.session, client.last)
        if self.used >= self.most:
            def expect(about): return expected_by_client(client, kind, check_said(about, ASKED[kind]))
            try: return not from_bytes(content, expect=expect)
            except ValueError: return True
        word, answer = answered(client, kind, content)
        self.used += word == b'ok'
        if word == b'ok':
            check_well({k: v for k, v in client.fields.items() if k in before and k != 'contrast'})
        else: assert word and client.fields is before
        client.session, client.last = kept
        return word != b'ok'


def check_well(fields):
    for k, v in fields.items():
        v = v.value[v.have] if isinstance(v, Rows) else v
        assert not v.is_floating_point() or not v.isnan().any(), k


def pelted(name, n, seed, most=10**9):
    "How many of n odd messages were refused."
    rec, rng, refused = Recorded(name, most), random.Random(f'{name}/{seed}'), 0
    for k in range(n):
        if k % 2: refused += rec.up(odd_message(rec.honest[1][1], rng))
        else: refused += rec.down('turn', odd_message(rec.honest[1][0], rng))
    return rec, refused


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('name', METHODS)
def test_odd_messages_are_refused_or_harmless(name):
    "200 of each method, and a round without the refused client ends as if that client had been silent."
    rec, refused = pelted(name, 200, 0, most=6)
    assert refused > 100
    deliver = rec.server.deliver
    def end(answer_of_1):
        rec.back()
        def delivered(kind, contents):
            answers = deliver(kind, contents)
            if kind == 'turn': answers.pop(1) if answer_of_1 is None else answers.update({1: answer_of_1})
            return answers
        rec.server.deliver = delivered
        rec.server.one_round()
        return rec.server.servers
    silent, garbled = end(None), end(b'PK\x05\x06' + bytes(18)) # an archive without anything in it
    assert [(i, bool(why)) for _, i, why in rec.server.refused] == [(1, True)]
    for s, fields in silent.items():
        for k, v in fields.items():
            if isinstance(v, torch.Tensor): assert torch.equal(v.nan_to_num(), garbled[s][k].nan_to_num()), k


@pytest.mark.nightly
@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('name', METHODS)
def test_twenty_thousand_odd_messages(name): assert pelted(name, -(-20_000 // len(METHODS)), 1)[1] > 0


def test_odd_answers_to_hello_and_tests():
    "Each is refused with a reason, and a whole number stays a whole number."
    rng = random.Random(0)
    hello, score = to_bytes({}, n=20, client=1), to_bytes({}, n=9, correct=7, loss=3.5)
    assert samples_in(1, hello) == 20 and score_in(1, score)[1:4] == (9, 7, 3.5)
    server = two_clients()
    for content, read in ((hello, samples_in), (score, score_in)):
        for _ in range(300):
            found = server.understood({1: odd_message(content, rng)}, read)
            for value in found.values():
                n = value if read is samples_in else value.n
                assert type(n) is int and 0 <= n <= 2**24
    assert len(server.refused) > 400 and all(why for *_, why in server.refused)


ODD_HELLOS = dict(
    infinity=float('inf'), huge=1e308, nan=float('nan'), negative=-1, half=2.5, word='20', yes=True,
    none=None, beyond=2**62, list=[20])


def two_clients(): return ServerSide(known_to(toy((20, 33))), stages_of(Method(), 1), None)


def in_place_of(deliver, kind, i, content):
    "A `deliver` that replaces client i's answers to one kind of message."
    def delivered(asked, contents):
        answers = deliver(asked, contents)
        return answers | {i: content} if asked == kind and i in answers else answers
    return delivered


@pytest.mark.parametrize('n', ODD_HELLOS.values(), ids=ODD_HELLOS)
def test_an_odd_hello_leaves_its_client_out(n):
    "The round is that of the other two, and no weight of the mean is the odd number."
    fed, make = toy((20, 33, 16)), lambda: stages_of(Method(), 1)
    silent, odd = (run_apart(fed, make, 0) for _ in range(2))
    content = to_bytes({}, n=n, client=1)
    odd[0].deliver = in_place_of(odd[1], 'hello', 1, content)
    def without_1(kind, contents): return silent[1](kind, {i: c for i, c in contents.items() if i != 1})
    silent[0].deliver = without_1
    for server in odd[0], silent[0]:
        server.introduced.clear()
        server.one_round()
    assert {i for _, i, why in odd[0].refused if "'n' must be a whole number" in why} == {1}
    for k, v in silent[0].servers['server'].items(): assert torch.equal(v, odd[0].servers['server'][k]), k


ODD_SCORES = dict(
    more_right_than_all=dict(correct=10), words=dict(correct='all'), infinity=dict(n=float('inf')),
    negative=dict(loss=-1.), nan=dict(loss=float('nan')), endless=dict(loss=float('inf')),
    half=dict(correct=1.5), more=dict(predicted=[1, 2]), another=dict(client=0), less=None)


@pytest.mark.parametrize('change', ODD_SCORES.values(), ids=ODD_SCORES)
def test_an_odd_score_is_refused(change):
    content = to_bytes({}, **(dict(n=9, correct=7, loss=3.5) | change if change else dict(n=9)))
    server = two_clients()
    assert not server.understood({1: content}, score_in) and server.refused[0][1] == 1


def test_a_long_turn_is_known_by_its_end(monkeypatch):
    "A client hashes the end of a message, where the sums of all its parts are, not the whole."
    run = Run.of('fedavg', n_clients=2, n_rounds=2, scarcity='all_clients(share=0.05)')
    fed = federation(run)
    client = ClientSide(Loop(known_to(fed, 0)), stages(run), 0)
    net, about = fed.init[fed.arch[0]], dict(round=0, who=[0], n=[fed.sizes[0]])
    honest = to_bytes(net, **about)
    once = client.answer('turn', honest)
    monkeypatch.setattr('time.time', lambda: 2e9)
    assert to_bytes(net, **about) == honest, 'a message does not say when it was written'
    assert client.answer('turn', honest) == once
    middle = list(net)[len(net) // 2]
    other = to_bytes(net | {middle: net[middle] + 1e-3}, **about)
    assert len(other) > 200_000
    with pytest.raises(ValueError, match='round 0 came after round 0'): client.answer('turn', other)


def with_head(head, numbers=b''):
    "Bytes with this line of JSON and the right checksum."
    content = numbers + b'\n' + head
    return content + zlib.crc32(content).to_bytes(4, 'little')


MEGABYTES = 10 * 2**20
LONG = dict( # 10 MB each; parsed, they take up to 25 times as much
    lists=b'[],' * (MEGABYTES // 3) + b'[]',
    objects=b'{},' * (MEGABYTES // 3) + b'{}',
    deep=b'[' * MEGABYTES,
    numbers=b'1,' * (MEGABYTES // 2) + b'1',
    words=b'"",' * (MEGABYTES // 3) + b'""',
    one_word=b'"' + b'x' * MEGABYTES + b'"',
)
LONG = {k: with_head(b'{"about":{"n":1,"client":1},"fields":{"a":[' + v + b']}}') for k, v in LONG.items()}
LONG |= {
    'names': with_head(b'{"about":{},"fields":{%s}}' % b','.join(b'"%d":1' % k
                                                                 for k in range(MEGABYTES // 12))),
    'numbers of fields': with_head(b'{"about":{"n":1,"client":1},"fields":{}}', bytes(MEGABYTES)),
    'lines': with_head(b'{"about":{"n":1,"client":1},"fields":{}}', b'\n' * MEGABYTES),
}


@each('content', {name: [content] for name, content in LONG.items()})
def test_a_long_message_is_refused_before_it_is_parsed(content):
    "By the server in each kind of answer, and by a client in each kind of question."
    server = two_clients()
    client = ClientSide(Loop(known_to(toy((20, 33)), 1)), stages_of(Method(), 1), 1)
    replies = Replies(server.fed, server.stages[0].method, {})
    def upload(i, content): return upload_in(server, 0, replies, i, content)
    reads = [functools.partial(server.understood, {1: content}, read)
             for read in (samples_in, score_in, upload)]
    reads += [lambda kind=kind: answered(client, kind, content)[1] for kind in ASKED]
    server.understood({1: to_bytes({})}, upload) # the forms are rehearsed
    answered(client, 'turn', to_bytes({}))
    for read in reads:
        tracemalloc.start()
        assert not read()
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < 2**21, f'{peak / 2**20:.0f} MB for {len(content) / 2**20:.0f} MB'


def test_what_one_message_takes_of_memory():
    "A few bytes that claim gigabytes are refused before a tensor is made."
    server, apart = run_apart(toy((20, 33, 16)), lambda: made('fedavg', 3), 1)
    honest = next(up for kind, i, _, up in apart.seen if kind == 'turn' and i == 1)
    numbers, _, head = honest[:-4].rpartition(b'\n')
    head = json.loads(head)
    head['fields']['head.bias']['shape'] = [10**11]
    content = with_head(json.dumps(head).encode(), numbers)
    replies = Replies(server.fed, server.stages[0].method, {})
    assert not server.understood({1: content}, lambda i, c: upload_in(server, 0, replies, i, c))
    assert 'head.bias' in server.refused[0][2]


EMPTY = ([0, 350_000_000], [350_000_000, 0], [-1, -350_000_000], [0] * 60, [0, -1], [0, 2**62, 0],
         [2**62, 2**62], [.5, 0])


@pytest.mark.parametrize('shape', EMPTY, ids=str)
@pytest.mark.parametrize('name, field', [('fsl', 'smashed'), ('fsl', 'labels'), ('fedcosr', 'mean'),
                                         ('fedcosr', 'body.0.bias'), ('mfcl', 'z')])
def test_an_empty_field_is_as_short_as_others(name, field, shape):
    "No early return of the schema lets a length pass that is not that of an honest message."
    fed = toy((9, 12, 8), batch_size=4, **has(name))
    schema = Schema(known_to(fed), made(name, 3))
    forms = [schema.forms('upload', place, 1) for place in range(len(schema.stages))]
    form = next(some[field] for some in forms if field in some)
    said = dict(kind=form.kind, dtype=form.dtype, stored=False)
    for lengths in (shape, shape + [*form.shape], [*form.shape] + shape):
        with pytest.raises(BadMessage, match=f'field {field!r}'):
            Expected({field: form}, 12).check_form(field, said, tuple(lengths))


@pytest.mark.parametrize('name', METHODS)
def test_a_client_without_samples_sends_what_is_expected(name):
    fed = toy((9, 0, 8), batch_size=4, **has(name))
    server, _ = run_apart(fed, lambda: made(name, 2), 2)
    assert not server.refused


def changed(entry, change):
    "An entry of a message with other numbers. `change`: those that are sent -> others."
    if isinstance(entry, Deferred): return replace(entry, make=lambda *at: change(entry.make(*at)))
    if not isinstance(entry, Rows): return change(entry)
    value = entry.value.clone()
    value[entry.have] = change(value[entry.have])
    return Rows(value, entry.have)


def times(factor, *names):
    "A change of messages: these fields, or all, are `factor` times as large."
    def change(message, floats):
        return message | {k: changed(floats[k], lambda t: factor * t) for k in names or floats}
    return change


def one_number(name, value=1e9):
    def put(t):
        t = t.clone()
        t.view(-1)[0] = value
        return t
    return lambda message, floats: message | {name: changed(floats[name], put)}


def floats_in(message, server, r, i):
    "The fields of client i's message in round r whose numbers are real, not all 0, and no counts."
    forms = server.schema.forms('upload', stage_of(server.stages, r)[1], i)
    sent = {k: sent_numbers(v) for k, v in message.items() if not forms[k].counts}
    return {k: message[k] for k, v in sent.items() if v.is_floating_point() and bool(v.any())}


SILENT = {'local', 'local_views'} # they send nothing that is averaged


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('name', METHODS)
def test_a_value_that_would_end_a_training_is_refused(name):
    "The whole message, or one field of it, is many times as large; its sender is named, and no other."
    rec = Recorded(name, most=0)
    message, about = from_bytes(rec.honest[1][1], dict(rec.server.tables.get(1, {})))
    floats = floats_in(message, rec.server, 2, 1)
    def refused(change): return rec.up(to_bytes(change(message, floats), **about))
    assert not refused(times(1)) and bool(floats) == (name not in SILENT)
    assert not refused(times(2, *(k for k in floats if not k.endswith('running_var'))))
    for factor in (1e17, -1e6):
        if floats: assert refused(times(factor))
        for k, v in floats.items():
            if float(sent_numbers(v).abs().max()) * abs(factor) < 1e4: continue
            assert refused(times(factor, k)), k
    for k in floats: assert refused(one_number(k)), k


@pytest.mark.filterwarnings('ignore')
@pytest.mark.parametrize('name', METHODS)
def test_one_message_does_not_end_a_training(name):
    """Client 1 sends its numbers times 1e17 once. It is named, and no other: all train and are tested, among
    them one without training images. A table that is sent in one round only is lost."""
    run = replace(golden_run(name, 'adam', 0), n_rounds=4, participation=1., dtype='float32')
    server, _ = run_apart(federation(run), lambda: stages(run), 0)
    honest, poisoned = server.deliver, []
    def deliver(kind, contents):
        answers = honest(kind, contents)
        if kind != 'turn' or server.round != 2: return answers
        message, about = from_bytes(answers[1], dict(server.tables.get(1, {})))
        poisoned.extend(floats := floats_in(message, server, 2, 1))
        return answers | {1: to_bytes(times(1e17)(message, floats), **about)}
    server.deliver = deliver
    for _ in range(run.n_rounds): server.one_round()
    tests = score_clients(server)
    refused = [(r, i) for r, i, why in server.refused if 'its table did not arrive' not in why]
    assert refused == [(2, 1)] * bool(poisoned) and {i for _, i, _ in server.refused} <= {1}
    assert bool(poisoned) == (name not in SILENT)
    assert [score.client for score in tests] == [0, 1, 2, 3, 4]
    for fields in server.servers.values():
        for k, v in fields.items(): assert not bool(sent_numbers(v).isnan().any()), k


def test_tables_that_do_not_belong_together():
    "Two tables fit the schema, each alone; the server finds the client that it cannot use them of."
    rec = Recorded('fsl')
    message, about = from_bytes(rec.honest[1][1])
    table = message['smashed']
    object.__setattr__(table, 'shape', (table.shape[0] - 1, *table.shape[1:]))
    assert rec.up(to_bytes(message, **about))


def test_a_round_that_masks_is_lost_without_one_message():
    "Nothing is read of it, the server stays as it was, and the next round is masked anew."
    fed = toy((20, 33, 16, 9))
    def make(): return stages_of(Method(wire=secure_aggregation(secret=7)), 3)
    server, apart = run_apart(fed, make, 1)
    before, deliver = server.servers['server'], server.deliver
    server.deliver = lambda kind, contents: {i: a for i, a in deliver(kind, contents).items() if i != 2}
    server.one_round()
    assert server.servers['server'] is before
    assert server.refused[0][1] == 2 and 'is lost' in server.refused[0][2]
    server.deliver = deliver
    server.one_round()
    assert server.round == 3 and len(server.refused) == 1


# --- lost messages

def lost(monkeypatch, is_lost):
    "Lose the messages (client, round) of which this says so."
    heard = rounds.receive
    def receive(fed, method, server, messages, roster):
        kept = {i: m for i, m in messages.items() if not is_lost(i, roster.round)}
        return heard(fed, method, server, kept, roster)
    monkeypatch.setattr(rounds, 'receive', receive)


def registered(name): return stages_of(methods().build(Spec.of(name)), 4)


@pytest.mark.parametrize('name', METHODS)
def test_a_round_in_which_nobody_answers(name, monkeypatch):
    "The first rounds, and the one in which a method of several stages changes its stage."
    fed = toy((12, 15, 9), **has(name))
    stages = registered(name)
    for silent in (0, 1), (2,):
        lost(monkeypatch, lambda i, r: r in silent)
        *_, last = rounds.rounds(Loop(fed), stages)
        for client in last.clients:
            weights = {k: v for k, v in client.items() if k.startswith(('body.', 'head.'))}
            assert all(v.isfinite().all() for v in weights.values())
            assert all(v.any() for k, v in weights.items() if k.startswith('body.') and k.endswith('.weight'))
        monkeypatch.undo()


def test_pfedsim_leaves_a_client_alone_whose_messages_are_lost(monkeypatch):
    fed = toy((12, 15, 9))
    lost(monkeypatch, lambda i, r: i == 0)
    *_, last = rounds.rounds(Loop(fed), registered('pfedsim'))
    assert last.clients[0]['body.0.weight'].any()


# --- who is who

class Grid:
    def __init__(self, *nodes): self.nodes = list(nodes)
    def get_node_ids(self): return self.nodes


class Nodes(Courier):
    "Nodes that say which client they are; `says`: node -> number."
    def ask(self, kind, contents): return {n: to_bytes({}, n=8, client=self.says[n]) for n in contents}


def test_a_number_belongs_to_a_node():
    courier = Nodes(Grid(11, 12), 3, 1.)
    courier.says = {11: 0, 12: 1, 13: 1, 14: 2, 15: 2, 16: 7}
    courier.meet()
    assert courier.node_of == {0: 11, 1: 12}
    courier.grid.nodes = [11, 13, 14, 15, 16] # 13 takes the place of 12, two claim one place, one has none
    courier.meet()
    assert courier.node_of == {0: 11}
    assert sorted(who for who, _ in courier.failed) == [f'of node {n}' for n in (13, 14, 15, 16)]
    courier.grid.nodes = [12]
    courier.meet()
    assert courier.node_of == {1: 12}
    fixed = Nodes(Grid(11, 12), 3, 1., {0: 12})
    fixed.says = {11: 0, 12: 0}
    fixed.meet()
    assert fixed.node_of == {0: 12}


def test_a_node_may_keep_its_state_elsewhere(tmp_path):
    "In an empty folder it has taken no session yet."
    run, elsewhere = Run.of('fedper', n_clients=3, n_rounds=2), tmp_path/'elsewhere'
    elsewhere.mkdir()
    dealt(run)[0].save(tmp_path)
    for memory in (None, str(elsewhere)):
        Node(SharedPlan.of(run), 0, str(tmp_path), memory).answer('hello', to_bytes({}, session='a'))
    assert [p.name for p in elsewhere.iterdir()] == ['client-0.state']


class Echo:
    "A node."
    def answer(self, kind, content): return content


def test_a_silent_peer_is_dropped(tmp_path, monkeypatch):
    "It holds nobody up before, and its connection is closed after a time."
    monkeypatch.setattr(resident, 'WELCOME', 1) # seconds
    up = threading.Event()
    node = threading.Thread(target=resident.serve_node, args=(Echo(), str(tmp_path), up.set), daemon=True)
    node.start()
    assert up.wait(60)
    silent = Client(str(tmp_path/resident.SOCKET))
    silent.recv_bytes() # what a peer has to show
    assert resident.ask_resident(str(tmp_path), 'turn', b'x') == (b'ok', b'x')
    assert silent.poll(20)
    with pytest.raises((EOFError, ConnectionError)): silent.recv_bytes()
    resident.ask_resident(str(tmp_path), 'stop', b'')
    node.join()


def test_a_second_node_of_a_folder_is_refused_and_the_first_answers(tmp_path):
    "A socket that a dead node left is no reason."
    place, up = str(tmp_path), threading.Event()
    resident.own_listener(tmp_path)[0].close()
    (tmp_path/resident.SOCKET).touch()
    node = threading.Thread(target=resident.serve_node, args=(Echo(), place, up.set), daemon=True)
    node.start()
    assert up.wait(60)
    with pytest.raises(ValueError, match='another node answers in'): resident.serve_node(Echo(), place)
    assert resident.ask_resident(place, 'turn', b'x') == (b'ok', b'x')
    resident.ask_resident(place, 'stop', b'')
    node.join()


def test_a_path_that_is_too_long_for_a_socket(tmp_path):
    "A node there is refused in words; without one a client is asked as if it had none."
    folder = tmp_path/('x' * 100)
    with pytest.raises(ValueError, match='too long for the path of a socket, at most 103 bytes'):
        resident.serve_node(Echo(), str(folder))
    assert resident.ask_resident(str(folder), 'turn', b'x') is None


def test_what_a_node_keeps_is_its_owners_alone(tmp_path):
    "Whatever the umask."
    folders = [tmp_path/'0', tmp_path/'1']
    for folder in folders: folder.mkdir()
    before = os.umask(0)
    try:
        for i, folder in enumerate(folders): write_private(folder/f'client-{i}.state', b'')
        listener, _ = resident.own_listener(tmp_path/'0')
        listener.close()
    finally: os.umask(before)
    kept = [tmp_path/'0'/'client-0.state', tmp_path/'1'/'client-1.state', tmp_path/'0'/resident.TOKEN]
    assert {oct(path.stat().st_mode & 0o777) for path in kept} == {'0o600'}


# --- deep nesting

DEEP = '[' * 100_000


def deep_message():
    file = io.BytesIO()
    with zipfile.ZipFile(file, 'w') as z: z.writestr('about.json', DEEP)
    return file.getvalue()


def deep_run(folder):
    for name in 'run.json', 'rows.csv': (folder/'x'/name).write_text(DEEP)
    return Store(folder).check('x')


def deep_verdicts(folder):
    (folder/'verdicts'/'a-b-quick.json').write_text(DEEP)
    return read_verdicts(Store(folder), 'a/b', 'quick')


NESTED = {
    'a message': (lambda folder: from_bytes(deep_message()), 'are no message'),
    'a plan': (lambda folder: SharedPlan.of_text(DEEP), 'the plan is no JSON'),
    'a run': (deep_run, 'is damaged'),
    'verdicts': (deep_verdicts, 'a-b-quick.json is no JSON'),
    'a setting': (lambda folder: parse_spec('cnn(k=' + '(' * 100_000), 'cannot read'),
    'a run of a command': (lambda folder: Run.of('fedavg', model='cnn(k=' + '(' * 100_000), 'cannot read'),
}


@each('make, says', NESTED)
def test_deep_nesting_is_an_error_by_name(make, says, tmp_path):
    for name in 'x', 'verdicts': (tmp_path/name).mkdir()
    with refusal(says) as error: make(tmp_path)
    assert len(str(error.value)) < 400


# --- stored bytes

# of a checkpoint
CONTENT = dict(round=1, clients={}, servers={}, up=(), down=(), rows=[], seconds=1., executor='loop')


@pytest.fixture(scope='module')
def trained(tmp_path_factory):
    "A store with one run, its models and a checkpoint of another."
    store, run = Store(tmp_path_factory.mktemp('store')), Run.of('fedavg', n_clients=3, n_rounds=1)
    train_all([run], store, jobs=1, quiet=True, extras=Extras(models=True))
    kept = dict(w=torch.randn(50), n=torch.tensor(3.))
    save_checkpoint(store, 'other', CONTENT | dict(round=3, clients={0: kept}, run='other'))
    return store, run_id(run)


def same(a, b):
    if isinstance(a, dict): return a.keys() == b.keys() and all(same(a[k], b[k]) for k in a)
    if isinstance(a, (tuple, list)): return len(a) == len(b) and all(map(same, a, b))
    if isinstance(a, torch.Tensor): return torch.equal(a, b)
    if isinstance(a, np.ndarray): return np.array_equal(a, b)
    return a.equals(b) if hasattr(a, 'equals') else a == b


READERS = {
    'rows.csv': lambda store, id: store.read(id)[0],
    'run.json': lambda store, id: store.check(id),
    'SHA256SUMS': lambda store, id: (*store.read(id), store.arrays(id, 'predictions')),
    'predictions.npz': lambda store, id: store.arrays(id, 'predictions'),
    'models.pt': lambda store, id: read_models(store, id),
    'other.ckpt': lambda store, id: load_checkpoint(store, 'other') or refuse(),
}


def refuse(): raise ValueError('no checkpoint')


@pytest.mark.parametrize('name', READERS)
def test_a_flipped_bit_is_noticed(name, trained):
    "Fifty in each kind of file: noticed, or the same is read."
    store, id = trained
    path = store.root/name if name == 'other.ckpt' else store.folder(id)/name
    whole, read, rng, noticed = path.read_bytes(), READERS[name], random.Random(0), 0
    right = read(store, id)
    try:
        for _ in range(50):
            at = rng.randrange(len(whole))
            path.write_bytes(whole[:at] + bytes([whole[at] ^ (1 << rng.randrange(8))]) + whole[at + 1:])
            try: assert same(read(store, id), right), f'byte {at} of {name} has changed what is read'
            except ValueError: noticed += 1
    finally: path.write_bytes(whole)
    assert noticed >= (15 if name == 'SHA256SUMS' else 45) # a line may be of a file that is not read here
    print(f'{name}: {noticed} of 50 noticed, the rest read as before')


def test_a_run_in_the_folder_of_another_is_refused(trained, tmp_path):
    "By its name, and by its settings even if somebody has changed the name."
    store, id = trained
    other = Run.of('fedper', n_clients=3, n_rounds=1)
    copied = Store(tmp_path)
    shutil.copytree(store.folder(id), copied.folder(run_id(other)))
    with pytest.raises(DamagedRun, match=f'it is run {id}'): copied.check(run_id(other))
    path = copied.folder(run_id(other))/'run.json'
    path.write_text(path.read_text().replace(id, run_id(other)))
    (path.parent/'SHA256SUMS').unlink()
    with pytest.raises(DamagedRun, match='settings of another run'): copied.read(run_id(other), config(other))


def test_data_with_the_same_checksums_are_other_data(trained, monkeypatch):
    "Images that were made to have the fingerprint of others: a run of the others is not shown as theirs."
    store, id = trained
    run = Run.of('fedavg', n_clients=3, n_rounds=1)
    honest = dataset(run.data, '')
    forged = replace(honest, x=255 - honest.x)
    assert forged.fingerprint == honest.fingerprint and forged.sha256 != honest.sha256
    assert store.read(id, config(run), honest.sha256)[1]['data_sha256'] == honest.sha256
    monkeypatch.setattr('fedcl_repro.runs.run.kept_dataset', lambda *asked: forged)
    assert run_id(run) == id
    with pytest.raises(DamagedRun, match='its images or labels were others'): read_rows([run], store)
    with pytest.raises(DamagedRun, match='were others'): store.check(id, config(run), forged.sha256)


def test_own_data_are_known_by_sha256(monkeypatch):
    # checksums that all agree
    monkeypatch.setattr('fedcl_repro.data.datasets.npy_member', lambda array: (0, 0))
    x, y = np.zeros((8, 1, 8, 8), np.uint8), np.arange(8) % 2
    x[:4] = 255
    one, other = own_dataset(x, y), own_dataset(x[::-1], y)
    assert one.fingerprint == own_dataset(x.copy(), y).fingerprint != other.fingerprint


def test_links_are_not_followed(trained, tmp_path):
    store, id = trained
    linked = Store(tmp_path/'runs')
    linked.root.mkdir()
    linked.folder(id).symlink_to(store.folder(id))
    with pytest.raises(DamagedRun, match='is a link'): linked.read(id)
    linked.checkpoint('other').symlink_to(store.checkpoint('other'))
    assert load_checkpoint(linked, 'other') is None
    assert load_checkpoint(store, 'other')['round'] == 3


def test_a_lock_is_not_truncated_and_no_link(tmp_path):
    store, precious = Store(tmp_path/'runs'), tmp_path/'precious.txt'
    store.root.mkdir()
    precious.write_text('precious')
    (store.root/'a.lock').write_text('precious')
    with locked(store, 'a') as held, locked(store, 'a') as again: assert (held, again) == (True, False)
    assert (store.root/'a.lock').read_text() == 'precious'
    (store.root/'b.lock').symlink_to(precious)
    with pytest.raises(ValueError, match='is a link'), locked(store, 'b'): pass
    (store.root/'c.lock').symlink_to(tmp_path/'nowhere')
    with pytest.raises(ValueError, match='is a link'), locked(store, 'c'): pass
    assert precious.read_text() == 'precious' and not (tmp_path/'nowhere').exists()


@pytest.mark.parametrize(
    'text', ['\x1b[2J', 'a\u202eb', '\x07', '=1+1', '@SUM(A1)', '+A1', '-1 word', '\u200b'])
def test_a_text_that_acts_is_refused(text, trained, tmp_path):
    "In a terminal, or in a spreadsheet that reads the rows."
    store, id = trained
    copied = Store(tmp_path)
    shutil.copytree(store.folder(id), copied.folder(id))
    rows, about = store.read(id)
    rows['metric'] = text
    folder = copied.folder(id)
    rows.to_csv(folder/'rows.csv', index=False)
    (folder/'run.json').write_text(json.dumps(about | dict(sha256=file_digest(folder/'rows.csv'))))
    (folder/'SHA256SUMS').unlink()
    with pytest.raises(DamagedRun, match='has the metric') as refused: copied.read(id)
    assert str(refused.value).isprintable()


def test_a_full_disk_at_the_end_keeps_the_rows(trained, tmp_path, monkeypatch):
    store, id = trained
    rows, about = store.read(id)
    def full(*args, **options): raise OSError(28, os.strerror(28))
    monkeypatch.setattr('numpy.savez_compressed', full)
    monkeypatch.setattr('torch.save', full)
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter('always')
        with pytest.raises(NotKept, match='models.pt of run full is not kept: free some space'):
            Store(tmp_path).write('full', rows, about, models=dict(a=1), predictions=dict(a=np.arange(3)))
    assert [str(w.message).split(' is not kept')[0] for w in said] == \
        ['predictions.npz of run full', 'models.pt of run full']
    assert Store(tmp_path).read('full')[0].equals(rows)


NO_CHECKPOINT = 'is no checkpoint of this run'
FOREIGN = { # name -> (content of a checkpoint, what is said)
    'nothing': (b'', NO_CHECKPOINT),
    'a text': (b'hello', NO_CHECKPOINT),
    'the beginning of an archive': (b'PK\x03\x04', NO_CHECKPOINT),
    'none': (None, NO_CHECKPOINT),
    'a list': ([1], NO_CHECKPOINT),
    'no fields': ({}, NO_CHECKPOINT),
    'a word as its round': (dict(round='a'), NO_CHECKPOINT),
    'another run': (CONTENT | dict(run='another'), NO_CHECKPOINT),
    'more clients': (CONTENT | dict(clients={2: {}}), 'is of another run'),
    'another dtype': (CONTENT | dict(clients={0: {'head.bias': torch.zeros(3).double()}}),
                      'holds networks of another dtype'),
}


@each('content, says', FOREIGN)
def test_a_foreign_checkpoint_is_set_aside(content, says, tmp_path, capsys):
    store, run = Store(tmp_path), Run.of('fedavg', n_clients=2)
    id = run_id(run)
    if isinstance(content, bytes): store.checkpoint(id).write_bytes(content)
    else: save_checkpoint(store, id, content)
    assert usable_checkpoint(run, store, id, False) is None
    assert not store.checkpoint(id).exists() and says in capsys.readouterr().err


@pytest.mark.parametrize('text', ['', 'null', '[]', '{}', '"a"', '{"sha256": 3}', '{', '\0'])
def test_a_damaged_run_is_set_aside(text, tmp_path, capsys):
    store, run = Store(tmp_path), Run.of('fedavg')
    folder = store.folder(run_id(run))
    folder.mkdir()
    (folder/'run.json').write_text(text)
    (folder/'rows.csv').write_text('round,value\n1,0.5\n')
    with pytest.raises(DamagedRun): store.read(run_id(run))
    assert lacking([run], store, None) == [run] and not folder.exists()
    assert 'is damaged' in capsys.readouterr().err and list((tmp_path/'set-aside').iterdir())
