"""What actors are asked and what they say passes as bytes, and every method ends in the bits of the loop. The
actors are in this process; `test_ray.py` has them on a cluster."""
import cloudpickle
import pytest
from test_methods import METHODS, assert_equal, final, looped, made, uneven

from fedcl_repro.federation.actors import RayActors, Resident, Seat
from fedcl_repro.federation.loop import Loop
from fedcl_repro.federation.optimisers import SGD
from fedcl_repro.federation.rounds import begin, rounds
from fedcl_repro.study.training import from_checkpoint, to_checkpoint


OPT = SGD(.05, .9)


def copied(value): return cloudpickle.loads(cloudpickle.dumps(value))


class InProcess(RayActors):
    "Two actors in this process, each with copies of all that it is given."
    def __init__(self, fed):
        self.fed, self.tables, self.local, self.tuned = fed, {}, Loop(fed), None
        self.seats = [Seat(copied(fed)) for _ in range(2)]

    def ask(self, seat, question): return copied(self.seats[seat].take(*copied(question)))
    def hear(self, seat, said): return said


@pytest.mark.parametrize('name', METHODS)
def test_every_method(name):
    at_home, fed = looped(name, OPT, 0), uneven(name, opt=OPT)
    far = final(name, fed, InProcess(fed), 2)
    assert far.clients.changed and all(isinstance(c, Resident) for c in far.clients.changed.values())
    assert len({c.seat for c in far.clients.changed.values()}) == 2
    assert_equal(at_home, far)
    assert (at_home.up, at_home.down) == (far.up, far.down)


@pytest.mark.parametrize('name', ['fedcosr', 'mfcl'])
def test_a_checkpoint_goes_on(name):
    "Under other actors, and in the loop; tables that were sent before are sent again."
    fed, stages = uneven(name), made(name, 3)
    first = next(rounds(InProcess(fed), stages))
    state, *_ = from_checkpoint(to_checkpoint(first, [], 0., 'ray'), 'cpu', begin(fed))
    expected = final(name, uneven(name))
    assert_equal(expected, final(name, fed, InProcess(fed), state=state))
    assert_equal(expected, final(name, fed, state=state))
