"What several tests of robustness share."
import pytest


@pytest.fixture
def registers_as_before():
    "What a test registers is gone after it: other tests send all entries to processes."
    from fedcl_repro.runs.run import REGISTERS, load_registers
    load_registers()
    before = {name: dict(register) for name, register in REGISTERS.items()}
    yield
    for name, register in REGISTERS.items():
        for key in set(register) - set(before[name]): del register[key]
