"""Flower: its server, messages and simulation; the client app trains in this process instead of Ray's."""
import sys
from types import SimpleNamespace

from flwr.client import ClientApp, NumPyClient
from flwr.common import ndarrays_to_parameters
from flwr.server import ServerApp, ServerAppComponents, ServerConfig
from flwr.server.strategy import FedAvg
from flwr.server.superlink.fleet.vce.backend import Backend
from flwr.simulation import run_simulation
import torch
import torch.nn.functional as F

from shared import Net, batch, floats, n_clients, rate, test, test_batch, train, turns, y


class InThisProcess(Backend):
    "Answers one message after another. Flower looks for it under the name of Ray's."
    num_workers = 1
    def __init__(self, config): pass
    def build(self, app_fn): self.app = app_fn()
    def is_worker_idle(self): return True
    def process_message(self, message, context): return self.app(message, context), context
    def terminate(self): pass


class Client(NumPyClient):
    def __init__(self, i): self.train, self.test = torch.tensor(train[i]), torch.tensor(test[i])

    def put(self, arrays):
        for p, a in zip(net.parameters(), arrays): p.data = torch.from_numpy(a.copy())

    def fit(self, arrays, config):
        self.put(arrays)
        net.train()
        opt = torch.optim.SGD(net.parameters(), rate)
        for at in self.train[torch.randperm(len(self.train))].split(batch):
            opt.zero_grad()
            F.cross_entropy(net(floats(at)), y[at]).backward()
            opt.step()
        return [p.detach().numpy() for p in net.parameters()], len(self.train), {}

    @torch.no_grad()
    def evaluate(self, arrays, config):
        self.put(arrays)
        net.eval()
        loss, right = 0., 0
        for at in self.test.split(test_batch):
            scores = net(floats(at))
            loss += F.cross_entropy(scores, y[at], reduction='sum').item()
            right += (scores.argmax(1) == y[at]).sum().item()
        return loss / len(self.test), len(self.test), dict(right=right)


class Rounds(FedAvg):
    def configure_fit(self, *args, **more):
        next(turn)
        return super().configure_fit(*args, **more)


def client_fn(context): return Client(int(context.node_config['partition-id'])).to_client()


def server_fn(context):
    first = ndarrays_to_parameters([p.detach().numpy() for p in net.parameters()])
    strategy = Rounds(initial_parameters=first, min_available_clients=n_clients)
    return ServerAppComponents(strategy=strategy, config=ServerConfig(num_rounds=10**6))


net, turn = Net(), turns()
sys.modules['flwr.server.superlink.fleet.vce.backend.raybackend'] = SimpleNamespace(RayBackend=InThisProcess)
run_simulation(ServerApp(server_fn=server_fn), ClientApp(client_fn=client_fn), num_supernodes=n_clients,
               backend_name='in this process')
