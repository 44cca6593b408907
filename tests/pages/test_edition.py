"""The reader's edition of the course: one source makes both editions, and each blank knows its mistakes."""
import ast
import builtins
import contextlib
import io
import itertools
import re
from unittest.mock import patch

import nbformat
import numpy as np
import pytest
import torch
from fresh import COMMAND

from fedcl_repro.teaching.edition import Blank, blanks_of, course_pages, emptied, marks, page_source
from fedcl_repro.teaching.edition import readers_edition, write_course
from fedcl_repro.teaching.grading import EMPTY, SOLVED, WRONG, Checks, as_function, judge, outcome

PAGES = course_pages()
BLANKS = [(page, name) for page in PAGES for name in blanks_of(page)]


def run_page(nb):
    "The names of a page after all its code cells, and what they printed."
    import matplotlib.pyplot as plt
    said, space = io.StringIO(), {'__name__': '__main__'}
    with patch.object(plt, 'show', plt.close), contextlib.redirect_stdout(said):
        for cell in nb.cells:
            if cell.cell_type == 'code': exec(compile(cell.source, f'<{cell.id}>', 'exec'), space)
    return space, said.getvalue()


@pytest.fixture(scope='module')
def untouched():
    "page -> its names and words after a run of the reader's edition that nobody has touched; each runs once."
    done = {}
    def get(page):
        if page not in done: done[page] = run_page(readers_edition(page))
        return done[page]
    return get


def said_about(page, space, name, code):
    "What the check of a blank says about a function, and the word for it."
    checks = Checks(page)
    function = as_function(code, blanks_of(page)[name], space)
    with contextlib.redirect_stdout(io.StringIO()) as out: checks(function)
    return checks.words[name], out.getvalue()


@pytest.mark.parametrize('page', PAGES)
def test_an_untouched_page_runs_to_its_end_on_loans(page, untouched):
    space, said = untouched(page)
    for name in blanks_of(page): assert f'○ {name}: not yet written, `...` waits for your lines.' in said
    assert str(space['checks']) == f'0 of {len(blanks_of(page))} blanks are right'
    assert float(space['difference']) < 1e-12 # from the library, as on the filled page


@pytest.mark.parametrize('page, name', BLANKS)
def test_a_blank_takes_the_solution(page, name, untouched):
    space, _ = untouched(page)
    word, said = said_about(page, space, name, blanks_of(page)[name].solution)
    assert word == SOLVED and re.search(r'largest difference (0|\d)e[+-]\d+', said), said


@pytest.mark.parametrize('page, name', BLANKS)
def test_a_blank_knows_its_mistakes_by_name(page, name, untouched):
    space, _ = untouched(page)
    blank = blanks_of(page)[name]
    assert len(blank.mistakes) >= 3 and len({words for words, _ in blank.mistakes}) == len(blank.mistakes)
    for words, code in blank.mistakes:
        word, said = said_about(page, space, name, code)
        assert word == WRONG and words in said, f'{words}\n{said}\n{code}'


TRIED = [ # page, blank, lines of a reader, and what the check should say: known mistakes in other lines
    ('02_fedavg', 'one_round', """
    nets = []
    for i in range(fed.n_clients):
        net = train(copy.deepcopy(net), batches_of(fed, i, r))
        nets.append(net)
    return average(nets, fed.sizes), nets""", 'begins where the one before it ended'),
    ('02_fedavg', 'recall', """
    rows = torch.cat(fed.rows['test'])
    p = scores(net, images(fed, rows)).argmax(1)
    return torch.stack([(fed.y[rows][p == d] == d).double().mean() for d in range(10)])""", 'the precision'),
    ('04_class_means', 'pool', """
    sums, counts = torch.stack(list(sums)), torch.stack(list(counts))
    means, w = sums / counts.clamp(min=1)[..., None], counts.sum(1) / counts.sum()
    return (w[:, None, None] * means).sum(0), counts.sum(0) > 0""", 'weighted by *all* their images'),
    ('04_class_means', 'mismatch', """
    return ((body(x) - targets)**2).sum() + .001 * (x**2).mean()""", 'the second term is a mean'),
    ('04_class_means', 'mismatch', """
    return (body(x) - targets).norm() + .001 * x.norm()""", 'roots of the sums'),
    ('05_contrast', 'mix', """
    own = keep * own + (1 - keep) * received""", 'A network is no number')]


@pytest.mark.parametrize('page, name, lines, words', TRIED)
def test_a_mistake_is_known_in_other_lines(page, name, lines, words, untouched):
    space, _ = untouched(page)
    head = blanks_of(page)[name].solution.partition('\n')[0]
    word, said = said_about(page, space, name, head + lines)
    assert word == WRONG and words in said, said


def stored_in(node):
    names = (n for n in ast.walk(node) if isinstance(n, ast.Name))
    return {n.id for n in names if isinstance(n.ctx, ast.Store)}


def bound_by(code):
    "The names that a cell leaves behind."
    for node in ast.parse(code).body:
        if isinstance(node, (ast.FunctionDef, ast.ClassDef)): yield node.name
        elif isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from ((a.asname or a.name).partition('.')[0] for a in node.names)
        else: yield from stored_in(node)


def read_by(code):
    "The names that code reads and does not bind itself."
    tree = ast.parse(code)
    nodes = list(ast.walk(tree))
    bound = stored_in(tree) | {n.arg for n in nodes if isinstance(n, ast.arg)} | set(bound_by(code))
    return {n.id for n in nodes if isinstance(n, ast.Name)} - bound - set(dir(builtins))


@pytest.mark.parametrize('page', PAGES)
def test_a_check_needs_only_what_stands_above_it(page):
    "A reader fills the page from the top; no argument of a check comes from the function in question."
    known = set()
    for cell in readers_edition(page).cells:
        if cell.cell_type != 'code': continue
        known |= set(bound_by(cell.source))
        if not cell.id.startswith('check-'): continue
        blank = blanks_of(page)[cell.source.partition(' ')[0]]
        assert blank.name not in read_by(blank.given), blank.name
        assert not read_by('\n'.join([blank.given, *blank.calls, *blank.library])) - known, blank.name


def test_a_page_has_enough_to_write():
    for page in PAGES: assert 5 <= len(blanks_of(page)) <= 12, page


@pytest.mark.parametrize('page', PAGES)
def test_both_editions_come_from_one_source(page):
    "The filled code is the source; the blank one differs in the marked functions, and in what is added."
    blank, source = readers_edition(page), page_source(page)
    added = {'note', 'checks'} | {f'{kind}-{name.replace("_", "-")}'
                                  for name in blanks_of(page) for kind in ('check', 'help')}
    assert added < {c.id for c in blank.cells}
    def code(cells): return '\n'.join(c.source for c in cells if c.cell_type == 'code' and c.id not in added)
    def lines(text): return [line for line in text.splitlines() if line.strip()]
    expected = '\n'.join(emptied(c.source) for c in source.cells if c.cell_type == 'code')
    assert lines(code(blank.cells)) == lines(expected)
    assert not any(c.get('outputs') for c in blank.cells)
    assert not any('](../' in c.source for c in blank.cells), 'a link to a page that the reader has not'


def test_no_blank_is_hidden():
    for page in PAGES:
        for cell in page_source(page).cells:
            hidden = cell.cell_type == 'code' and 'hide' in cell.metadata.get('tags', [])
            assert not (hidden and marks(cell.source))


def test_a_written_course_is_complete_and_overwrites_nothing(tmp_path):
    folder = write_course(tmp_path/'mine')
    for page in PAGES: nbformat.validate(nbformat.read(folder/f'{page}.ipynb', 4))
    with pytest.raises(ValueError, match='your lines stay'): write_course(folder)


def test_the_site_offers_both_editions(tmp_path):
    from fedcl_repro.publish.site import copy_notebooks
    copy_notebooks(tmp_path)
    for page in PAGES:
        filled, blank = [(tmp_path/'notebooks'/folder/f'{page}.ipynb').read_text()
                         for folder in ('course', 'blanks')]
        assert 'Your turn' in blank and 'Your turn' not in filled


def test_the_blank_file_of_a_method_trains(tmp_path, fresh):
    folder = write_course(tmp_path/'mine')
    small = '--data', 'digits', '--set', 'n_rounds=1', '--set', 'n_clients=3'
    where = '--use', folder/'my_method.py', '--store', tmp_path/'runs'
    done = fresh.start(COMMAND, 'run', '--method', 'mine', *small, *where).done()
    assert done.returncode == 0, done.stderr


OWN_MEANS = [ # FedPer, and a pull to pooled class means, from the names in the blank file
    ("client | select(message, 'body.')", "client | select(message, 'body.', 'mean', 'have')"),
    ('F.cross_entropy(net.head(net.body(batch.x)), batch.y), {}',
     "F.cross_entropy(net.head(net.body(batch.x)), batch.y) + F.mse_loss(\n"
     "            net.body(batch.x) * client['have'][batch.y, None], client['mean'][batch.y]), {}"),
    ("(Sweep(loss, NET),), upload=send('body.'), serve=average_of('body.')",
     "(Sweep(loss, NET), Sweep(measure_classes)), keep=no_centroids,\n"
     "        upload=lambda c: select(c, 'body.') | means_message(c),\n"
     "        serve=lambda s, inbox: serve_centroids(average_of('body.')({}, inbox), inbox)")]


def test_the_names_of_the_blank_file_make_a_method_that_shares_class_means():
    "What the file's comments say is enough, and the pooled means reach the clients."
    from fedcl_repro.federation.method import METHODS
    from fedcl_repro.federation.rounds import run
    from fedcl_repro.teaching.edition import OWN_METHOD
    from fedcl_repro.teaching.lent import ten_clients
    code, space, fed = OWN_METHOD.replace("'mine'", "'mine_with_means'"), {}, ten_clients(0)
    for old, new in OWN_MEANS:
        assert old in code
        code = code.replace(old, new)
    with patch.dict(METHODS): # entered for this test alone
        exec(code, space)
        client = run(fed, space['mine'](), 2).clients[0]
    assert client['have'].all() and client['mean'].any(1).all()


# What is said about any blank, in a small one.
SOLUTION = 'def mean_of(z):\n    "Mean."\n    return z.sum(0) / len(z)'
GIVEN = 'z = torch.arange(12.).double().reshape(4, 3)'


def toy(lines, given=GIVEN, solution=SOLUTION, **space):
    blank = Blank('mean_of', '', solution, '', given, ('mean_of(z)',), ())
    return judge(as_function(f'def mean_of(z):\n    {lines}', blank, dict(torch=torch, np=np) | space), blank)


@pytest.mark.parametrize('lines, word, words', [
    ('...', EMPTY, 'waits for your lines'),
    ('"What it does."\n    ...', EMPTY, 'waits for your lines'),
    ('raise NotImplementedError', EMPTY, 'NotImplementedError'),
    ('return z.mean(0)', SOLVED, 'largest difference'),
    ('return z.mean(1)', WRONG, 'has shape (4,), expected (3,)'),
    ('return z.mean(0).float()', WRONG, 'has dtype torch.float32'),
    ('return z.mean(0).float().double() + 1e-7', WRONG, 'nearly right'),
    ('return z.sum(0)', WRONG, '4 times too large, and `z` has 4: a sum instead of a mean?'),
    ('return z.mean(0) / 4', WRONG, '4 times too small, and `z` has 4: a mean instead of a sum?'),
    ('return 3 * z.mean(0)', WRONG, 'everything is 3 times what it should be'),
    ('return -z.mean(0)', WRONG, 'the sign is wrong'),
    ('return (z * w).mean(0)', WRONG, 'a gradient flows through the result, and it must not'),
    ('return z.mean(0) / 0', WRONG, 'not finite'),
    ('return z.mean(0).flip(0)', WRONG, 'their order'),
    ('return z.mean(0) + 1', WRONG, 'the numbers differ'),
    ('return z.mean(0).tolist()', WRONG, 'is a list of 3, expected a tensor (3,)'),
    ('return z @ z', WRONG, 'do not fit together'),
    ('return z[None] @ z[None]', WRONG, 'do not fit together'),
    ('return Sequential() * 2.', WRONG, 'A network is no number: go over its parameters'),
    ('return ModuleDict()(z)', WRONG, 'A `ModuleDict` cannot be called'),
    ('return z.requires_grad_().mean(0).detach()', WRONG, 'the argument `z` now wants a gradient: clone it'),
    ('return y.mean(0)', WRONG, "it stops at `return y.mean(0)`. NameError: name 'y'"),
    ('return z.mean(0).detach().requires_grad_().sum().backward()', WRONG, 'is None. Is a `return` missing?'),
    ('return [z.mul_(1), z.mean(0), z.mul_(2)][1].clone()', WRONG, 'the argument `z` is not left'),
    ('n.append(1)\n    return z.mean(0) * (len(n) < 2)', WRONG, 'something is kept from the first call'),
])
def test_what_is_wrong_is_said_in_words(lines, word, words):
    found, said = toy(lines, n=[], ModuleDict=torch.nn.ModuleDict, Sequential=torch.nn.Sequential,
                      w=torch.ones(3).double().requires_grad_())
    assert found == word and words in said, said


@pytest.mark.parametrize('solution, lines, word, words', [
    ('return z.mean(0), len(z)', 'return z.mean(0), float(len(z)), 0', WRONG, 'has 3 parts, expected 2'),
    ('return z, z.sum(0)', 'return z, z.sum(1)', WRONG, 'the second part of the result has shape (4,)'),
    ('z += 1', 'z += 1\n    return z', SOLVED, 'largest difference'),
    ('z += 1', 'z += 2\n    return z', WRONG, 'the argument `z` is not left'),
    ('return z', 'return z.min(0)', WRONG, 'is a tuple of 2, expected a tensor (4, 3)'),
])
def test_several_values_and_none(solution, lines, word, words):
    "Parts are counted from one; what comes back where nothing is wanted is not looked at."
    found, said = toy(lines, solution=f'def mean_of(z):\n    "Mean."\n    {solution}')
    assert found == word and words in said, said


GRAD = 'z = torch.arange(12.).double().reshape(4, 3).requires_grad_()'
TO_Z = 'def mean_of(z):\n    "Mean."\n    return (z**2).mean()'
NOT_TO_Z = 'def mean_of(z):\n    "Mean."\n    return z.detach().mean() * w.sum()'


@pytest.mark.parametrize('lines, solution, words', [
    ('return (z.detach() * z).mean()', TO_Z, 'but not its gradient with respect to `z`'),
    ('return (z.detach()**2).mean() + 0 * z.sum()', TO_Z, 'no gradient flows into `z`'),
    ('return (z.detach()**2).mean()', TO_Z, 'no gradient flows through the result'),
    ('return z.mean() * w.sum()', NOT_TO_Z, 'a gradient flows into `z`, and it must not'),
])
def test_gradients_are_compared(lines, solution, words):
    found, said = toy(lines, GRAD, solution, w=torch.ones(1).double().requires_grad_())
    assert found == WRONG and words in said, said


def test_an_endless_loop_is_stopped():
    with patch('fedcl_repro.teaching.grading.SECONDS', 1):
        found, said = toy('while True: pass')
    assert found == WRONG and 'does a loop ever end' in said


def test_a_loan_does_not_pass(capsys):
    page = PAGES[1]
    name, blank = next(iter(blanks_of(page).items()))
    checks = Checks(page)
    space = dict(copy=None)
    def f(): ...
    loan = as_function(blank.solution.replace('loss=cross_entropy', 'loss=None'), blank, space)
    loan.on_loan = True
    assert checks(loan) is loan and checks.words[name] == EMPTY
    assert 'still the loan' in capsys.readouterr().out


def test_mistakes_of_a_blank_differ(untouched):
    "No two mistakes are taken for each other: their outcomes are apart."
    page = '04_class_means'
    space, _ = untouched(page)
    for blank in blanks_of(page).values():
        def outcomes(code):
            return [outcome(as_function(code, blank, space), blank, call, space) for call in blank.calls]
        seen = [outcomes(code) for _, code in blank.mistakes]
        for one, other in itertools.combinations(seen, 2):
            assert max(a - b for a, b in zip(one, other)) > 1e-6


SOLUTIONS = { # page -> lines that solve its exercise with a check, and a change that must fail the check
    '01_data': ("""
by_digit = [np.flatnonzero(y == digit) for digit in range(10)]
rows = [np.concatenate([by_digit[i][::2], by_digit[(i + 1) % 10][1::2]]) for i in range(10)]
""", ('by_digit[i][::2]', 'by_digit[i - 1], by_digit[i][::2]')),
    '02_fedavg': ("""
def gradients(rows):
    net, batch = first_network(fed), SimpleNamespace(x=images(fed, rows), y=fed.y[rows])
    return torch.autograd.grad(cross_entropy(net, batch), list(net.parameters()))

def stepped(grads):
    net = first_network(fed)
    for p, g in zip(net.parameters(), grads): p.data -= .1 * g
    return net

theirs = zip(*map(gradients, fed.rows['train']))
yours = stepped([sum(n * g for n, g in zip(fed.sizes, some)) / sum(fed.sizes) for some in theirs])
pooled_net = stepped(gradients(torch.cat(fed.rows['train'])))
""", ('n * g', '180 * g')),
    '03_body_and_head': ("shared = ('body.1.',)", ('body.1.', 'body.')),
    '04_class_means': ("""
sums, counts = list(sums), [torch.full((10,), 7. + 0 * k).double() for k in range(10)]
yours = sum(s / n[:, None] for s, n in zip(sums, counts)) / 10
""", ('0 * k', 'k')),
    '05_contrast': ("""
z = F.normalize(torch.randn(20, 32, generator=torch_stream(0, 'z')).double(), dim=1).requires_grad_()
y = torch.arange(20) % 10
unit, with_a_mean = F.normalize(means, dim=1), have[y][:, None]
p = ((z @ unit.T / .1).masked_fill(~have, -1e9)).softmax(1)
slope = (p - F.one_hot(y, 10)) @ unit / .1 * with_a_mean
yours = (slope - (slope * z).sum(1, keepdim=True) * z).detach()
""", ('slope - (slope * z).sum(1, keepdim=True) * z', 'slope')),
    '06_one_model': ("""
def means_of_some(nets, r, at_least=10):
    with torch.no_grad():
        sums, counts = map(torch.stack, zip(*[class_sums(net['body'](images(fed, rows)), fed.y[rows], 10)
                                              for net, rows in zip(nets, fed.rows['train'])]))
    sent = (counts >= at_least).to(sums)
    total = (sent[..., None] * class_means(sums, counts)).sum(0)
    return total / sent.sum(0).clamp(min=1)[:, None], sent.sum(0) > 0

yours = run_ssc(mu=1)[0]
""", ('mu=1', 'mu=2')),
    '07_no_labels': ('def yours(n): return math.log(2 * n - 1)', ('2 * n - 1', '2 * n')),
    '08_no_server': ("""
W = torch.zeros(10, 10).double()
for i in range(10): W[i, [i - 1, i, (i + 1) % 10]] = 1 / 3
""", ('1 / 3', '1 / 2'))}


def checks_of_exercises(page):
    "The checks in the exercises of a page."
    text, = (c.source for c in page_source(page).cells if c.source.startswith('## Five exercises'))
    return re.findall(r'`(assert [^`]+)`', text)


@pytest.mark.parametrize('page', PAGES)
def test_the_check_of_an_exercise_takes_a_solution_and_no_other(page, untouched):
    space, _ = untouched(page)
    check, = checks_of_exercises(page)
    lines, change = SOLUTIONS[page]
    for code, right in ((lines, True), (lines.replace(*change), False)):
        with patch.dict(space): # the functions of the page see what the solution defines
            exec(code, space)
            with contextlib.nullcontext() if right else pytest.raises(AssertionError): exec(check, space)
