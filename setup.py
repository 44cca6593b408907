"""Everything that a package index wants to know is read from settings.ini."""
import shutil
from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup
from setuptools.command.build_py import build_py

here = Path(__file__).parent
parser = ConfigParser(delimiters=['='])
parser.read(here/'settings.ini')
cfg = parser['DEFAULT']


def lines(name): return [line for line in cfg[name].strip().splitlines() if line]


class BuildWithPages(build_py):
    "The modules, and beside them the notebooks with their results and figures; an editable install reads nbs/."
    def run(self):
        super().run()
        if self.editable_mode: return
        pages = Path(self.build_lib)/cfg['lib_name']/'nbs'
        shutil.rmtree(pages, ignore_errors=True)
        shutil.copytree(here/'nbs', pages, ignore=shutil.ignore_patterns('.*', '_*', 'nbdev.yml'))


extras = {name: cfg[f'{name}_requirements'].split() for name in cfg['extras'].split()}

setup(
    name=cfg['lib_name'],
    version=cfg['version'],
    description=cfg['description'],
    keywords=cfg['keywords'],
    author=cfg['author'],
    license='Apache-2.0',
    license_files=['LICENSE'],
    classifiers=lines('classifiers'),
    project_urls=dict(line.split(' = ') for line in lines('urls')),
    long_description=(here/'README.md').read_text(encoding='utf-8'),
    long_description_content_type='text/markdown',
    python_requires=f">={cfg['min_python']}",
    packages=find_packages(include=['fedcl_repro', 'fedcl_repro.*']),
    package_data={'fedcl_repro': ['py.typed', 'published/*', 'templates/*']},
    install_requires=cfg['requirements'].split(),
    extras_require=extras,
    entry_points=dict(console_scripts=cfg['console_scripts'].split()),
    cmdclass=dict(build_py=BuildWithPages),
)
