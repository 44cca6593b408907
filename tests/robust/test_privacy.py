"""What is not promised: nothing protects a client from a dishonest server. Two demonstrations of what such a
server learns, and every page that speaks of privacy says so."""
import json
import re
from pathlib import Path

import pytest
import torch

from fedcl_repro.federation.exchange import Apart, ServerSide, known_to, run_apart, score_clients
from fedcl_repro.federation.fed import pixels, toy
from fedcl_repro.federation.messages import Roster, from_bytes
from fedcl_repro.federation.method import Method, stages_of
from fedcl_repro.federation.privacy import secure_aggregation

ROOT = Path(__file__).parents[2]


def reads_pixel(net, r, c, label, scale):
    "A network of the toy federation whose logit of one class is the pixel, and whose other logits are 0."
    fields = {k: torch.zeros_like(v) for k, v in net.items()}
    dr, dc = min(r, 2), min(c, 2) # the kernel has 3x3 places, and 4x4 positions
    fields['body.0.weight'][0, 0, dr, dc], fields['body.0.bias'][0] = 1., 2. # above 0, for the ReLU
    fields['body.3.weight'][0, (r - dr) * 4 + c - dc] = 1.
    fields['head.weight'][label, 0] = scale
    fields['head.bias'][label] = -2. * scale
    return fields


@pytest.mark.parametrize('label', range(3))
def test_a_server_reads_an_image_by_sums_over_test_images(label):
    """It sends networks and hears sums of losses. Of a class with one test image it reads this image, and of
    others the sum of their images; counts and losses say nothing of a single image, and yet all of it."""
    fed = toy((20, 33))
    rows = fed.rows['test'][1]
    fed.y[rows] = torch.arange(len(rows)) % 3 # one class has none
    fed.y[rows[fed.y[rows] == label][1:]] = (label + 1) % 3 # and this one a single image
    (alone,) = rows[fed.y[rows] == label].tolist()
    server, _ = run_apart(fed, lambda: stages_of(Method(), 2), 1)
    def loss(r, c, label):
        server.servers['server'] = reads_pixel(fed.init['toy'], r, c, label, .01)
        return next(s.loss for s in score_clients(server) if s.client == 1)
    read = torch.tensor([[(loss(r, c, 3) - loss(r, c, label)) / .01 for c in range(6)] for r in range(6)])
    image = pixels(fed.x[alone][None], torch.float64)[0, 0]
    assert (read - image).abs().max() < 1e-6


def test_four_sessions_give_a_server_four_models():
    """Masks hide a model in the sum of a round; a server that asks for another sum in each session solves
    them."""
    fed, everybody = toy((20, 33, 16, 9)), (0, 1, 2, 3)
    def make(): return stages_of(Method(wire=secure_aggregation()), 1)
    class Asks(ServerSide):
        def roster(self, stage):
            return Roster(self.round, self.who, tuple(self.fed.sizes[i] for i in self.who), self.session)
    apart, means = Apart(fed, make), {}
    for left_out in everybody:
        server = Asks(known_to(fed), make(), apart)
        server.who = tuple(i for i in everybody if i != left_out)
        server.introduce()
        server.one_round()
        means[left_out] = server.servers['server']['head.weight'] * sum(fed.sizes[i] for i in server.who)
    total = sum(means.values()) / 3
    _, plain = run_apart(fed, lambda: stages_of(Method(), 1), 1)
    sent = {i: from_bytes(answer)[0]['head.weight'] for kind, i, _, answer in plain.seen if kind == 'turn'}
    for i in everybody:
        model = (total - means[i]) / fed.sizes[i]
        assert (model - sent[i]).abs().max() < 1e-4


SENTENCE = 'nothing protects a client from a dishonest server'
SPEAKS = re.compile(r'\bprivacy\b|\bdishonest|secure aggregation', re.I)
PAGES = [p for p in sorted((ROOT/'nbs').rglob('*.ipynb')) if '.ipynb_checkpoints' not in p.parts]
MORE = (*(f'distributed/{name}' for name in ('nodes', 'resident', 'flower', 'loopback')),
        'federation/exchange',
        'papers/mfcl/attacks', 'papers/mfcl/table8', 'methods/fsl')


def words_of(path):
    "The Markdown that a page has as source."
    cells = json.loads(path.read_text(encoding='utf-8'))['cells']
    return '\n'.join(''.join(c['source']) for c in cells if c['cell_type'] == 'markdown')


def test_every_page_that_speaks_of_privacy_says_what_is_not_promised():
    texts = {str(p.relative_to(ROOT/'nbs').with_suffix('')): words_of(p) for p in PAGES}
    speak = {name for name, text in texts.items() if SPEAKS.search(text)} | set(MORE)
    assert len(speak) >= 12
    assert not [name for name in sorted(speak) if SENTENCE not in texts[name].lower()]
    for name, text in texts.items():
        assert not re.search(r'not read by tests|only what this mean|says nothing about a single', text), name
