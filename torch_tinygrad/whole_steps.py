"""torch.compile of a whole training step: where dynamo takes `backward` into its graph, it takes the optimizer as well.

`torch._dynamo.config.trace_autograd_ops` is PyTorch's switch for the former. In `zero_grad` and `step` PyTorch breaks
the graph whichever way it stands, for Inductor's sake. With it, optimizers of torch.optim whose parameters are on the
device are traced as they are written, so that a step is one graph. Those that have hooks are left to PyTorch.
"""

from __future__ import annotations

import functools
import inspect
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from types import ModuleType
from typing import Any

import torch

from .on_import import after_import

METHODS = ("step", "zero_grad", "_init_group")
HOOKS = ("_optimizer_step_pre_hooks", "_optimizer_step_post_hooks")


def is_taken(optimizer: torch.optim.Optimizer) -> bool:
    """Whether steps of it are traced: nothing but PyTorch's own code, on tensors of the device alone."""
    if not getattr(torch._dynamo.config, "trace_autograd_ops", False):
        return False
    kind = type(optimizer)
    if not kind.__module__.startswith("torch.optim.") or kind in (torch.optim.SparseAdam, torch.optim.LBFGS):
        return False
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    if not parameters or any(p.device.type != "tiny" for p in parameters):
        return False
    if any(group.get("fused") or group.get("differentiable") for group in optimizer.param_groups):
        return False  # PyTorch traces no fused ones
    return hasattr(kind, "_init_group") and not _has_hooks(optimizer)


def _has_hooks(optimizer: torch.optim.Optimizer) -> bool:
    from torch.optim import optimizer as module

    from .backend import _after_optimizer_step

    of_all = [*module._global_optimizer_pre_hooks.values(), *module._global_optimizer_post_hooks.values()]
    its_own = [hook for name in HOOKS for hook in getattr(optimizer, name).values()]
    return any(hook is not _after_optimizer_step for hook in of_all + its_own)


def prepare(optimizer: Any) -> None:
    """What a first step makes, and what PyTorch's own tracing of optimizers makes of it: counts on the device."""
    for group in optimizer.param_groups:
        if "capturable" in group:
            group["capturable"] = True
        if all(optimizer.state.get(p) for p in group["params"] if p.requires_grad):
            continue
        with _gradients([p for p in group["params"] if p.requires_grad and p.grad is None]):
            of_each = len(inspect.signature(optimizer._init_group).parameters) - 1
            optimizer._init_group(group, *([] for _ in range(of_each)))
    for parameter, state in optimizer.state.items():
        for name, value in state.items():
            if name == "step" and isinstance(value, torch.Tensor) and value.device != parameter.device:
                state[name] = value.to(parameter.device)


@contextmanager
def _gradients(parameters: list[torch.Tensor]) -> Iterator[None]:
    for parameter in parameters:
        parameter.grad = torch.zeros_like(parameter)
    try:
        yield
    finally:
        for parameter in parameters:
            parameter.grad = None


def _builder(module: ModuleType) -> None:
    from torch._dynamo.guards import install_guard
    from torch._dynamo.source import AttrSource
    from torch._dynamo.variables.ctx_manager import GradModeVariable
    from torch._dynamo.variables.functions import UserMethodVariable
    from torch._dynamo.variables.misc import GetAttrVariable
    from torch._dynamo.variables.user_defined import UserDefinedObjectVariable

    class WholeOptimizer(UserDefinedObjectVariable):
        """An optimizer whose methods are those that PyTorch wraps: without graph breaks, profiles and hooks."""

        def var_getattr(self, tx: Any, name: str) -> Any:
            if name not in METHODS:
                return super().var_getattr(tx, name)
            method = getattr(self.value, name)
            return GetAttrVariable(
                self, name, py_type=type(method), source=self.source and AttrSource(self.source, name)
            )

        def call_method(self, tx: Any, name: str, args: Any, kwargs: Any) -> Any:
            if name not in METHODS:
                return super().call_method(tx, name, args, kwargs)
            method = UserMethodVariable(inspect.unwrap(getattr(type(self.value), name)), self)
            if name != "step":
                return method.call_function(tx, args, kwargs)
            mode = GradModeVariable.create(tx, False, initialized=True)
            mode.enter(tx)
            result = method.call_function(tx, args, kwargs)
            mode.exit(tx)
            return result

    builder = module.VariableBuilder  # type: ignore[attr-defined]
    wrap = builder._wrap

    @functools.wraps(wrap)
    def wrap_whole(self: Any, value: Any) -> Any:
        if not isinstance(value, torch.optim.Optimizer) or not is_taken(value):
            return wrap(self, value)
        prepare(value)
        self.install_guards(module.GuardBuilder.TYPE_MATCH)  # type: ignore[attr-defined]
        for name in HOOKS:  # the step is traced anew when there are some
            install_guard(AttrSource(self.source, name).make_guard(module.GuardBuilder.SEQUENCE_LENGTH))  # type: ignore[attr-defined]
        return self.tx.output.side_effects.track_object_existing(value, WholeOptimizer(value, source=self.source))

    builder._wrap = wrap_whole
    _share_none_without_marks()


def _share_none_without_marks() -> None:
    """Dynamo has one None for all, and notes beside it which gradient it was read from: later ones are then set to that
    gradient. (torch 2.13, `TensorVariable.var_getattr`; `test_a_loss_that_keeps_its_graph_breaks_it`)"""
    from torch._dynamo.variables import constant
    from torch._dynamo.variables.tensor import TensorVariable

    shared = getattr(constant, "CONSTANT_VARIABLE_NONE", None)
    read = TensorVariable.var_getattr

    @functools.wraps(read)
    def read_attribute(self: Any, tx: Any, name: str) -> Any:
        result = read(self, tx, name)
        if result is shared and result is not None:
            result.source = None
        return result

    TensorVariable.var_getattr = read_attribute  # type: ignore[method-assign]


def _if_it_is_built_so(module: ModuleType) -> None:
    try:
        _builder(module)
    except (ImportError, AttributeError) as error:
        message = f"tiny: optimizers are not part of torch.compile's graphs with torch {torch.__version__}: {error}"
        warnings.warn(message, stacklevel=2)


def register() -> None:
    after_import("torch._dynamo.variables.builder", _if_it_is_built_so)
