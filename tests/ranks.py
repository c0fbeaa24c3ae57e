"""Programs of several processes, run by `torchrun`: each compares the device with the CPU, on the same group.

`torchrun --standalone --nproc-per-node 2 -m tests.ranks collectives ddp`
"""

from __future__ import annotations

import contextlib
import copy
import faulthandler
import gc
import sys
import tempfile

import torch
import torch.distributed as dist
from torch import nn
from torch.nn import functional as F

from tests.differential import data, normal

DEVICES = ("cpu", "tiny")


def same(program) -> None:
    """The program's tensors are the same on both devices."""
    expected, got = (program(device) for device in DEVICES)
    assert len(expected) == len(got)
    for one, other in zip(expected, got, strict=True):
        assert other.device.type == "tiny"
        torch.testing.assert_close(other.cpu(), one)


def collectives() -> None:
    """Every collective, on tensors with work pending, and on views."""
    rank, size = dist.get_rank(), dist.get_world_size()

    def mine(device, *shape, **options):
        return data(*shape, seed=rank, device=device, **options) * 2 + rank

    def reductions(device):
        results = []
        for op in (dist.ReduceOp.SUM, dist.ReduceOp.MAX, dist.ReduceOp.MIN, dist.ReduceOp.PRODUCT):
            for dtype in (torch.float32, torch.int64, torch.bfloat16):
                t = mine(device, 5, dtype=dtype)
                before = t + 1
                dist.all_reduce(t, op=op)
                results += [t, before, t + before]
        part = mine(device, 4, 6)
        dist.all_reduce(part[1:3])
        root = mine(device, 3)
        dist.reduce(root, 0)
        return [*results, part, root if rank == 0 else mine(device, 1)]

    def gathers(device):
        parts = [torch.empty(4, device=device) for _ in range(size)]
        dist.all_gather(parts, mine(device, 4))
        whole = torch.empty(size * 4, device=device)
        dist.all_gather_into_tensor(whole, mine(device, 4))
        on_root = [torch.empty(2, device=device) for _ in range(size)] if rank == 0 else None
        dist.gather(mine(device, 2), on_root)
        return [*parts, whole, *(on_root or [])]

    def scatters(device):
        given = [mine(device, 3) + i for i in range(size)] if rank == 0 else None
        received = torch.zeros(3, device=device)
        dist.scatter(received, given)
        reduced = torch.empty(2, device=device)
        dist.reduce_scatter(reduced, [mine(device, 2) + i for i in range(size)])
        flat = torch.empty(2, device=device)
        dist.reduce_scatter_tensor(flat, mine(device, 2 * size))
        return [received, reduced, flat]

    def exchanges(device):
        taken = torch.empty(size * 2, device=device)
        dist.all_to_all_single(taken, mine(device, size * 2))
        t = mine(device, 5)
        dist.broadcast(t, size - 1)
        other = torch.empty(5, device=device)
        right, left = (rank + 1) % size, (rank - 1) % size
        sent = dist.isend(t + rank, right)
        dist.recv(other, left)
        sent.wait()
        for work in dist.batch_isend_irecv([dist.P2POp(dist.isend, t, right), dist.P2POp(dist.irecv, other, left)]):
            work.wait()
        return [taken, t, other]

    def asynchronous(device):
        t = mine(device, 1000)
        work = dist.all_reduce(t, async_op=True)
        beside = mine(device, 10) * 3
        work.wait()
        return [t * 2, beside]

    for program in (reductions, gathers, scatters, exchanges, asynchronous):
        same(program)
    dist.barrier()
    told = [None] * size
    dist.all_gather_object(told, {"rank": rank, "tensor": torch.ones(2, device="tiny") * rank})
    assert [t["rank"] for t in told] == list(range(size)) and told[-1]["tensor"].device.type == "tiny"
    subgroup = dist.new_group(list(range(size)))
    t = torch.ones(2, device="tiny")
    dist.all_reduce(t, group=subgroup)
    assert t.tolist() == [size, size]


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.unused = nn.Linear(8, 32), nn.Linear(32, 4), nn.Linear(2, 2)

    def forward(self, x):
        return self.second(F.gelu(self.first(x)))


def _train(model, device: str, steps: int = 6, no_sync: bool = False) -> list[float]:
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for step in range(steps):
        for part in range(2 if no_sync else 1):
            context = model.no_sync() if no_sync and part == 0 else contextlib.nullcontext()
            seed = 100 * dist.get_rank() + 10 * step + part
            with context:
                x, y = normal(16, 8, seed=seed, device=device), torch.arange(16, device=device) % 4
                loss = F.cross_entropy(model(x), y)
                loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def ddp() -> None:
    """DistributedDataParallel: losses are the CPU's, with buckets, unused parameters and gradients kept back."""
    torch.manual_seed(0)
    network = Net()
    used = copy.deepcopy(network)
    del used.unused
    for given, options, no_sync in (
        (used, {}, False),
        (used, {"bucket_cap_mb": 0.0005, "gradient_as_bucket_view": True}, False),
        (used, {}, True),
        (network, {"find_unused_parameters": True}, False),
    ):
        losses = {}
        for device in DEVICES:
            model = nn.parallel.DistributedDataParallel(copy.deepcopy(given).to(device), **options)
            losses[device] = _train(model, device, no_sync=no_sync)
        torch.testing.assert_close(losses["tiny"], losses["cpu"], rtol=1e-4, atol=1e-5)


def steady() -> None:
    """After DDP has laid out its buckets anew, in the second step, every step finds its programs."""
    model = nn.parallel.DistributedDataParallel(nn.Linear(4, 4).to("tiny"))
    compiles = []
    for step in range(5):
        model(normal(8, 4, seed=step, device="tiny")).square().sum().backward()
        with torch.no_grad():
            for p in model.parameters():
                p.sub_(p.grad * 0.1)
                p.grad = None
        torch.tiny.synchronize()
        compiles.append(torch.tiny.stats()["compiles"])
    assert compiles[2] == compiles[-1], f"compiled after the third step: {compiles}"


def fsdp() -> None:
    """fully_shard: losses are the CPU's."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    losses = {}
    for device in DEVICES:
        torch.manual_seed(0)
        model = Net().to(device)
        mesh = init_device_mesh(device, (dist.get_world_size(),))
        for layer in (model.first, model.second):
            fully_shard(layer, mesh=mesh)
        fully_shard(model, mesh=mesh)
        losses[device] = _train(model, device)
    torch.testing.assert_close(losses["tiny"], losses["cpu"], rtol=1e-4, atol=1e-5)


def dtensor() -> None:
    """DTensor and tensor parallel: values are the CPU's."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    results = {}
    for device in DEVICES:
        mesh = init_device_mesh(device, (dist.get_world_size(),))
        a, b = (distribute_tensor(normal(8, 8, seed=i, device=device), mesh, [Shard(i)]) for i in range(2))
        product = (a @ b).redistribute(placements=[Replicate()]).to_local()
        torch.manual_seed(0)
        model = Net().to(device)
        parallelize_module(model, mesh, {"first": ColwiseParallel(), "second": RowwiseParallel()})
        out = model(normal(4, 8, device=device))
        out.sum().backward()
        results[device] = [t.detach().cpu() for t in (product, out, model.first.weight.grad.full_tensor())]
    torch.testing.assert_close(results["tiny"], results["cpu"], rtol=1e-4, atol=1e-5)


def checkpoint() -> None:
    """torch.distributed.checkpoint: what one device saved, the other loads."""
    import torch.distributed.checkpoint as dcp

    folder = [tempfile.mkdtemp() if dist.get_rank() == 0 else None]
    dist.broadcast_object_list(folder)
    torch.manual_seed(0)
    source = Net().to("tiny")
    dcp.save(source.state_dict(), checkpoint_id=folder[0])
    for device in DEVICES:
        state = Net().to(device).state_dict()
        dcp.load(state, checkpoint_id=folder[0])
        for name, value in source.state_dict().items():
            assert state[name].device.type == device and torch.equal(state[name].cpu(), value.cpu())


def rpc() -> None:
    """torch.distributed.rpc sends tensors of the CPU, and says so."""
    from torch.distributed import rpc

    me, other = (f"worker{(dist.get_rank() + i) % dist.get_world_size()}" for i in range(2))
    rpc.init_rpc(me, rank=dist.get_rank(), world_size=dist.get_world_size())
    assert rpc.rpc_sync(other, torch.add, args=(torch.ones(2), 1)).tolist() == [2, 2]
    try:
        rpc.rpc_sync(other, torch.add, args=(torch.ones(2, device="tiny"), 1))
    except RuntimeError as error:
        assert "TensorPipe RPC backend only supports CPU tensors by default" in str(error), error
    else:
        raise AssertionError("a tensor of the device was sent")
    rpc.shutdown()


def default_group() -> None:
    """A group that names no backend."""
    assert dist.get_backend() in ("gloo", "undefined")
    t = torch.ones(3, device="tiny") * (dist.get_rank() + 1)
    dist.all_reduce(t)
    assert t.tolist() == [sum(range(1, dist.get_world_size() + 1))] * 3
    dist.barrier()


if __name__ == "__main__":
    faulthandler.dump_traceback_later(240, exit=True)  # who waits for ever says where
    names = sys.argv[1:]
    dist.init_process_group(*([] if names == ["default_group"] else ["gloo"]))
    for name in names:
        globals()[name]()
    dist.barrier()
    # What holds the group goes first, so that its threads end with it: where one of gloo's lets go of a barrier while
    # the interpreter ends, PyTorch asks for the interpreter's lock there and aborts.
    gc.collect()
    dist.destroy_process_group()
