"""Environments that hold what a user has after `pip install`, and nothing else: a virtual environment with
links to the distributions that a list of requirements names, and to all that these require. The files are
borrowed from the environment that runs the tests, so nothing is downloaded or copied."""
import os
import subprocess
import sys
import sysconfig
import venv
from configparser import ConfigParser
from importlib.metadata import Distribution, PackageNotFoundError, distribution, distributions
from pathlib import Path

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

ROOT = Path(__file__).parents[2]
CONFIG = ConfigParser(delimiters=['='])
CONFIG.read(ROOT/'settings.ini')
CONFIG = CONFIG['DEFAULT']
EXTRAS = {name: CONFIG[f'{name}_requirements'].split() for name in CONFIG['extras'].split()}


def required(extra=''):
    "The requirements of the project, or those and an extra's, as `settings.ini` has them."
    return CONFIG['requirements'].split() + EXTRAS.get(extra, [])


def closure(requirements):
    "The distributions that satisfy the requirements, and what they require in turn; none may be missing."
    found, todo = {}, [Requirement(text) for text in requirements]
    while todo:
        asked = todo.pop()
        name = canonicalize_name(asked.name)
        known, extras = found.get(name, (None, set()))
        if known and asked.extras <= extras: continue
        known = distribution(name)
        found[name] = known, extras | asked.extras
        for text in known.requires or ():
            r = Requirement(text)
            applies = (r.marker is None or r.marker.evaluate(dict(extra=e)) for e in ('', *asked.extras))
            if any(applies): todo.append(r)
    return [d for d, _ in found.values()]


def is_installed(extra):
    "Whether everything that the extra names is in the environment that runs the tests."
    try: closure(required(extra))
    except PackageNotFoundError: return False
    return True


def files_of(d:Distribution):
    "Files of a distribution as (place in an environment, file); no scripts, which name an interpreter."
    for name in d.files or ():
        inside = 'share' in name.parts and name.parts.index('share')
        if name.parts[0] != '..': yield ('site', *name.parts), d.locate_file(name)
        elif inside: yield name.parts[inside:], d.locate_file(name)


def tree(dists):
    "The files of distributions as nested dicts: name -> dict or file."
    top = {}
    for d in dists:
        for (*folders, name), path in files_of(d):
            here = top
            for folder in folders: here = here.setdefault(folder, {})
            here[name] = path
    return top


def link(wanted, others, to):
    "Link files and folders into a folder; a folder that others share is made anew and holds links."
    to.mkdir(exist_ok=True)
    for name, what in wanted.items():
        if name == '__pycache__': continue
        if not isinstance(what, dict): (to/name).symlink_to(what)
        elif name in others: link(what, others[name], to/name)
        else: (to/name).symlink_to(folder_of(what))


def folder_of(files):
    "The folder in which these files lie."
    name, what = next(iter(files.items()))
    return (folder_of(what) if isinstance(what, dict) else what).parent


def environment(folder, requirements):
    "Make such an environment; its Python, and its folder of packages."
    venv.create(folder, symlinks=True)
    wanted = closure(requirements)
    names = {d.metadata['Name'] for d in wanted}
    rest = tree(d for d in distributions() if d.metadata['Name'] not in names)
    site = Path(sysconfig.get_path('purelib', vars=dict(base=folder, platbase=folder)))
    files = tree(wanted)
    link(files.pop('site'), rest.get('site', {}), site)
    link(files, rest, Path(folder))
    return Path(folder)/'bin'/'python', site


def reproduced(folder, *what):
    """`fedcl reproduce` with the base requirements alone: (exit code, folder with `runs` and `report`, what
    was said). One seed of each run."""
    python, _ = environment(folder/'base', required())
    folders = '--store', folder/'runs', '--out', folder/'report'
    command = python, '-m', 'fedcl_repro.cli', 'reproduce', *what, '--seeds', '1', *folders
    alone = {k: v for k, v in os.environ.items() if not k.startswith('PYTHON')}
    done = subprocess.run(command, cwd=ROOT, env=alone, capture_output=True, text=True)
    return done.returncode, folder, done.stdout + done.stderr


def bare_variables():
    "What this process has set, without what would show a clone to another Python."
    return {k: v for k, v in os.environ.items() if not k.startswith(('PYTHON', 'FEDCL_'))}


def pip(*words):
    subprocess.run([sys.executable, '-m', 'pip', '--quiet', *words], check=True, env=bare_variables())
