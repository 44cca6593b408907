"""An accelerator that is only pretended. Its tensors say that they lie on another device, and their
numbers are computed on the CPU. It refuses what a real one refuses: operations between devices,
and, while a step is recorded, copies from the CPU and questions about values. So it needs no
hardware, and what it computes has the CPU's bits."""
import contextlib

import torch
from torch.utils._python_dispatch import TorchDispatchMode

NAME = 'lazy' # a device type that torch knows, whose autograd runs without a device
def operations(names): return {f'aten::{name}' for name in names.split()}


# the computer waits for a value
ASKS = operations("""
    _local_scalar_dense nonzero masked_select _unique2 unique_dim unique_consecutive equal bincount
    _linalg_eigh""")
# may have a CPU's scalar
SCALARS = operations("""
    add add_ sub sub_ rsub mul mul_ div div_ true_divide pow pow_ eq ne lt le gt ge maximum minimum
    where lerp logical_and logical_or bitwise_and bitwise_or atan2 remainder clamp addcmul copy_
    _to_copy""")
# may have a CPU's indices
INDEXING = operations('index index_put index_put_ _unsafe_index')
recording = False


class Mismatch(Exception): "An operation between two devices."
class Forbidden(Exception): "What a recorded step may not do."


class There(torch.Tensor):
    "A tensor on the pretended device."
    @staticmethod
    def __new__(cls, inner):
        layout = dict(strides=inner.stride(), storage_offset=inner.storage_offset(), dtype=inner.dtype)
        t = torch.Tensor._make_wrapper_subclass(cls, inner.shape, device=f'{NAME}:0', **layout)
        t.inner = inner
        return t
    def __repr__(self): return f'There({self.inner})'
    def tolist(self):
        ask('tolist')
        return self.inner.tolist()
    def __deepcopy__(self, memo):
        t = self.detach().clone()
        if isinstance(self, torch.nn.Parameter): t = torch.nn.Parameter(t, self.requires_grad)
        memo[id(self)] = t
        return t
    @classmethod
    def __torch_dispatch__(cls, op, types, args=(), kwargs=None): return compute(op, args, kwargs or {})


class Pretend(TorchDispatchMode):
    def __torch_dispatch__(self, op, types, args=(), kwargs=None): return compute(op, args, kwargs or {})


class Chance(torch.Generator):
    "A generator on the pretended device."
    device = torch.device(NAME)


class Generator:
    def __new__(cls, device='cpu'): return Chance() if there(device) else REAL(device)


REAL = torch.Generator
def there(device): return device is not None and torch.device(device).type == NAME
def home(v): return v.inner if isinstance(v, There) else v


def ask(what):
    if recording: raise Forbidden(f'{what} asks the device for a value')


def tensors_in(value, found):
    "Append the tensors of an operation's arguments to a list. (torch's own tree functions are slow.)"
    if isinstance(value, torch.Tensor): found.append(value)
    elif isinstance(value, (tuple, list)):
        for v in value: tensors_in(v, found)


def mapped(fn, value):
    "An operation's arguments or results with `fn` of each tensor."
    if isinstance(value, torch.Tensor): return fn(value)
    if isinstance(value, (tuple, list)): return type(value)(mapped(fn, v) for v in value)
    return value


def compute(op, args, kwargs):
    "An operation on the inner tensors, if a device would do it."
    to, tensors = kwargs.get('device'), []
    for v in (*args, *kwargs.values()): tensors_in(v, tensors)
    cpu = [v for v in tensors if not isinstance(v, There)]
    abroad = len(cpu) < len(tensors)
    if abroad or recording: refuse(op, args, to, tensors, cpu)
    if there(to): kwargs = kwargs | {'device': 'cpu'}
    out = op(*mapped(home, args), **{k: mapped(home, v) for k, v in kwargs.items()})
    known = {id(home(v)): v for v in tensors}
    goes = there(to) if to is not None else abroad
    def returned(v):
        if id(v) in known: return known[id(v)]
        return There(v) if goes and not isinstance(v, There) else v
    return mapped(returned, out)


def refuse(op, args, to, tensors, cpu):
    "Raise an error where a device would not do an operation, or a recorded step may not."
    name, abroad = op._schema.name, len(cpu) < len(tensors)
    moves = name in ('aten::copy_', 'aten::_to_copy')
    if abroad and cpu and not moves and not all(may_be_on_cpu(name, v, args) for v in cpu):
        raise Mismatch(f'{op} of {[(type(v).__name__, tuple(v.shape)) for v in tensors]}')
    if abroad and name in ASKS: ask(name)
    if not recording: return
    goes_there = cpu and (there(to) or abroad) and (moves or name in INDEXING)
    comes_home = moves and abroad and to is not None and not there(to)
    if goes_there or comes_home: raise Forbidden(f'{op} copies between devices')
    if name in INDEXING and any(is_mask(v) for v in args[1]):
        raise Forbidden(f'{op} by a mask asks the device for a size')


def may_be_on_cpu(name, v, args):
    "Whether a device's operation takes this tensor of the CPU: a scalar, or indices."
    if name in SCALARS and v.ndim == 0: return True
    return name in INDEXING and isinstance(args[0], There) and v.dtype in (torch.long, torch.bool)


def is_mask(v): return isinstance(v, torch.Tensor) and v.dtype == torch.bool


class Stream:
    def wait_stream(self, other): pass


def captured(step, stream):
    "A step that is watched, after one that is not."
    def watched():
        global recording
        recording = True
        try: step()
        finally: recording = False
    step()
    return watched


@contextlib.contextmanager
def accelerator(patch):
    "The name of the pretended device, while it is there."
    from fedcl_repro.federation import cuda_graphs as graphs
    from fedcl_repro.federation import loop
    def thread():
        Pretend().__enter__()
        torch._C._set_only_lift_cpu_tensors(True)
    patch.setattr(loop, 'one_thread', thread)
    patch.setattr(graphs, 'captured', captured)
    patch.setattr(torch, 'Generator', Generator)
    patch.setattr(torch, 'autocast', lambda *a, **k: contextlib.nullcontext())
    patch.setattr(torch.cuda, 'Stream', Stream)
    patch.setattr(torch.cuda, 'current_stream', Stream)
    patch.setattr(torch.cuda, 'stream', lambda stream: contextlib.nullcontext())
    patch.setattr(torch.cuda, 'synchronize', lambda: None)
    overwrites = torch.__future__.get_overwrite_module_params_on_conversion()
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    torch._C._set_only_lift_cpu_tensors(True)
    try:
        with Pretend(): yield NAME
    finally:
        torch._C._set_only_lift_cpu_tensors(False)
        torch.__future__.set_overwrite_module_params_on_conversion(overwrites)
