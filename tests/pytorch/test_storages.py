"""Storages, typed and untyped: every name that PyTorch's classes have, by `dir`, called on the device and the CPU."""

import copy
import io
import pickle
import sys

import pytest
import torch

from tests.differential import DEVICE, data, message_of, raised_by

pytestmark = pytest.mark.filterwarnings("ignore:TypedStorage is deprecated")

KINDS = ("untyped", "typed")
CASTS = (
    "bfloat16 bool byte char complex_double complex_float double float float8_e4m3fn float8_e4m3fnuz float8_e5m2 "
    "float8_e5m2fnuz half int long short"
).split()
# What PyTorch has of all objects, and what is a class's own: nothing of a device.
OF_OBJECTS = {*dir(object), "__annotations__", "__dict__", "__module__", "__weakref__"} - {
    "__eq__",
    "__reduce__",
    "__sizeof__",
}
# `del storage[0]` ends the process, on every device.
ENDS_THE_PROCESS = {"__delitem__"}


def saved(storage, **how):
    kept = io.BytesIO()
    torch.save(storage, kept, **how)
    kept.seek(0)
    return torch.load(kept, weights_only=False)


def written(storage, size, path):
    with open(path, "wb") as file:
        storage._write_file(file, True, True, size)
    return path.read_bytes()


def read(storage, path):
    path.write_bytes((6).to_bytes(8, "little") + bytes(range(24)))
    with open(path, "rb") as file:
        return storage._set_from_file(file, 0, True, 4)


def made_from_file(storage, path):
    path.write_bytes((6).to_bytes(8, "little") + bytes(range(24)))
    with open(path, "rb") as file:
        return type(storage)._new_with_file(file, 4)


def refusal(action):
    """Its message names what a process alone has."""
    return type(raised_by(action)).__name__


def weakly(storage, use):
    weak = storage._weak_ref()
    try:
        return use(weak)
    finally:
        storage._free_weak_ref(weak)


# What is done with a storage and the tensor that it is of; `p` is a path that nothing is at.
PROGRAMS = {
    "__getitem__": lambda s, t, p: [s[0], s[1], s[-1]],
    "__setitem__": lambda s, t, p: (s.__setitem__(0, 77), s.__setitem__(-1, 5)),
    "__getitem__ of a slice": lambda s, t, p: s[:8],
    "__setitem__ of a slice": lambda s, t, p: s.__setitem__(slice(2, 5), 5),
    "__getitem__ beyond": lambda s, t, p: s[1000],
    "__setitem__ beyond": lambda s, t, p: s.__setitem__(1000, 1),
    "__len__": lambda s, t, p: len(s),
    "__iter__": lambda s, t, p: list(iter(s)),
    "__repr__": lambda s, t, p: repr(s).replace("tiny:0", "cpu"),
    "__str__": lambda s, t, p: str(s).replace("tiny:0", "cpu"),
    "__sizeof__": lambda s, t, p: sys.getsizeof(s),
    "__eq__": lambda s, t, p: (s == s, s == 1, s in {s: 1}),
    "__copy__": lambda s, t, p: copy.copy(s).fill_(1),
    "__deepcopy__": lambda s, t, p: [copy.deepcopy(s), copy.deepcopy([s, s])[1]],
    "__reduce__": lambda s, t, p: pickle.loads(pickle.dumps(s)) if isinstance(s, torch.TypedStorage) else saved([s])[0],
    "_deepcopy": lambda s, t, p: s._deepcopy({}),
    "_byteswap": lambda s, t, p: [s._byteswap(size) for size in (1, 2, 4, 8, 3)],
    "_byteswap of parts": lambda s, t, p: s._byteswap(5),
    "byteswap": lambda s, t, p: s.byteswap(torch.int32),
    "byteswap of shorts": lambda s, t, p: s.byteswap(torch.int16),
    "byteswap of complex": lambda s, t, p: s.byteswap(torch.complex128),
    "_cdata": lambda s, t, p: s._cdata == t.untyped_storage()._cdata,
    "_set_cdata": lambda s, t, p: torch.UntypedStorage(8, device=t.device)._set_cdata(s._cdata).tolist(),
    "_checkpoint_offset": lambda s, t, p: s._checkpoint_offset,
    "_fake_device": lambda s, t, p: s._fake_device,
    "_weak_ref": lambda s, t, p: weakly(s, s._expired),
    "_expired": lambda s, t, p: weakly(s, s._expired),
    "_free_weak_ref": lambda s, t, p: s._free_weak_ref(s._weak_ref()),
    "_new_with_weak_ptr": lambda s, t, p: weakly(s, s._new_with_weak_ptr),
    "_fix_weakref": lambda s, t, p: s._fix_weakref(),
    "_shared_incref": lambda s, t, p: s._shared_incref(),
    "_shared_decref": lambda s, t, p: (s._shared_incref(), s._shared_decref())[0],
    "_get_filename": lambda s, t, p: s._get_filename(),
    "filename": lambda s, t, p: s.filename,
    "_get_shared_fd": lambda s, t, p: s._get_shared_fd(),
    "_get_legacy_storage_class": lambda s, t, p: s._get_legacy_storage_class().__name__,
    "_pickle_storage_type": lambda s, t, p: s._pickle_storage_type(),
    "pickle_storage_type": lambda s, t, p: s.pickle_storage_type(),
    "_maybe_wrap_index": lambda s, t, p: s._maybe_wrap_index(-1),
    "_getitem": lambda s, t, p: s._getitem(2),
    "_setitem": lambda s, t, p: s._setitem(2, 9),
    "_new_wrapped_storage": lambda s, t, p: s._new_wrapped_storage(t.untyped_storage()),
    "_new_shared": lambda s, t, p: s._new_shared(4, device=t.device).fill_(3),
    "_new_shared_cuda": lambda s, t, p: s._new_shared_cuda(*[0] * 8),
    "_new_shared_fd_cpu": lambda s, t, p: s._new_shared_fd_cpu(-1, 8),
    "_new_shared_filename_cpu": lambda s, t, p: refusal(lambda: s._new_shared_filename_cpu(b"", b"nothing", 8)),
    "_new_using_fd_cpu": lambda s, t, p: s._new_using_fd_cpu(8).nbytes(),
    "_new_using_filename_cpu": lambda s, t, p: s._new_using_filename_cpu(8).nbytes(),
    "_new_with_file": lambda s, t, p: made_from_file(s, p).tolist(),
    "_set_from_file": lambda s, t, p: read(s, p),
    "_write_file": lambda s, t, p: written(s, 4, p),
    "_release_ipc_counter": lambda s, t, p: s._release_ipc_counter(b"", 0),
    "_release_ipc_counter_cuda": lambda s, t, p: s._release_ipc_counter_cuda(b"", 0),
    "_resize_with_addr_": lambda s, t, p: s._resize_with_addr_(8, s.data_ptr()),
    "_share_cuda_": lambda s, t, p: s._share_cuda_(),
    "_swap_data_ptr_": lambda s, t, p: s._swap_data_ptr_((t * 2).untyped_storage()),
    "_to": lambda s, t, p: s._to(torch.float64),
    "_dtype": lambda s, t, p: s._dtype,
    "_element_size": lambda s, t, p: s._element_size(),
    "_nbytes": lambda s, t, p: s._nbytes(),
    "_size": lambda s, t, p: s._size(),
    "_resize_": lambda s, t, p: (s._resize_(2 * s._size()), list(s)[: t.numel()]),
    "_data_ptr": lambda s, t, p: s._data_ptr() == t.data_ptr(),
    "_share_memory_": lambda s, t, p: s._share_memory_(),
    "_from_buffer": lambda s, t, p: s._from_buffer(bytes(8), dtype=torch.int16, byte_order="native"),
    "clone": lambda s, t, p: s.clone().fill_(4),
    "copy_": lambda s, t, p: s.copy_((t * 2).untyped_storage()),
    "copy_ from the CPU": lambda s, t, p: s.copy_(data(6, dtype=torch.int32).untyped_storage()),
    "copy_ to the CPU": lambda s, t, p: torch.UntypedStorage(24).copy_(t.untyped_storage(), non_blocking=True),
    "copy_ of another size": lambda s, t, p: s.copy_(torch.UntypedStorage(4).fill_(0)),
    "cpu": lambda s, t, p: s.cpu().tolist(),
    "cuda": lambda s, t, p: s.cuda(),
    "hpu": lambda s, t, p: s.hpu(),
    "data_ptr": lambda s, t, p: s.data_ptr() == t.data_ptr() != 0,
    "device": lambda s, t, p: s.device == t.device,
    "dtype": lambda s, t, p: s.dtype,
    "element_size": lambda s, t, p: s.element_size(),
    "fill_": lambda s, t, p: s.fill_(9),
    "from_buffer": lambda s, t, p: s.from_buffer(bytes(range(8)), dtype=torch.int16, byte_order="native"),
    "from_file": lambda s, t, p: (p.write_bytes(bytes(8)), s.from_file(str(p), False, 8))[1],
    "get_device": lambda s, t, p: s.get_device() == s.device.index,
    "is_cuda": lambda s, t, p: s.is_cuda,
    "is_hpu": lambda s, t, p: s.is_hpu,
    "is_sparse": lambda s, t, p: s.is_sparse,
    "is_sparse_csr": lambda s, t, p: s.is_sparse_csr,
    "is_tiny": lambda s, t, p: s.is_tiny == (t.device.type == "tiny"),
    "is_pinned": lambda s, t, p: s.is_pinned(),
    "mps": lambda s, t, p: str(s.mps()),
    "nbytes": lambda s, t, p: s.nbytes(),
    "new": lambda s, t, p: (s.new().nbytes(), s.new().device.type == t.device.type),
    "resizable": lambda s, t, p: s.resizable(),
    "resize_": lambda s, t, p: (s.resize_(48) is s, list(s)[: t.numel()], s.nbytes()),
    "share_memory_": lambda s, t, p: (s.share_memory_(), t.add_(1)),
    "size": lambda s, t, p: s.size(),
    "tiny": lambda s, t, p: (s.tiny().tolist(), s.tiny().device.type),
    "to": lambda s, t, p: (s.to(device="cpu").tolist(), s.to(device=t.device), s.to(device="meta").nbytes()),
    "tolist": lambda s, t, p: s.tolist(),
    "type": lambda s, t, p: s.type().replace("torch.tiny", "torch"),
    "untyped": lambda s, t, p: s.untyped(),
    **{name: lambda s, t, p, name=name: getattr(s, name)() for name in CASTS},
}
# Memory that is shared or pinned is the CPU's: what PyTorch says of it on any other device.
THE_CPUS = {
    "pin_memory": "cannot pin 'torch.storage.UntypedStorage' only CPU memory can be pinned",
    "_share_fd_cpu_": "_share_fd_: only available on CPU",
    "_share_filename_cpu_": "_share_filename_: only available on CPU",
}
OTHERWISE = {"is_shared", "_is_shared"}  # true of every device but the CPU


def storage_of(kind, tensor):
    return tensor._typed_storage() if kind == "typed" else tensor.untyped_storage()


def names(kind):
    return sorted(
        set(dir(torch.TypedStorage if kind == "typed" else torch.UntypedStorage)) - OF_OBJECTS - ENDS_THE_PROCESS
    )


def plain(value):
    """Without what differs between devices."""
    if isinstance(value, (torch.UntypedStorage, torch.TypedStorage)):
        return (
            type(value).__name__,
            getattr(value, "dtype", None),
            value.device.type.replace("tiny", "cpu"),
            value.tolist(),
        )
    if isinstance(value, torch.Tensor):
        return value.tolist()
    if isinstance(value, (list, tuple)):
        return [plain(one) for one in value]
    return value


def run(device, kind, program, path):
    tensor = (torch.arange(6, dtype=torch.int32, device=device) + 1) * 259  # pending
    storage = storage_of(kind, tensor)
    found = []
    error = raised_by(lambda: found.append(plain(program(storage, tensor, path))))
    return (type(error).__name__, message_of(error)) if error else found[0], (tensor + 1).tolist()


@pytest.mark.parametrize("kind", KINDS)
def test_every_method_gives_what_the_cpus_gives(kind, tmp_path):
    """On values that are still to be computed, and what they write is seen by the tensor."""
    covered = {name.partition(" ")[0] for name in PROGRAMS} | THE_CPUS.keys() | OTHERWISE
    assert not set(names(kind)) - covered, "names that PyTorch has, and no program"
    differing = {}
    for name, program in PROGRAMS.items():
        if name.partition(" ")[0] in names(kind):
            want, got = (run(device, kind, program, tmp_path / f"{device}.bin") for device in ("cpu", DEVICE))
            if repr(want) != repr(got) and not (  # nan is one
                name == "_new_shared_filename_cpu" and want[0][0] == got[0][0]
            ):
                differing[name] = (want, got)
    assert not differing, differing


@pytest.mark.parametrize("kind", KINDS)
def test_memory_of_the_cpu_is_refused(kind):
    storage = storage_of(kind, torch.ones(3, device=DEVICE))
    for name in sorted(THE_CPUS.keys() & set(names(kind))):
        with pytest.raises((TypeError, RuntimeError)) as refused:
            getattr(storage, name)()
        assert str(refused.value) == THE_CPUS[name]
    assert storage.is_shared()


def test_a_part_of_a_storage_is_refused():
    storage = torch.arange(6, device=DEVICE).untyped_storage()
    with pytest.raises(RuntimeError, match=r"take a part of a tensor"):
        storage[8:16].tolist()
    taken = torch.empty(0, dtype=torch.uint8, device="tiny").set_(storage)[8:16]
    assert taken.tolist() == [1, 0, 0, 0, 0, 0, 0, 0]


def test_tensors_that_reach_beyond_a_storage_made_shorter_are_refused():
    """The CPU reads and writes beyond it. A storage that is made as long again is written anew, as FSDP does."""
    for computed in (False, True):
        tensor = torch.arange(6, device=DEVICE) + 1
        if computed:
            torch.tiny.synchronize()
        storage = tensor.untyped_storage()
        storage.resize_(16)
        assert tensor[:2].tolist() == [1, 2]
        for use in (torch.Tensor.tolist, lambda t: t + 1, lambda t: t.add_(1), torch.Tensor.cpu, torch.Tensor.sum):
            with pytest.raises(
                RuntimeError, match=r"shape \[6\] needs 48 bytes of its storage, which was resized to 16"
            ):
                use(tensor)
        storage.resize_(32)
        with pytest.raises(RuntimeError, match=r"resized to 32"):
            tensor + 1
        torch.add(torch.ones(2, 6, dtype=torch.int64, device=DEVICE), 1, out=tensor)
        assert tensor.tolist() == [[2] * 6] * 2
        storage.resize_(0)
        storage.resize_(96)
        tensor.copy_(torch.ones(2, 6))
        assert tensor.sum().item() == 12


def test_classes_of_storages_by_type():
    tensor = torch.ones(3, dtype=torch.float16, device=DEVICE)
    kind = tensor.storage_type()
    assert kind is torch.tiny.HalfStorage and kind.dtype == torch.float16 and kind.__module__ == "torch.tiny"
    assert isinstance(tensor.storage(), kind) and not isinstance(tensor.storage(), torch.HalfStorage)
    assert kind(4).device.type == "tiny" and kind([1, 2]).tolist() == [1, 2]
    assert pickle.loads(pickle.dumps(kind)) is kind
    assert {
        dtype: torch.empty(0, dtype=dtype, device=DEVICE).storage_type().__name__ for dtype in (torch.int64, torch.bool)
    } == {
        torch.int64: "LongStorage",
        torch.bool: "BoolStorage",
    }
