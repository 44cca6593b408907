"""Networks of other libraries train for two rounds on images of CIFAR's size (`pip install timm
transformers`)."""
import numpy as np
import pytest
import torch
import torch.nn as nn

from fedcl_repro import simulate
from fedcl_repro.runs.run import Run, check_federation
from fedcl_repro.runs.simulate import data_spec, fitting

RNG = np.random.default_rng(0)
Y = np.arange(40) % 4
X = (RNG.integers(0, 120, (40, 3, 32, 32)) + 30 * Y[:, None, None, None]).astype(np.uint8)
SMALL = dict(n_clients=2, n_rounds=2, batch_size=8, partition='quantity(minimum=12)')


def of_timm(name, **settings):
    "A model of timm: its features, and a classifier."
    timm = pytest.importorskip('timm', reason='timm is not installed')
    def build(shape, n_classes):
        body = timm.create_model(name, num_classes=0, in_chans=shape[0], **settings)
        return body, nn.Linear(getattr(body, 'head_hidden_size', body.num_features), n_classes)
    return build


def resnet(): return of_timm('resnet10t')
def vit(): return of_timm('vit_tiny_patch16_224', img_size=32, patch_size=8, depth=2)
def mobile(): return of_timm('mobilenetv3_small_050')
def swin():
    small = dict(img_size=32, window_size=4, depths=(1, 1), embed_dim=24, num_heads=(2, 2))
    return of_timm('swin_tiny_patch4_window7_224', drop_path_rate=0., **small)


class First(nn.Module):
    "The representation of an image from a model of transformers."
    def __init__(self, model):
        super().__init__()
        self.model = model

    def forward(self, x): return self.model(pixel_values=x).last_hidden_state[:, 0]


def hugging_face(dropout=0.):
    transformers = pytest.importorskip('transformers', reason='transformers is not installed')
    config = transformers.ViTConfig(
        hidden_size=32, num_hidden_layers=2, num_attention_heads=2, intermediate_size=64, image_size=32,
        patch_size=8, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout)
    def build(shape, n_classes):
        return First(transformers.ViTModel(config, add_pooling_layer=False)), nn.Linear(32, n_classes)
    return build


@pytest.mark.parametrize('make', [resnet, vit, hugging_face], ids=lambda f: f.__name__)
@pytest.mark.parametrize('method', ['fedavg', 'fedcosr'])
def test_a_network_of_another_library_trains(make, method):
    result = simulate(method, X, Y, model=make(), **SMALL)
    first, second = result.model(0, 'trained'), result.model(1, 'trained')
    moved = [not torch.equal(a, b) for a, b in zip(first.parameters(), second.parameters())]
    assert sum(moved) > .8 * len(moved) and np.isfinite(result.curve().micro).all()


@pytest.mark.parametrize('make', [mobile, swin], ids=lambda f: f.__name__)
def test_a_rehearsal_takes_it(make):
    data = data_spec(X, Y)
    check_federation(Run.of('fedavg', data=data, **fitting(data, SMALL, make(), kept=False)))


def test_its_dropout_is_refused():
    with pytest.raises(ValueError, match='Dropout.* draws from a global random generator'):
        simulate('fedavg', X, Y, model=hugging_face(.1), **SMALL)
