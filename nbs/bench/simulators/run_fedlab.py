"""FedLab: its server and its trainer of clients in turn, with torch's loaders as its data sets have them."""
from fedlab.contrib.algorithm.fedavg import FedAvgSerialClientTrainer, FedAvgServerHandler
from fedlab.core.standalone import StandalonePipeline
from fedlab.utils.functional import evaluate
import torch
from torch.utils.data import DataLoader, TensorDataset

from shared import Net, batch, floats, n_clients, rate, test, test_batch, train, turns, y

images, tests = ([TensorDataset(floats(r), y[r]) for r in rows] for rows in (train, test))


class Clients:
    def get_dataloader(self, i, size): return DataLoader(images[i], size, shuffle=True)


class Rounds(StandalonePipeline):
    def evaluate(self):
        for d in tests: evaluate(self.handler.model, torch.nn.CrossEntropyLoss(), DataLoader(d, test_batch))


server = FedAvgServerHandler(Net(), global_round=0, sample_ratio=1.)
trainer = FedAvgSerialClientTrainer(Net(), n_clients)
trainer.setup_dataset(Clients())
trainer.setup_optim(epochs=1, batch_size=batch, lr=rate)
rounds = Rounds(server, trainer)
for _ in turns():
    server.global_round += 1
    rounds.main()
