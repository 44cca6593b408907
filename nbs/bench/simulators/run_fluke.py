"""fluke: FedAvg with its own loader; each client tests the global model before it trains."""
from fluke import DDict, FlukeENV
from fluke.algorithms.fedavg import FedAVG
from fluke.data import DataSplitter, DummyDataContainer, FastDataLoader
from fluke.evaluation import ClassificationEval
from fluke.utils import FederationObserver
from torchmetrics import Accuracy

from shared import Net, batch, floats, n_clients, rate, test, test_batch, train, turns, y


def loader(rows, size, shuffle):
    return FastDataLoader(floats(rows), y[rows], num_labels=10, batch_size=size, shuffle=shuffle)


trained, tested = [loader(r, batch, True) for r in train], [loader(r, test_batch, False) for r in test]
data = DataSplitter(DummyDataContainer(trained, tested, None, 10), client_split=0.)
accuracy = Accuracy(task='multiclass', num_classes=10) # by default seven measures, which take more time
FlukeENV().set_evaluator(ClassificationEval(eval_every=1, n_classes=10, accuracy=accuracy))
FlukeENV().set_eval_cfg(post_fit=False, pre_fit=True, locals=False, server=False)
client = DDict(
    batch_size=batch, local_epochs=1, loss='CrossEntropyLoss',
    optimizer=DDict(name='SGD', lr=rate), scheduler=DDict(name='StepLR', step_size=1, gamma=1.))
algorithm = FedAVG(n_clients, data, DDict(model=Net(), server=DDict(weighted=True), client=client))


class Rounds(FederationObserver):
    def start_round(self, **about): next(turn)


turn = turns()
algorithm.set_callbacks([Rounds()])
algorithm.run(10**6, 1.)
