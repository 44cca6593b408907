"""Everything that a package index wants to know is read from settings.ini."""
from configparser import ConfigParser
from pathlib import Path

from setuptools import find_packages, setup

here = Path(__file__).parent
parser = ConfigParser(delimiters=['='])
parser.read(here/'settings.ini')
cfg = parser['DEFAULT']

setup(
    name=cfg['lib_name'],
    version=cfg['version'],
    description=cfg['description'],
    keywords=cfg['keywords'],
    author=cfg['author'],
    license='Apache-2.0',
    license_files=['LICENSE'],
    long_description=(here/'README.md').read_text(encoding='utf-8'),
    long_description_content_type='text/markdown',
    python_requires=f">={cfg['min_python']}",
    packages=find_packages(include=['fedcl_repro', 'fedcl_repro.*']),
    package_data={'fedcl_repro': ['published/*']},
    install_requires=cfg['requirements'].split(),
    extras_require={extra: cfg[extra + '_requirements'].split() for extra in ('dev', 'flt', 'flower')},
    entry_points=dict(console_scripts=cfg['console_scripts'].split()),
)
