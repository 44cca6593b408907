"Small data and networks that tests give to the library, and how they hear what is said of these."
import re
import warnings

import pytest
import torch
import torch.nn as nn

from fedcl_repro.data.datasets import load

DIGITS = load('digits')
X, Y = DIGITS.x[:160], DIGITS.y[:160]
SMALL = dict(n_clients=2, n_rounds=1, partition='quantity(minimum=8)')


def each(names, table):
    "A test for each case of a table: a dict has names for its cases, a list is named by what it has."
    def name_of(values): return ' '.join(str(getattr(v, '__name__', v)) for v in values)[:70]
    named = table.items() if isinstance(table, dict) else [(name_of(values), values) for values in table]
    return pytest.mark.parametrize(names, [pytest.param(*values, id=name) for name, values in named])


def refusal(says, error=ValueError):
    "What is done here is refused in these words."
    return pytest.raises(error, match=re.escape(says))


def told(make):
    "What a call returns, and its warnings as one text."
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter('always')
        warnings.filterwarnings('ignore', 'The .grad attribute|`torch.jit.script` is deprecated')
        result = make()
    return result, ' '.join(str(w.message) for w in said)


# --- networks

def body(*layers): return nn.Sequential(nn.Flatten(), nn.Linear(256, 16), *layers)


class Parts(nn.Module):
    "A network for digits as a user writes it, without `forward`."
    def __init__(self, **parts):
        super().__init__()
        self.body, self.head = body(), nn.Linear(16, 10)
        for k, part in parts.items(): setattr(self, k, part)


class Net(Parts):
    def forward(self, x): return self.head(self.body(x))


class Layer(nn.Module):
    "A layer with buffers (its tensors), layers and parameters; `fn(layer, z)` is its forward."
    def __init__(self, fn, plain=(), persistent=True, **parts):
        super().__init__()
        self.fn, self.seen = fn, 0
        for k, v in parts.items():
            if type(v) is torch.Tensor: self.register_buffer(k, v, persistent)
            else: setattr(self, k, v)
        for k, v in dict(plain).items(): setattr(self, k, v) # also tensors

    def forward(self, z): return self.fn(self, z)
