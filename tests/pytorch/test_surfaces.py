"""Names of PyTorch's that take a tensor or a device and that no other test calls: they give what the CPU gives."""

import copy
import io
import json
import pickle

import numpy
import pytest
import torch
from torch import nn
from torch.autograd import graph
from torch.nn.utils import parametrizations, prune, rnn

from tests.differential import DEVICE, assert_same_error, raised_by
from tests.processes import run


def whole(d):
    return (torch.arange(6, device=d) + 1) * 2


def real(d):
    return (torch.arange(6.0, device=d).view(2, 3) + 1) / 2


def network(d):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2)).to(d)


def gradients(model, d, x=None):
    model(real(d) if x is None else x).square().sum().backward()
    return [p.grad for p in model.parameters()]


def of_operator(name, operand):
    return lambda d: getattr(whole(d), name)(torch.tensor(operand, device=d) if isinstance(operand, list) else operand)


IN_PLACE = "__iand__ __ior__ __ixor__ __ilshift__ __irshift__ __imod__ __ifloordiv__".split()
PLAIN = (
    "__and__ __or__ __xor__ __lshift__ __rshift__ __mod__ __floordiv__ __truediv__ "
    "__rfloordiv__ __rlshift__ __rrshift__ __rtruediv__"
).split()

TENSORS = {
    **{name: of_operator(name, 3) for name in (*PLAIN, *IN_PLACE)},
    **{f"{name} of tensors": of_operator(name, [1, 2, 3, 1, 2, 3]) for name in (*PLAIN, *IN_PLACE)},
    "signs": lambda d: [+whole(d), ~whole(d), ~(whole(d) > 3)],
    "contains": lambda d: [4 in whole(d), 5 in whole(d), torch.tensor(4, device=d) in whole(d)],
    "as an index": lambda d: [10, 20, 30, 40][whole(d)[0]],
    "as an index, a float": lambda d: [10, 20][real(d)[0, 0]],
    "in a format": lambda d: f"{whole(d)[0]:5d} {real(d)[0, 0]:.3f} {real(d)[0, 1]}",
    "as numbers": lambda d: [float(real(d)[0, 0]), int(real(d)[1, 1]), bool(whole(d)[0]), complex(real(d)[0, 0])],
    "as a bool": lambda d: bool(whole(d)),
    "reversed": lambda d: list(reversed(whole(d))),
    "numpy's numbers": lambda d: [numpy.float32(2) * real(d), real(d) + numpy.float64(2), whole(d)[numpy.int64(2)]],
    "numpy's indices": lambda d: [whole(d)[numpy.array([1, 2])], whole(d)[numpy.array([True, False] * 3)]],
    "deletion": lambda d: whole(d).__delitem__(0),
    "pickled": lambda d: [pickle.loads(pickle.dumps(real(d).t()[1:], protocol)) for protocol in range(6)],
    "copied with its views": lambda d: (lambda c: [c[0].add_(1), c[1]])(copy.deepcopy((lambda t: [t, t[0]])(real(d)))),
    "copied in a graph": lambda d: copy.deepcopy(real(d).requires_grad_() * 2),
    "negated views": lambda d: (lambda t: [t._neg_view(), t._neg_view().add_(1), t])(real(d)),
    "imaginary parts of conjugates": lambda d: torch.complex(real(d), real(d)).conj().imag.add_(1),
    "views taken again": lambda d: real(d)[0]._view_func(real(d) + 10),
    "numbers of Philox": lambda d: (
        [
            draw(real(d), torch.tensor([1, 2], dtype=torch.uint64, device=d))
            for draw in (getattr(torch.Tensor, name) for name in ("_philox_normal_", "_philox_uniform_"))
            if draw is not None
        ]
        if hasattr(torch.Tensor, "_philox_normal_")
        else 0
    ),
    "addmm and an activation": lambda d: [
        torch._addmm_activation(torch.ones(3, device=d), real(d) - 2, torch.ones(3, 3, device=d), use_gelu=gelu)
        for gelu in (False, True)
    ],
    "the type of gradients": lambda d: (
        lambda t: (setattr(t, "grad_dtype", torch.float64), t.double().sum().backward(), t.grad)[2]
    )(real(d).requires_grad_()),
    "types by name": lambda d: [real(d).type(real(d).double().type()), whole(d).type_as(real(d))],
    "names of dimensions": lambda d: [
        real(d).refine_names("a", "b").align_to("b", "a").rename(None),
        real(d).rename("a", "b").sum("a"),
    ],
    "new ones": lambda d: [
        real(d).new([1, 2]),
        real(d).new_tensor([3]),
        real(d).new(2, 3).shape,
        real(d).new_full((2,), 3),
    ],
    "windows": lambda d: [
        getattr(torch, f"{name}_window")(length, periodic, device=d)
        for name in ("bartlett", "blackman", "hamming", "hann", "kaiser")
        for length in (0, 1, 2, 7)
        for periodic in (True, False)
    ],
}

GENERATORS = {
    "seeds": lambda d: [torch.Generator(d).manual_seed(s).initial_seed() for s in (0, -1, 2**63, 2**64 - 1, -(2**63))],
    "a seed too large": lambda d: torch.Generator(d).manual_seed(2**64),
    "states of another type": lambda d: type(raised_by(lambda: torch.Generator(d).set_state(torch.zeros(3)))).__name__,
    "a state set again": lambda d: (
        lambda g: (
            lambda s: torch.equal(
                torch.rand(3, generator=g, device=d), (g.set_state(s), torch.rand(3, generator=g, device=d))[1]
            )
        )(g.get_state())
    )(torch.Generator(d).manual_seed(5)),
    "a state copied": lambda d: (
        lambda g: torch.equal(*[torch.rand(3, generator=x, device=d) for x in (g.clone_state(), g)])
    )(torch.Generator(d).manual_seed(5)),
    "a copy": lambda d: copy.deepcopy(torch.Generator(d).manual_seed(3)).initial_seed(),
}


def gradient_edge(d):
    x = real(d).requires_grad_()
    y = x * 2
    edge = graph.get_gradient_edge(y)
    along = torch.autograd.grad((y**2).sum(), edge)
    torch.autograd.backward(graph.get_gradient_edge(x * 3), torch.ones(2, 3, device=d))
    return [*along, x.grad]


def saved_tensors(d, around):
    model = network(d)
    with around:
        loss = model(real(d)).square().sum()
    loss.backward()
    return [p.grad for p in model.parameters()]


def mutated(d):
    with graph.allow_mutation_on_saved_tensors():
        x = real(d).requires_grad_()
        y = x.clone()
        total = (y**2).sum()
        y.sin_()
        total.backward()
    return x.grad


def several_gradients(d, mode):
    x, w, seen = real(d).requires_grad_(), real(d).requires_grad_(), []
    note = (lambda gs: seen.extend(g * 1 for g in gs)) if mode == "all" else (lambda g: seen.append(tuple(g.shape)))
    graph.register_multi_grad_hook((x, w), note, mode=mode)
    (x * w * 2).sum().backward()
    return seen


def checkpointed(d, **options):
    model, x = network(d), real(d).requires_grad_()
    torch.utils.checkpoint.checkpoint(model, x, **options).square().sum().backward()
    return [x.grad, *(p.grad for p in model.parameters())]


def dropped_alike(d, use_reentrant):
    x = torch.ones(100, device=d, requires_grad=True)
    y = torch.utils.checkpoint.checkpoint(lambda t: nn.functional.dropout(t * 1, 0.5), x, use_reentrant=use_reentrant)
    y.sum().backward()
    return torch.equal(y, x.grad)


GRAPHS = {
    "hooks of saved tensors": lambda d: saved_tensors(
        d, graph.saved_tensors_hooks(lambda t: t.cpu(), lambda t: t.to(d))
    ),
    "saved on the CPU": lambda d: saved_tensors(d, graph.save_on_cpu()),
    "saved on the CPU, pinned": lambda d: saved_tensors(d, graph.save_on_cpu(pin_memory=True)),
    "edges": gradient_edge,
    "saved tensors written": mutated,
    "hooks of several gradients": lambda d: [several_gradients(d, "all"), several_gradients(d, "any")],
    "versions": lambda d: (lambda x, v: (graph.increment_version(x), x._version - v)[1])(
        *(lambda x: (x, x._version))(real(d))
    ),
    "checkpoints": lambda d: [checkpointed(d, use_reentrant=kind) for kind in (True, False)],
    "checkpoints, debugged": lambda d: checkpointed(d, use_reentrant=False, debug=True),
    "chosen checkpoints": lambda d: checkpointed(
        d,
        use_reentrant=False,
        context_fn=lambda: torch.utils.checkpoint.create_selective_checkpoint_contexts([torch.ops.aten.addmm.default]),
    ),
    "dropout in checkpoints": lambda d: [dropped_alike(d, True), dropped_alike(d, False)],
}


def weights(model):
    return list(model.state_dict().values())


def clipped(d, clip):
    model = network(d)
    gradients(model, d)
    return [clip(model.parameters()), [p.grad for p in model.parameters()]]


def clipped_with_a_norm(parameters):
    kept = list(parameters)
    nn.utils.clip_grads_with_norm_(kept, 0.5, nn.utils.get_total_norm([p.grad for p in kept]))


def clipped_though_not_finite(d):
    parameter = nn.Parameter(real(d))
    parameter.grad = real(d) * float("nan")
    nn.utils.clip_grad_norm_([parameter], 0.1, error_if_nonfinite=True)


def doubled_as_a_vector(d):
    model = network(d)
    nn.utils.vector_to_parameters(nn.utils.parameters_to_vector(model.parameters()) * 2, model.parameters())
    return weights(model)


def normed(d):
    model = parametrizations.weight_norm(network(d)[0])
    older = nn.utils.weight_norm(network(d)[0])
    return [
        model(real(d)),
        gradients(model, d),
        weights(model),
        older(real(d)),
        nn.utils.remove_weight_norm(older).weight,
    ]


def pruned(d):
    model, over_all = network(d), network(d)
    prune.l1_unstructured(model[0], "weight", amount=5)
    prune.ln_structured(model[2], "weight", 1, n=2, dim=0)
    prune.global_unstructured([(over_all[0], "weight"), (over_all[2], "weight")], prune.L1Unstructured, amount=6)
    return [gradients(model, d), weights(model), weights(over_all)]


def packed(d):
    lengths = torch.tensor([2, 3])
    sequence = rnn.pack_padded_sequence(real(d)[..., None], lengths, batch_first=True, enforce_sorted=False)
    return [sequence.data, sequence.batch_sizes, sequence.sorted_indices, *rnn.pad_packed_sequence(sequence)]


def averaged(d):
    model = network(d)
    average = torch.optim.swa_utils.get_ema_multi_avg_fn(0.9)
    kept = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=average)
    kept.update_parameters(model)
    model[0].weight.data.mul_(2)
    kept.update_parameters(model)
    return weights(kept)


def shapes_of_initial_values(d):
    initial = (["orthogonal_"], ["trunc_normal_"], ["sparse_", 0.5], ["kaiming_uniform_"], ["xavier_normal_"])
    return [tuple(getattr(nn.init, name)(torch.empty(4, 4, device=d), *more).shape) for name, *more in initial]


MODULES = {
    "clipped": lambda d: [
        clipped(d, lambda kept, norm=norm: nn.utils.clip_grad_norm_(kept, 0.1, norm_type=norm))
        for norm in (1.0, 2.0, float("inf"))
    ],
    "clipped by value": lambda d: clipped(d, lambda kept: nn.utils.clip_grad_value_(kept, 0.1)),
    "clipped with a norm": lambda d: clipped(d, clipped_with_a_norm),
    "clipped though not finite": clipped_though_not_finite,
    "a vector of parameters": doubled_as_a_vector,
    "norms of weights": normed,
    "pruned": pruned,
    "fused": lambda d: nn.utils.fuse_linear_bn_eval(network(d)[0].eval(), nn.BatchNorm1d(4).to(d).eval())(real(d)),
    "packed": packed,
    "averaged": averaged,
    "initial values": shapes_of_initial_values,
}


def loaded(d, place, weights_only, legacy=False):
    """What was saved with values still to be computed; what shared memory shares it again."""
    first = real(d)
    kept = io.BytesIO()
    state = {
        "first": first,
        "part": first[0],
        "turned": real(d).t()[1:],
        "parameter": nn.Parameter(real(d)),
        "cpu": real("cpu"),
    }
    torch.save(state, kept, _use_new_zipfile_serialization=not legacy)
    kept.seek(0)
    found = torch.load(kept, map_location=place(d), weights_only=weights_only)
    found["first"].add_(1)
    return [[value, value.stride(), type(value).__name__] for value in found.values()]


def mapped(d, path):
    torch.save({"a": real(d)}, path)
    return torch.load(path, mmap=True)["a"].add_(1)


PLACES = {
    "the CPU": lambda d: "cpu",
    "the device": lambda d: d,
    "a device object": torch.device,
    "nothing": lambda d: None,
    "a table": lambda d: {"tiny:0": "cpu", "cpu": d},
    "a function": lambda d: lambda storage, location: storage,
    "a function of nothing": lambda d: lambda storage, location: None,
}
FILES = {
    **{
        f"{name}, {weights_only}": lambda d, place=place, weights_only=weights_only: loaded(d, place, weights_only)
        for name, place in PLACES.items()
        for weights_only in (True, False)
    },
    "the old format": lambda d: loaded(d, lambda d: None, False, legacy=True),
}

SURFACES = {
    f"{group}: {name}": program
    for group, programs in {
        "tensors": TENSORS, "generators": GENERATORS, "graphs": GRAPHS, "modules": MODULES, "files": FILES,
    }.items()
    for name, program in programs.items()
}  # fmt: skip


def plain(value):
    if isinstance(value, torch.Tensor):
        return value.detach().cpu()
    return [plain(one) for one in value] if isinstance(value, (list, tuple)) else value


def compare(want, got):
    assert type(want) is type(got)
    if isinstance(want, list):
        assert len(want) == len(got)
        for one, other in zip(want, got, strict=True):
            compare(one, other)
    elif isinstance(want, torch.Tensor):
        torch.testing.assert_close(got, want)
    else:
        assert got == want


@pytest.mark.filterwarnings("ignore:Named tensors", "ignore:`torch.nn.utils.weight_norm`", "ignore:.*weight_norm")
@pytest.mark.parametrize("name", SURFACES)
def test_what_it_gives_is_what_the_cpu_gives(name):
    found, errors = {}, {}
    for device in ("cpu", DEVICE):
        errors[device] = raised_by(lambda device=device: found.update({device: plain(SURFACES[name](device))}))
    assert_same_error(errors["cpu"], errors[DEVICE])
    compare(found.get("cpu"), found.get(DEVICE))


def test_files_are_mapped(tmp_path):
    assert mapped(DEVICE, tmp_path / "a.pt").tolist() == mapped("cpu", tmp_path / "b.pt").tolist()


def test_operators_that_make_tensors_work_as_the_first_of_a_process():
    """Before the device is set up, PyTorch's own kernel for every device would be called."""
    code = """
    import json, torch
    print(json.dumps(torch.kaiser_window(7, False, 3.0, device="tiny").tolist()))
    """
    done = run(code, TORCH_TINY_COMPILE="never")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == pytest.approx(torch.kaiser_window(7, False, 3.0).tolist())
