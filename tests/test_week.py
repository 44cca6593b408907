"""A researcher's week: what the package shows of itself, tables for a paper, data as people have them, models
that validation chose, loggers."""
import ast
import doctest
import inspect
from importlib import import_module
from pathlib import Path

import pytest
import torch

import fedcl_repro
from fedcl_repro.core import load_all
from fedcl_repro.parts import contrastive

ROOT = Path(__file__).parents[1]


# --- the front door

def test_completion_help_and_type_checkers_see_the_same_names():
    "The names of `__all__`, those that type checkers read, and what jedi completes."
    tree = ast.parse(Path(fedcl_repro.__file__).read_text(encoding='utf-8'))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    homes = {a.asname: node.module.removeprefix('fedcl_repro.') for node in block.body for a in node.names}
    assert homes == fedcl_repro._homes and set(homes) <= set(dir(fedcl_repro))
    for name in homes: assert getattr(fedcl_repro, name).__doc__
    jedi = pytest.importorskip('jedi')
    text = 'import fedcl_repro\nfedcl_repro.'
    assert set(homes) <= {c.name for c in jedi.Script(text, path=ROOT/'x.py').complete()}
    assert len(doctest.DocTestParser().get_examples(fedcl_repro.__doc__)) == 3


def test_question_mark_shows_shapes_and_units():
    "In the sections that PyTorch's docstrings have; of functions, data classes and classes."
    doc = fedcl_repro.infonce.__doc__
    assert '\nArgs:\n    z: (b, k) representations' in doc and '\nReturns:\n    (b,) nats' in doc
    assert 'participation: share of the clients in a round' in fedcl_repro.Run.__doc__
    assert 'per_group: channels in a group' in import_module('fedcl_repro.parts.twin_norm').TwinNorm.__doc__


INNER = 'as_', 'plain_', 'view_', 'pair_', 'check_', 'at_least_float32' # what parts are made of
PARTS = 'contrastive centroids mixing proximal self_supervised simplex graph twin_norm fields'.split()


@pytest.mark.parametrize('name', PARTS)
def test_every_part_has_an_example_that_runs(name):
    module = import_module(f'fedcl_repro.parts.{name}')
    for part in module.__all__:
        made = getattr(module, part)
        if not inspect.isfunction(made) or part.startswith(INNER): continue
        examples = doctest.DocTestParser().get_doctest(made.__doc__, dict(vars(module)), part, None, 0)
        result = doctest.DocTestRunner().run(examples)
        assert result.attempted and not result.failed, part


z, y = torch.randn(4, 3), torch.tensor([0, 1, 0, 1])


@pytest.mark.parametrize('call, says', [
    (lambda: contrastive.ntxent(z.reshape(2, 2, 3), .5), r'z must be of shape \(2n, k\), got \(2, 2, 3\)'),
    (lambda: contrastive.ntxent(z, 0), 'temp, the temperature, must be above 0, got 0'),
    (lambda: contrastive.infonce(z, y[:3], z, y > 0, 1.), r'y must be of shape \(b\), b = 4, got \(3,\)'),
    (lambda: contrastive.supcon(z, y, float('nan')), 'must be above 0, got nan'),
    (lambda: contrastive.model_contrast(z, z[:, :2], z, .5), r'z_glob must be of shape \(b, k\), b = 4'),
    (lambda: contrastive.prototype_contrast(z, y, z[0], 1.), r'prototypes must be of shape \(C, k\)'),
])
def test_a_loss_names_what_does_not_fit(call, says):
    with pytest.raises(ValueError, match=says): call()
