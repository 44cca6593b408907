"""This library. The argument is the precision of its products."""
import sys

import torch
from shared import Net, batch, rate, test, train, turns, x, y

from fedcl_repro.federation.evaluation import evaluate
from fedcl_repro.federation.federation import Fed
from fedcl_repro.federation.loop import Loop, one_thread
from fedcl_repro.federation.method import Method, stages_of
from fedcl_repro.federation.optimisers import SGD
from fedcl_repro.federation.rounds import begin, one_round
from fedcl_repro.parts.models import cnn


def net(): return cnn(tuple(x.shape[1:]), 10, k=512, dropout=0.)


one_thread()
store = x.permute(0, 2, 3, 1).contiguous(), y
dtype = getattr(torch, sys.argv[1])
fed = Fed(store, train, test, dict(cnn=net), n_classes=10, batch_size=batch, opt=SGD(rate), dtype=dtype)
execute, stages, state = Loop(fed), stages_of(Method(), 10**6), begin(fed)
for _ in turns():
    state = one_round(execute, stages, state)
    scores = evaluate(execute, stages, state, 'merged')
    Net.seen[True] += sum(int(state.clients[i]['train.rows']) for i in range(fed.n_clients))
    Net.seen[False] += sum(s.n for s in scores)
