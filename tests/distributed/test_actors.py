"""What actors are asked and what they say passes as bytes, and every method ends in the bits of the loop. The
actors are in this process; `test_ray.py` has them on a cluster."""
import cloudpickle
import pytest
from federations import OF_THE_FRAME, assert_equal, final, looped, made, uneven

from fedcl_repro.federation.actors import RayActors, Resident, Seat
from fedcl_repro.federation.loop import Loop
from fedcl_repro.federation.optimisers import SGD
from fedcl_repro.federation.rounds import begin, rounds
from fedcl_repro.runs.session import from_checkpoint, to_checkpoint


OPT = SGD(.05, .9)


def copied(value): return cloudpickle.loads(cloudpickle.dumps(value))


class InProcess(RayActors):
    "Two actors in this process, each with copies of all that it is given."
    def __init__(self, fed):
        self.fed, self.tables, self.local, self.tuned = fed, {}, Loop(fed), None
        self.seats = [Seat(copied(fed)) for _ in range(2)]

    def ask(self, seat, question): return copied(self.seats[seat].take(*copied(question)))
    def hear(self, seat, said): return said


def assert_at_actors(at_home, far):
    "The same fields and bytes, and each client's fields stay with one of two actors."
    assert far.clients.changed and all(isinstance(c, Resident) for c in far.clients.changed.values())
    assert len({c.seat for c in far.clients.changed.values()}) == 2
    assert_equal(at_home, far)
    assert (at_home.up, at_home.down) == (far.up, far.down)


@pytest.mark.parametrize('name', OF_THE_FRAME)
def test_a_method(name):
    at_home, fed = looped(name, OPT, 0), uneven(name, opt=OPT)
    far = final(name, fed, InProcess(fed), 2)
    assert_at_actors(at_home, far)


@pytest.mark.parametrize('name', ['fedcosr', 'mfcl'])
def test_a_checkpoint_goes_on(name):
    """Under other actors, and in the loop. In MFCL's last round the server uses tables that were sent in the
    round before; whoever goes on from a checkpoint gets them again."""
    fed, stages = uneven(name), made(name, 4)
    *_, third, expected = rounds(Loop(fed), stages)
    for execute in (InProcess(fed), Loop(fed)):
        state, *_ = from_checkpoint(to_checkpoint(third, [], 0., 'ray'), 'cpu', begin(fed))
        assert_equal(expected, final(name, fed, execute, 4, state))
    *_, third, _ = rounds(InProcess(fed), stages)
    state, *_ = from_checkpoint(to_checkpoint(third, [], 0., 'ray'), 'cpu', begin(fed))
    assert_equal(expected, final(name, fed, InProcess(fed), 4, state))
