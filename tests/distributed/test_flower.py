"""Methods as Flower apps end in the bits of the loop, under Flower's simulation engine. Skipped where Flower
is not installed; nightly, as the engine takes its time to start."""
import os
from pathlib import Path

import pytest
import golden # registers a small network and partition
import torch

pytest.importorskip('flwr', reason="Flower is an extra: pip install -e '.[flower]'")
pytest.importorskip('ray', reason="Flower's simulation engine needs Ray: pip install -e '.[flower]'")
pytestmark = pytest.mark.nightly

from fedcl_repro.core import Spec
from fedcl_repro.federation.evaluation import evaluate
from fedcl_repro.federation.exchange import from_bytes
from fedcl_repro.federation.loop import Loop
from fedcl_repro.federation.rounds import rounds
from fedcl_repro.distributed.flower import SCORE_COLUMNS, ask_node, envelope, opened_envelope, serve_run
from fedcl_repro.distributed.nodes import SharedPlan, dealt
from fedcl_repro.runs.run import Run, federation, methods, stages

METHODS = {'fedavg': {}, 'fedcosr': {}, 'mapl': {}, 'mfcl': dict(pairs=2, server_batch=64)}


def small_run(name):
    views = 'crop_flip(pad=1)' if 'views' in methods()[name].about['needs'].split() else 'none'
    return Run.of(Spec.of(name, **METHODS[name]), data='digits', partition='golden', model='golden',
                  augmentation=views, n_clients=3, n_rounds=4, batch_size=8, dtype='float64')


def write_data(run, folder):
    for i, data in enumerate(dealt(run)): data.save(folder/str(i))


def assert_as_together(run, out):
    "What the server wrote is what the loop ends in: fields of all servers and, if tested alike, scores."
    fed, todo = federation(run), stages(run)
    *_, state = rounds(Loop(fed), todo)
    assert state.servers
    for name, fields in state.servers.items():
        got, about = from_bytes((out/f'{name}.server').read_bytes())
        assert got.keys() == fields.keys()
        for k, v in fields.items(): assert torch.equal(got[k], v), (run.method.name, k)
    header, *lines = (out/'rows.csv').read_text().splitlines()
    assert header == ','.join(SCORE_COLUMNS)
    if todo[-1].method.probe.represent: return
    last = [line for line in lines if line.startswith(f'{run.n_rounds},')]
    scores = evaluate(Loop(fed), todo, state, 'merged')
    assert last == [','.join(map(repr, (run.n_rounds, *s[:4]))) for s in scores]


def test_simulation_engine(tmp_path, monkeypatch):
    "Four methods, one after the other, in one simulation of three nodes."
    from flwr.app import Message
    from flwr.clientapp import ClientApp
    from flwr.serverapp import ServerApp
    from flwr.simulation import run_simulation
    monkeypatch.setenv('FLWR_TELEMETRY_ENABLED', '0')
    monkeypatch.setenv('RAY_USAGE_STATS_ENABLED', '0')
    monkeypatch.setenv('FLWR_HOME', str(tmp_path/'home'))
    tools = Path(__file__).parents[1]/'tools'
    monkeypatch.setenv('PYTHONPATH', os.pathsep.join([str(tools), str(tools.parents[1])])) # of the workers
    plans, folder = {name: SharedPlan.of(small_run(name)) for name in METHODS}, str(tmp_path)
    for name, plan in plans.items(): write_data(plan.run, tmp_path/name)
    texts = {name: plan.text for name, plan in plans.items()}
    server, client = ServerApp(), ClientApp()
    now = tmp_path/'now' # which method it is

    @server.main()
    def main(grid, context):
        for name, text in texts.items():
            now.write_text(name)
            serve_run(grid, text, f'{folder}/out-{name}', wait=400., timeout=400.)

    def handle(msg, context):
        assert golden.small_network # its registration travels with this function
        name, i = now.read_text(), int(context.node_config['partition-id'])
        kind, content, _ = opened_envelope(msg.content)
        word, answer = ask_node(texts[name], i, f'{folder}/{name}/{i}', kind, content)
        if word != 'ok': raise RuntimeError(word)
        return Message(envelope(kind, answer, client=i), reply_to=msg)
    registers = client.train(), client.evaluate(), client.query('hello'), client.query('survey')
    for register in registers: register(handle)

    run_simulation(server, client, 3, backend_config=dict(
        client_resources=dict(num_cpus=1, num_gpus=0.),
        init_args={} if 'RAY_ADDRESS' in os.environ else dict(num_cpus=2, include_dashboard=False)))
    for name, plan in plans.items(): assert_as_together(plan.run, tmp_path/f'out-{name}')
