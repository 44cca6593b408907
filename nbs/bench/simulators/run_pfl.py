"""pfl: its federated averaging; its `evaluate` tests the merged model on each client's test images."""
from pfl.aggregate.simulate import SimulatedBackend
from pfl.aggregate.weighting import WeightByDatapoints
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.data.dataset import Dataset
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.sampling import MinimizeReuseUserSampler
from pfl.hyperparam import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Weighted
from pfl.model.pytorch import PyTorchModel
import torch
import torch.nn.functional as F

from shared import Net, batch, floats, n_clients, rate, test, test_batch, train, turns, y


class NetOfPfl(Net):
    def loss(self, x, y): return F.cross_entropy(self.train()(x), y)

    @torch.no_grad()
    def metrics(self, x, y):
        scores = self.eval()(x)
        loss, right = F.cross_entropy(scores, y, reduction='sum'), (scores.argmax(1) == y).sum()
        return dict(loss=Weighted(loss.item(), len(y)), right=Weighted(right.item(), len(y)))


clients, tests = ([Dataset([floats(r), y[r]]) for r in rows] for rows in (train, test))
users = FederatedDataset(clients.__getitem__, MinimizeReuseUserSampler(range(n_clients)))
net = NetOfPfl()
model = PyTorchModel(net, torch.optim.SGD, torch.optim.SGD(net.parameters(), 1.))
backend = SimulatedBackend(users, None, [WeightByDatapoints()])
fit = NNTrainHyperParams(local_batch_size=batch, local_num_epochs=1, local_learning_rate=rate)
evaluation = NNEvalHyperParams(local_batch_size=test_batch)
algorithm = FederatedAveraging()
for n, _ in enumerate(turns(), 1):
    params = NNAlgorithmParams(n, 10**6, train_cohort_size=n_clients, val_cohort_size=0) # up to round n
    algorithm.run(params, backend, model, fit, evaluation, send_metrics_to_platform=False)
    for d in tests: model.evaluate(d, eval_params=evaluation)
