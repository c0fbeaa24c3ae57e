"""Bad calls: samples of PyTorch's operator database with one argument spoilt. Both devices raise the same exception,
word for word, or have the same result; what else there is keeps its values.

`python -m tests.bad_calls --minutes 60` goes on to another seed until the time is over and prints what differs; with
`--large`, results are inferred as those of large arguments are. Calls run in a process of their own, so that one that
ends it is a finding like any other."""

from __future__ import annotations

import argparse
import os
import random
import subprocess
import sys
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from torch.testing._internal.common_methods_invocations import op_db
from torch.utils._pytree import tree_flatten, tree_unflatten

from torch_tinygrad.conformance.compare import FORWARD, compare_errors, compare_results
from torch_tinygrad.conformance.runner import UNINITIALISED, Check, attempt
from torch_tinygrad.conformance.samples import chosen, placed

from .empties import replace_sample

DTYPES = (
    *(torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.complex64),
    *(torch.int64, torch.int32, torch.int8, torch.uint8, torch.bool),
)
NUMBERS = (0, -1, 1, 2, 7, 100, -100, 2**31, 2**62, 0.5, -0.5, 1e300, float("inf"), float("nan"), True, 1 + 2j)


def other_dtype(t: torch.Tensor, choose: random.Random) -> torch.Tensor:
    return t.to(choose.choice(DTYPES))


def other_rank(t: torch.Tensor, choose: random.Random) -> torch.Tensor:
    return t.unsqueeze(choose.randrange(t.dim() + 1)) if choose.random() < 0.5 or not t.dim() else t.select(0, 0)


def other_size(t: torch.Tensor, choose: random.Random) -> torch.Tensor:
    if not t.dim():
        return t
    dim = choose.randrange(t.dim())
    return torch.cat([t, t.narrow(dim, 0, 1)], dim) if choose.random() < 0.5 else t.narrow(dim, 0, t.size(dim) - 1)


def expanded(t: torch.Tensor, choose: random.Random) -> torch.Tensor:
    if not t.dim():
        return t
    dim = choose.randrange(t.dim())
    return t.narrow(dim, 0, 1).expand(t.shape)


def other_values(t: torch.Tensor, choose: random.Random) -> torch.Tensor:
    number = choose.choice([n for n in NUMBERS if not isinstance(n, complex)])
    if not t.is_floating_point() and not t.is_complex():
        number = 0 if t.dtype is torch.bool else choose.choice((0, -1, 7, 100))
    return torch.full_like(t, number)


# Where the CPU itself ends the process.
CRASHES = {
    "as_strided": "reads beyond its memory where numbers say so",
    "as_strided_copy": "the same",
    "as_strided_scatter": "the same",
    "_batch_norm_with_update": "reads beyond statistics that are too short",
    "native_batch_norm": "the same",
    "lu_unpack": "writes beyond its memory where pivots have other batches than the matrices",
}
# Where the CPU returns what its memory held.
UNDEFINED = {"grid_sampler_2d": "modes that do not exist"}
# Which of equal elements are named is promised by nobody: values alone are compared, and of argsort nothing.
TIES = {"sort", "topk", "kthvalue", "mode"}
SKIPPED = {*UNINITIALISED, *CRASHES, *UNDEFINED, "argsort"}

TENSORS: tuple[Callable, ...] = (other_dtype, other_rank, other_size, expanded, other_values)


def spoilt(value: Any, choose: random.Random) -> tuple[str, Any]:
    """What was done, and the argument afterwards."""
    if isinstance(value, torch.Tensor):
        how = choose.choice(TENSORS)
        return how.__name__, how(value.detach(), choose)
    if isinstance(value, torch.dtype):
        return "dtype", choose.choice(DTYPES)
    number = choose.choice(NUMBERS)
    return f"{value} becomes {number}", number


def bad_calls(info, choose: random.Random, count: int) -> Iterator[tuple[str, Any]]:
    dtypes = [d for d in DTYPES if d in info.supported_dtypes("cpu")]
    if not dtypes:
        return
    dtype = choose.choice(dtypes[:2])
    try:
        samples = [s for _, s in chosen(info, dtype, 8, False)]
    except Exception:
        return
    for _ in range(count if samples else 0):
        sample = choose.choice(samples)
        leaves, structure = tree_flatten((sample.input, sample.args, sample.kwargs))
        plain = all(
            not isinstance(v, torch.Tensor) or (v.layout is torch.strided and not v.is_quantized) for v in leaves
        )
        places = [i for i, v in enumerate(leaves) if isinstance(v, (torch.Tensor, int, float, torch.dtype))]
        if not places or not plain:
            continue
        place = choose.choice(places)
        try:
            what, leaves[place] = spoilt(leaves[place], choose)
        except Exception:
            continue
        yield (
            f"{info.formatted_name} {dtype} argument {place}: {what}",
            replace_sample(sample, *tree_unflatten(leaves, structure)),
        )


# Arguments for which the CPU computes for long, or takes all memory there is.
def is_bounded(sample) -> bool:
    leaves = tree_flatten((sample.input, sample.args, sample.kwargs))[0]
    numbers = [v for v in leaves if isinstance(v, (int, float)) and not isinstance(v, bool)]
    return not any(abs(v) >= 2**31 for v in numbers if v == v and isinstance(v, int))


def differences(
    infos, seed: int, device: str, count: int = 6, note: Callable[[str], object] = lambda what: None
) -> Iterator[tuple[str, str | None]]:
    """(what was tried, how it differs) for every call; `note` is told of each before it runs."""
    kept = torch.arange(5.0, device=device) + 1
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for info in infos:
            if info.name in SKIPPED:
                continue
            choose = random.Random(f"{seed} {info.formatted_name}")
            check = Check(info, torch.float32, 1, device)
            for what, sample in bad_calls(info, choose, count):
                if is_bounded(sample):
                    note(f"seed {seed}: {what}")
                    yield f"seed {seed}: {what}", difference(info, sample, device, check, kept)


def difference(info, sample, device: str, check: Check, kept: torch.Tensor) -> str | None:
    def run(on: str):
        results = [
            t.detach() if isinstance(t, torch.Tensor) else t
            for t in tree_flatten(placed(sample, on, operator=info.name).of(info))[0]
        ]
        if info.name in TIES and len(results) == 2:
            results[1] = results[1].shape
        for t in results:  # what is refused late is refused too
            _ = t.cpu() if isinstance(t, torch.Tensor) else t
        return results

    want, want_error = attempt(lambda: run("cpu"))
    got, got_error = attempt(lambda: run(device))
    kept.add_(1)
    try:
        compare_errors(want_error, got_error)
        if want_error is None:
            compare_results(want, got, device, FORWARD, check.values_matter(check.dispatched(sample)))
        first = kept.tolist()
        assert [v - first[0] for v in first] == [0, 1, 2, 3, 4], "another tensor's values"
    except Exception as error:
        return f"{type(error).__name__}: {' '.join(str(error).split())[:400]}"
    return None


DIFFERS, ALIKE = "differs: ", "alike"


def run_one_seed(options: argparse.Namespace) -> int:
    """What a child does: the operators from one on, each call noted before it runs."""
    for place, info in enumerate(operators(options.op)[options.first :], options.first):
        for what, how in differences(
            [info], options.seed, "tiny", note=lambda what, n=place: options.noted.write_text(f"{n}\n{what}")
        ):
            print(f"{DIFFERS}{what}: {how}" if how else ALIKE, flush=True)
            if time.time() > options.until:
                return 0
    return 0


def operators(names: list[str] | None) -> list:
    return [i for i in op_db if not names or i.name in names]


def search(options: argparse.Namespace) -> int:
    """Runs seed after seed in children; one that ends goes on with the next operator in another."""
    until, seed, first, tried, wrong = time.time() + 60 * options.minutes, options.seed, 0, 0, 0
    environment = {**os.environ, "TORCH_TINY_ASK_BYTES": "0"} if options.large else None
    with tempfile.TemporaryDirectory() as folder:
        noted = Path(folder, "noted")
        while time.time() < until:
            command = [sys.executable, "-m", "tests.bad_calls", "--seed", str(seed), "--first", str(first)]
            command += ["--noted", str(noted), "--until", str(until), *(["--op", *options.op] if options.op else [])]
            with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True) as child:
                assert child.stdout is not None
                for line in child.stdout:  # libraries write there too
                    tried += line.startswith((DIFFERS, ALIKE))
                    if line.startswith(DIFFERS):
                        wrong += 1
                        print(line.removeprefix(DIFFERS), end="", flush=True)
            seed, first = seed + 1, 0
            if child.returncode:
                place, what = noted.read_text().split("\n", 1)
                seed, first, wrong = seed - 1, int(place) + 1, wrong + 1
                print(f"{what}: the process ended with {child.returncode}", flush=True)
    print(f"{tried} bad calls, {wrong} answered differently")
    return int(wrong > 0)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--large", action="store_true")
    parser.add_argument("--op", nargs="*")
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    parser.add_argument("--noted", type=Path, help=argparse.SUPPRESS)
    parser.add_argument("--until", type=float, help=argparse.SUPPRESS)
    given = parser.parse_args()
    sys.exit(run_one_seed(given) if given.noted else search(given))
