"""Faults planted in formulas: on the page that defines a formula, a check must notice each of them.
`pytest -m slow tests/pages/test_mutants.py` takes five minutes of one core."""
import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

MUTANTS = ( # page, what its library says, the fault
    # contrastive losses
    ('parts/contrastive', 'F.normalize(z, dim=1) @ F.normalize(mean, dim=1).T / temp',
     'F.normalize(z, dim=1) @ F.normalize(mean, dim=1).T * temp'),
    ('parts/contrastive', 'sim.masked_fill(~have, -1e9), y', 'sim, y'),
    ('parts/contrastive', 'return torch.where(have[y], loss, 0.)', 'return loss'),
    ('parts/contrastive', 'return -F.logsigmoid(difference / temp)',
     'return -F.logsigmoid(-difference / temp)'),
    ('parts/contrastive', "every = sim.masked_fill(~among, -1e9)", "every = sim.masked_fill(positive, -1e9)"),
    ('parts/contrastive', "if form == 'in': pull = pull - n.clamp(min=1).log()",
     "if form == 'in': pull = pull"),
    ('parts/contrastive', 'same_class = (y[:, None] == y) & not_self', 'same_class = y[:, None] == y'),
    ('parts/contrastive', "sim = (sim / temp).exp()", "sim = sim / temp"),
    ('parts/contrastive', "torch.where(not_self, sim, 0.).sum() / C", "sim.sum() / C"),
    # centroids and mixing
    ('parts/centroids', 'return sums / counts.clamp(min=1)[..., None]',
     'return sums / counts.sum().clamp(min=1)'),
    ('parts/centroids', 'w = counts if weighted else (counts > 0).to(counts)', 'w = (counts > 0).to(counts)'),
    ('parts/centroids', 'torch.where(have[y][:, None], (z - mean[y])**2, 0.).mean()',
     '((z - mean[y])**2).mean()'),
    ('parts/mixing', 'torch.exp(-gamma * loss.clamp', 'torch.exp(gamma * -1 / loss.clamp'),
    ('parts/mixing', 'torch.lerp(v, own[k], keep.to(v))', 'torch.lerp(own[k], v, keep.to(v))'),
    ('parts/mixing', 'xi + torch.diag(1 - xi.sum(1))', 'xi + torch.eye(len(xi), dtype=xi.dtype)'),
    ('parts/mixing', 'return n / total if total > 0', 'return n / n.max() if total > 0'),
    ('parts/proximal', 'return square_distance(reference, fields)',
     'return square_distance(reference, fields)**.5'),
    ('parts/simplex', '(u.cumsum(-1) - 1)', 'u.cumsum(-1)'),
    ('parts/simplex', 'return weights / weights.sum(-1, keepdim=True)', 'return weights'),
    # MAPL's graph
    ('parts/graph', 'F.cosine_similarity(own[..., None, :, :], heads, dim=-1).mean(-1)',
     'F.cosine_similarity(own[..., None, :, :], heads, dim=-1).amax(-1)'),
    ('parts/graph', 'best = sim.masked_fill(me | ~have, -torch.inf)',
     'best = sim.masked_fill(~have, -torch.inf)'),
    ('parts/graph', 'alone = -torch.log(degree + EPS)', 'alone = torch.log(degree + EPS)'),
    ('parts/graph', 'w.norm(dim=-1, keepdim=True) if rule.norm == 2',
     'w.norm(1, dim=-1, keepdim=True) if rule.norm == 2'),
    ('parts/graph', '(w - rule.rate * slope)', '(w + rule.rate * slope)'),
    ('papers/mapl/graph_measures', '(1 - warmup/rounds) * (M/2) / (M - 1)',
     '(1 - warmup/rounds) * (M/2) / M'),
    # Twin Normalization
    ('parts/twin_norm', 'pair_var = pair_var + ((first_view - second_view) / 2)**2',
     'pair_var = pair_var + (first_view - second_view)**2'),
    ('parts/twin_norm', 'mu = (first_view + second_view) / 2', 'mu = first_view'),
    ('parts/twin_norm', 'twice(weight), twice(bias)', 'weight.repeat(2), bias.repeat(2)'),
    ('parts/twin_norm', 'z.permute(0, 2, 3, 1).reshape(pairs, 2, -1).transpose(0, 1)',
     'z.permute(0, 2, 3, 1).reshape(2, pairs, -1)'),
    # optimisers and privacy
    ('federation/optimisers', 'beta1=beta1, beta2=beta2', 'beta1=beta1, beta2=beta1'),
    ('federation/optimisers', 'momentum=self.momentum, weight_decay', 'momentum=0., weight_decay'),
    ('federation/lars', 'trust * w / g.where(g > 0, 1.)', 'trust * g / w.where(w > 0, 1.)'),
    ('federation/privacy', 'v + shared[k] if i < j else v - shared[k]',
     'v + shared[k] if i < j else v + shared[k]'),
    ('federation/privacy', '{min(a, b)}/{max(a, b)}', '{a}/{b}'),
    ('federation/privacy', 'low + (high - low) * own', 'low * own'),
    # methods
    ('methods/fedcosr', 'contrast=client[\'sum.contrast\'] / samples', 'contrast=client[\'sum.contrast\']'),
    ('methods/fedcosr', "ce + contrast_weight * notes['contrast'] / samples",
     "ce - contrast_weight * notes['contrast'] / samples"),
    ('methods/fedssc', 'have & (rank < k)', 'have & (rank <= k)'),
    ('methods/fedssc', 'start + (end - start) * t', 'end + (start - end) * t'),
    ('methods/fedssc', 'means_message(client, at_least)', 'means_message(client)'),
    ('methods/feddyn', 'g[k] - alpha * (client[k] - w)', 'g[k] + alpha * (client[k] - w)'),
    ('methods/feddyn', 'mean[k] - h[k] / alpha', 'mean[k] + h[k] / alpha'),
    ('methods/fedpac', '- (H*H).sum()).clamp(min=0) / total', ').clamp(min=0) / total'),
    ('methods/moon', "z_prev = net.at('prev.', training=False)", "z_prev = net.at('glob.', training=False)"),
    ('methods/perfedavg', 'v - alpha * slope[k]', 'v + alpha * slope[k]'),
)


def exported(cell): return cell['cell_type'] == 'code' and ''.join(cell['source']).startswith('#| export')


def planted(page, said, fault):
    "The page as JSON, with the fault in the only exported cell that says so."
    notebook = json.loads((ROOT/'nbs'/f'{page}.ipynb').read_text(encoding='utf-8'))
    places = [c for c in notebook['cells'] if exported(c) and said in ''.join(c['source'])]
    assert len(places) == 1, f'{len(places)} cells of {page} say {said!r}'
    source = ''.join(places[0]['source'])
    assert source.count(said) == 1
    places[0]['source'] = source.replace(said, fault).splitlines(keepends=True)
    return json.dumps(notebook)


def names_of(mutants): return [f'{page}: {fault[:40]}' for page, _, fault in mutants]


@pytest.mark.parametrize('page, said, fault', MUTANTS, ids=names_of(MUTANTS))
def test_a_fault_has_its_place(page, said, fault):
    "The list is about formulas that the library has today."
    assert said != fault and planted(page, said, fault)


def stopped_by(path, folder):
    "What stopped a page, run in a process of its own: a page changes the registers of its process."
    command = [sys.executable, str(ROOT/'tests'/'tools'/'run_pages.py'), str(folder), str(path)]
    subprocess.run(command, check=True, capture_output=True, timeout=600)
    return json.loads((folder/'pages.json').read_text(encoding='utf-8'))[str(path)]


@pytest.mark.slow
@pytest.mark.parametrize('page, said, fault', MUTANTS, ids=names_of(MUTANTS))
def test_a_check_notices_the_fault(page, said, fault, tmp_path):
    path = (tmp_path/Path(page).name).with_suffix('.ipynb')
    path.write_text(planted(page, said, fault), encoding='utf-8')
    assert 'Error' in stopped_by(path, tmp_path), 'the page ran through'


@pytest.mark.slow
def test_without_a_fault_nothing_stops_the_page(tmp_path):
    path = tmp_path/'centroids.ipynb'
    path.write_text((ROOT/'nbs/parts/centroids.ipynb').read_text(encoding='utf-8'), encoding='utf-8')
    assert stopped_by(path, tmp_path) == ''
