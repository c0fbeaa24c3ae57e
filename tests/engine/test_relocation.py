"""Kernels that call the C library travel between processes: calls go by name."""

import json
import platform

import pytest
import torch  # noqa: F401  (the extension needs its libraries)

from tests.processes import run
from torch_tinygrad import _C
from torch_tinygrad.choice import is_host

pytestmark = pytest.mark.skipif(not is_host(), reason="about programs of the host")

# A processor without conversions of halves, and without instructions that round: compilers call functions for them.
PLAIN = "CPU:CLANG:x86_64,x86-64"
PROGRAM = """
import json, torch
torch.manual_seed(0)
halves, doubles = torch.randn(1000).half(), torch.randn(50, dtype=torch.float64)
assert torch.equal((halves.to("tiny") * 2 + 1).cpu(), halves * 2 + 1)
assert torch.equal((halves.to("tiny").double() * 1.1).half().cpu(), (halves.double() * 1.1).half())
assert torch.equal(doubles.to("tiny").floor().cpu(), doubles.floor())
print(json.dumps(torch.tiny.stats()))
"""


@pytest.mark.skipif(platform.machine() != "x86_64", reason="names a processor of this kind")
def test_kernels_that_call_the_c_library_are_kept(tmp_path):
    def outcome() -> dict:
        done = run(PROGRAM, DEV=PLAIN, TORCH_TINY_CACHE=str(tmp_path / "programs"), TORCH_TINY_COMPILE="always")
        assert done.returncode == 0, done.stderr
        return json.loads(done.stdout)

    first, second = outcome(), outcome()
    assert first["compiles"] == 3 and first["loads"] == 0
    assert second["compiles"] == 0 and second["loads"] == 3


def program_that_calls(symbol: str) -> _C.HostProgram:
    program = _C.HostProgram()
    program.add_kernel(bytes(16), [(symbol, 8)], [], [], 1, -1, False, 0)
    return program


def test_a_symbol_that_no_library_has_is_an_error_when_compiled_and_no_program_when_read():
    known, unknown = program_that_calls("cos"), program_that_calls("no_such_function_anywhere")
    known.load()
    with pytest.raises(RuntimeError, match="no_such_function_anywhere"):
        unknown.load()
    assert _C.HostProgram.from_bytes(known.to_bytes()).to_bytes() == known.to_bytes()
    assert _C.HostProgram.from_bytes(unknown.to_bytes()) is None


def test_what_is_no_program_is_not_read():
    data = program_that_calls("cos").to_bytes()
    assert _C.HostProgram.from_bytes(data[:-1]) is None and _C.HostProgram.from_bytes(data + b"\0") is None
