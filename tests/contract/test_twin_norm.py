"""What guards Twin Normalization: derivatives, autocast, stacked clients. Its page has its properties."""
import torch
from fastcore import test as check
from torch import nn
from torch.func import functional_call, vmap

from fedcl_repro.core import torch_stream
from fedcl_repro.parts.twin_norm import TwinNorm, Twins, twin_norm


def random(name, *shape): return torch.randn(shape, generator=torch_stream(0, name), dtype=torch.double)


x = random('x', 6, 8, 5, 5) + torch.arange(6)[:, None, None, None] # three pairs; the views' means are 3 apart
w, b = random('w', 8).abs(), random('b', 8)


def test_statistics_are_single_precision_under_autocast():
    "A convolution returns bfloat16 there."
    half, w1, b1 = x.bfloat16(), w.float(), b.float()
    for variant, eps in (('pooled', .02), ('code', 1e-5)):
        with torch.autocast('cpu', torch.bfloat16): cast = twin_norm(half, w1, b1, 4, variant)
        check.test_close(cast.float(), twin_norm(half.float(), w1, b1, 4, variant), eps=eps)


def test_first_and_second_derivatives_are_right():
    "By gradcheck, in float64."
    small = torch.randn(4, 6, 3, 2, dtype=torch.double, generator=torch_stream(1, 'x'), requires_grad=True)
    ws = torch.rand(6, dtype=torch.double, generator=torch_stream(0, 'w'), requires_grad=True)
    bs = torch.rand(6, dtype=torch.double, generator=torch_stream(1, 'w'), requires_grad=True)
    for variant in ('pooled', 'code'):
        def normalised(x, w, b): return twin_norm(x, w, b, 3, variant)
        assert torch.autograd.gradcheck(normalised, (small, ws, bs))
        assert torch.autograd.gradgradcheck(normalised, (small, ws, bs))


def test_the_layer_can_be_mapped_over_stacked_clients():
    "Each client gets its own values and gradients."
    net = Twins(
        nn.Conv2d(1, 8, 3), TwinNorm(8, 4), nn.ReLU(),
        nn.Conv2d(8, 8, 3), TwinNorm(8, 4, 'code'),
    ).double()
    stacked = {}
    for k, v in net.state_dict().items():
        fields = torch.randn(3, *v.shape, dtype=torch.double, generator=torch_stream(0, k))
        stacked[k] = fields.requires_grad_()
    xs = torch.randn(3, 2, 4, 1, 8, 8, dtype=torch.double, generator=torch_stream(0, 'xs'))

    def loss(fields, x): return functional_call(net, fields, (x,)).pow(2).mean()
    mapped = vmap(loss)(stacked, xs)
    alone = torch.stack([loss({k: v[i] for k, v in stacked.items()}, xs[i]) for i in range(3)])
    check.test_close(mapped, alone, eps=1e-12)
    leaves = list(stacked.values())
    mapped_grads, alone_grads = (torch.autograd.grad(l.sum(), leaves) for l in (mapped, alone))
    for p, q in zip(mapped_grads, alone_grads): check.test_close(p, q, eps=1e-12)
