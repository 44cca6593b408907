"""Names are nouns: hardly any is a pronoun or an adverb, and annotations say what a result holds."""
import ast
from pathlib import Path

import fedcl_repro

PRONOUNS = set(
    'found told said about own made some apart at how who here there each more known asked of seen few much '
    'where word done left given kept both other others first last now then same alike way ways'.split())
BARE = 'dict', 'tuple', 'list'
MOST_PRONOUNS, MOST_BARE = .01, 245 # share of bound names; functions


def nodes():
    "The syntax of the library, node by node."
    for path in Path(fedcl_repro.__file__).parent.rglob('*.py'):
        if path.name != '_modidx.py': yield from ast.walk(ast.parse(path.read_text(encoding='utf-8')))


def bound_name(node):
    "The name that a node binds: a variable, an argument or a function."
    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store): return node.id
    if isinstance(node, ast.arg): return node.arg
    if isinstance(node, ast.FunctionDef): return node.name


def is_bare(node):
    "Whether a function says only that it returns a dict, a tuple or a list."
    return isinstance(node, ast.FunctionDef) and node.returns and ast.unparse(node.returns) in BARE


def test_names_are_nouns():
    names = [name for name in map(bound_name, nodes()) if name]
    pronouns = sorted(name for name in names if name in PRONOUNS)
    assert len(pronouns) <= MOST_PRONOUNS * len(names), pronouns


def test_annotations_say_what_a_result_holds():
    bare = [node.name for node in nodes() if is_bare(node)]
    assert len(bare) <= MOST_BARE, bare


def test_both_measures_count():
    tree = ast.parse('def told(own)->dict:\n    found = own\n    return found')
    names = list(filter(None, map(bound_name, ast.walk(tree))))
    assert set(names) == {'told', 'own', 'found'} <= PRONOUNS
    assert [node.name for node in ast.walk(tree) if is_bare(node)] == ['told']
