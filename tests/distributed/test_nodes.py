"""Real Flower nodes on loopback, encrypted and authenticated: they end in the bits of the loop, a node that
dies comes back to its place, one that sends garbage is refused by its name, and no stranger comes in. Skipped
where Flower is not installed; nightly, as Flower starts a process for each message."""
import json
import threading
import time
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip('flwr', reason="Flower is an extra: pip install -e '.[flower]'")
pytestmark = pytest.mark.nightly

from fedcl_repro.cli import main
from fedcl_repro.federation.exchange import from_bytes
from fedcl_repro.federation.loop import Loop
from fedcl_repro.federation.rounds import rounds
from fedcl_repro.distributed.flower import read_app
from fedcl_repro.distributed.resident import ask_resident, serve_node
from fedcl_repro.runs.run import federation, stages

PAGE = Path(__file__).parents[2]/'nbs'/'distributed'/'loopback.ipynb'


def laboratory():
    "What the cells of the page with this tag define."
    cells = json.loads(PAGE.read_text(encoding='utf-8'))['cells']
    code = [''.join(c['source']) for c in cells if 'laboratory' in c['metadata'].get('tags', [])]
    names = {}
    exec('\n'.join(code), names)
    return SimpleNamespace(**names)


page = laboratory()
SMALL = ['--method', 'fedcosr', '--model', 'cnn(k=8)', '--set', 'n_clients=3', '--set', 'batch_size=64',
         '--set', 'scarcity=all_clients(share=0.05)']


@pytest.fixture(scope='module')
def at(tmp_path_factory):
    "A folder with two apps, one of two rounds and one of many, and the data of their clients."
    at = tmp_path_factory.mktemp('nodes')
    for name, n in (('short', 2), ('long', 1000)):
        folders = [str(at/name), '--clients', str(at/'clients')]
        assert main(['flower', *folders, *SMALL, '--set', f'n_rounds={n}']) == 0
    return at


@pytest.fixture(scope='module')
def lab(at):
    "A SuperLink and three SuperNodes; the second and the third have a resident node."
    lab = page.Laboratory(at/'lab', at/'short', at/'clients')
    lab.open()
    for i in range(3): lab.start_node(i)
    for i in (1, 2): lab.start_resident(i)
    page.wait_until(lambda: all((at/'clients'/str(i)/'node.socket').exists() for i in (1, 2)), 120)
    yield lab
    lab.close()


def test_a_node_knows_its_own_data_only(at):
    "Nothing but its client's images is in a node's folder, and each folder has others."
    sizes = {(at/'clients'/str(i)/'train.npz').stat().st_size for i in range(3)}
    assert len(sizes) > 1
    assert {p.name for p in (at/'clients'/'0').iterdir()} >= {'test.npz', 'train.npz'}


def test_bits_of_the_loop(at, lab):
    lab.run(timeout=300)
    lab.wait_for_round(2)
    run = read_app(at/'short').run
    *_, together = rounds(Loop(federation(run)), stages(run))
    got, about = from_bytes((at/'short'/'out'/'server.server').read_bytes())
    assert about['round'] == 2 and got.keys() == together.servers['server'].keys()
    for k, v in together.servers['server'].items(): assert torch.equal(got[k], v), k
    assert not lab.said('client ')
    lab.kill('run')


def test_a_stranger_is_sent_away(lab):
    "A SuperNode whose key is not registered."
    lab.call("ssh-keygen -q -t ecdsa -b 384 -N '' -f stranger")
    command = page.SUPERNODE.format(**lab.about(0) | dict(own=page.free_ports(1)[0]))
    lab.start('stranger', command.replace('key node0', 'key stranger'))
    def said(): return [line for line in logged(lab, 'stranger') if 'Failed to activate SuperNode' in line]
    assert page.wait_until(said, 120)
    assert any('No SuperNode found with the given public key' in line for line in logged(lab, 'link'))
    lab.kill('stranger')


def logged(lab, name): return (lab.folder/f'{name}.log').read_text(errors='replace').splitlines()


class Garbage:
    "Answers whatever it is asked with bytes that are no message."
    def answer(self, kind, content): return b'garbage'


def test_a_node_dies_and_one_sends_garbage(at, lab):
    "The rounds go on without them, and they come back."
    def n_tested(): return int(lab.said('round ')[-1].split(' clients tested')[0].split()[-1])
    def more(n, seconds=400):
        "Wait for a further round in which n clients were tested."
        before = len(lab.said('round '))
        def done(): return len(lab.said('round ')) > before and n_tested() == n
        page.wait_until(done, seconds, f'a round of {n}')
    for i in (1, 2): ask_resident(str(at/'clients'/str(i)), 'stop', b'')
    lab.app = at/'long'
    for i in range(3): lab.start(f'again{i}', page.RESIDENT.format(**lab.about(i)))
    lab.run(timeout=45)
    lab.wait_for_round(1)
    lab.kill('node1')
    more(2)
    lab.start_node(1)
    more(3)
    where = str(at/'clients'/'2')
    ask_resident(where, 'stop', b'')
    time.sleep(.5)
    threading.Thread(target=serve_node, args=(Garbage(), where), daemon=True).start()
    page.wait_until(lambda: lab.said('client 2 refused: these bytes are no message'), 400)
    more(2)
    ask_resident(where, 'stop', b'')
    lab.start('resident3', page.RESIDENT.format(**lab.about(2)))
    more(3)
    assert not lab.said('client 0 refused') and not lab.said('client 1 refused')
