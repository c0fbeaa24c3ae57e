"""Code for devices that are not here: compiles the traces of networks and loops with tinygrad's renderers for them.

`python -m tests.render [TARGET ...]`. tinygrad's NULL device takes any renderer and runs nothing; where one wants the
vendor's compiler, its source text is what is made. Prints kernels made and programs that could not be.
"""

from __future__ import annotations

import os
import subprocess
import sys
import types

# How DEV names each.
TARGETS = {
    "AMD": "NULL:HIP:gfx1100",
    "AMD, CDNA": "NULL:HIP:gfx942",
    "METAL": "NULL:METAL:Apple9",
    "CUDA": "NULL:CUDA:sm_90",
    "CUDA, PTX": "NULL:PTX:sm_80",
    "QCOM": "NULL:QCOMCL:a630",
    "CL": "NULL:OPENCL:cl_khr_fp64,cl_khr_fp16",
    "WEBGPU": "NULL:WGSL:shader-f16",
}
# Of the fuzzer's programs and loops.
SEEDS = 4
# Compilers that the renderers ask for, by module.
COMPILERS = {
    "tinygrad.runtime.ops_metal": ["MetalCompiler"],
    "tinygrad.runtime.support.compiler_cuda": ["NVRTCCompiler", "NVCCCompiler", "NVPTXCompiler", "PTXCompiler"],
    "tinygrad.runtime.support.compiler_amd": ["HIPCompiler", "HIPCCCompiler"],
    "tinygrad.runtime.support.compiler_qcom": ["QCOMCompiler"],
}


def _without_compilers() -> None:
    """The renderers' text is the result: modules of compilers are stood in for."""
    from tinygrad.device import Compiler

    for name, compilers in COMPILERS.items():
        module = types.ModuleType(name)
        for compiler in compilers:
            setattr(module, compiler, lambda *args, **options: Compiler())
        sys.modules[name] = module


def _reading_zeros() -> None:
    """What the host reads from a device that computes nothing: sizes may depend on it."""
    from tinygrad.runtime.ops_null import NullAllocator

    def zeros(self, destination: memoryview, source) -> None:
        destination[:] = bytes(len(destination))

    NullAllocator._copyout = zeros


def _programs():
    import torch

    from tests import grammar, models, programs, random_loops

    def training(make, batch):
        model = make().to("tiny")
        optimizer = torch.optim.AdamW(model.parameters())
        inputs, classes = (t.to("tiny") for t in batch)
        torch.nn.functional.cross_entropy(model(inputs), classes).backward()
        optimizer.step()

    def loops():
        a = torch.zeros(64, 64, device="tiny")
        for i in range(64):
            a[i] = a[i - 1] * 0.5 + i
        a.fill_diagonal_(2)
        a[:, ::3] += a[:, ::3].flip(0)
        a.cpu()

    def rows():
        x = torch.rand(8, 3000, device="tiny")
        (x.softmax(1), x.sort(1).values, x.cumsum(1), torch.nn.functional.layer_norm(x, (3000,)), x.long() // 7)
        torch.tiny.synchronize()

    def halves():
        x = torch.rand(64, 64, device="tiny", dtype=torch.float16)
        (x @ x).relu().cpu()

    def fuzzed_loop(seed):
        random_loops.run(random_loops.random_lines(seed), 8, "tiny")
        torch.tiny.synchronize()

    for seed in range(SEEDS):
        yield f"random program {seed}", lambda seed=seed: grammar.random_program(seed, make=programs.Blind)
        yield f"random loop {seed}", lambda seed=seed: fuzzed_loop(seed)
    yield "CNN", lambda: training(models.tiny_cnn, models.images(4, 8))
    yield "GPT", lambda: training(models.Transformer, models.next_tokens(2))
    yield "LSTM", lambda: training(models.LSTMClassifier, models.sequences(4))
    yield "write loops", loops
    yield "rows", rows
    if torch.float16 in torch.tiny.get_device_capability()["supported_dtypes"]:
        yield "half products", halves
    else:
        print("  half products: left out, it has no float16")


def _render() -> int:
    """In a process of its own, for the target that DEV names."""
    _without_compilers()
    _reading_zeros()
    import torch

    failed = 0
    for name, program in _programs():
        try:
            program()
        except Exception as error:
            failed += 1
            print(f"  {name}: {type(error).__name__}: {str(error)[:300]}")
    stats = torch.tiny.stats()
    print(f"  {stats['compiles']} programs, {stats['kernels']} kernels rendered, {failed} programs not")
    return failed


def main() -> int:
    if sys.argv[1:] == ["--here"]:
        return _render()
    failed = 0
    for name in sys.argv[1:] or TARGETS:
        print(f"{name} ({TARGETS[name]})", flush=True)
        settings = {"DEV": TARGETS[name], "NULL_ALLOW_COPYOUT": "1", "TORCH_TINY_CACHE": "0", "PARALLEL": "1"}
        settings |= {"TORCH_TINY_COMPILE": "always", "TORCH_TINY_FALLBACK": "error"}
        done = subprocess.run([sys.executable, "-m", "tests.render", "--here"], env={**os.environ, **settings})
        failed += done.returncode != 0
    return failed


if __name__ == "__main__":
    sys.exit(main())
