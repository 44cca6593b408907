"""What several tests share: one store of quick runs, trained once, and the folder of the project."""
import os
from pathlib import Path

import pytest
import torch

ROOT = Path(__file__).parents[1]
os.environ.setdefault('FEDCL_OFFLINE', '1') # no test downloads anything
torch.set_num_threads(1)


@pytest.fixture(scope='session')
def report(tmp_path_factory):
    "Everything in quick, one seed, on all cores: (exit code, folder with `runs` and `report`)."
    from fedcl_repro.cli import main
    folder = tmp_path_factory.mktemp('reproduce')
    code = main(['reproduce', '--all', '--seeds', '1', '--store', str(folder/'runs'), '--out', str(folder/'report')])
    return code, folder
