"""Systems that lack something: a home, a place to write, a compiler. The device works, and says what is missing."""

from pathlib import Path

import pytest

from tests.processes import run
from torch_tinygrad.choice import is_host

PROGRAM = """
import torch
from torch import nn

def losses(device):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1)).to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    x = torch.linspace(-1, 1, 32).view(4, 8).to(device)
    found = []
    for step in range(3):
        optimizer.zero_grad()
        loss = model(x).square().mean()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
    many = torch.zeros(300, device=device)
    for i in range(300):
        many[i] = i
    return [*found, many.sum().item()]

torch.testing.assert_close(losses("tiny"), losses("cpu"))
"""


@pytest.mark.parametrize("home", [None, "/proc/nowhere", "/proc/self"])
def test_home_is_missing_or_cannot_be_written(home):
    code = "import os\n" + ("del os.environ['HOME']\n" if home is None else "") + PROGRAM + "print('works')"
    environment = {"TORCH_TINY_CACHE": "", "XDG_CACHE_HOME": ""}
    done = run(code, **environment, **({} if home is None else {"HOME": home}))
    assert done.stdout == "works\n" and done.stderr == "", done.stderr
    assert not Path("tinygrad").exists()  # nothing was written to the current folder instead


@pytest.mark.skipif(not is_host(), reason="other devices have compilers of their own")
@pytest.mark.parametrize("mode", ["auto", "always"])
def test_without_a_compiler_everything_works_with_one_warning(mode):
    code = f"""
import sys, warnings
sys.modules["ziglang"] = None
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    exec({PROGRAM!r})
import torch
texts = [str(w.message) for w in caught if "clang" in str(w.message)]
print(len(texts), "PATH" in texts[0], "pip install ziglang" in texts[0], torch.tiny.stats()["compiles"])
"""
    done = run(code, CC="", PATH="/nowhere", CACHELEVEL="0", TORCH_TINY_COMPILE=mode)
    assert done.stdout == "1 True True 0\n", done.stdout + done.stderr


@pytest.mark.skipif(not is_host(), reason="other devices have compilers of their own")
@pytest.mark.parametrize("compiler", ["gcc", "/nowhere/clang", "/bin/false", "gcc -m64"])
def test_a_compiler_that_is_meant_for_others_is_not_used(compiler):
    code = "import torch; print((torch.ones(64, device='tiny') * 3).sum().item(), torch.tiny.stats()['compiles'])"
    done = run(code, CC=compiler, CACHELEVEL="0", TORCH_TINY_COMPILE="always")
    assert done.stdout == "192.0 1\n" and done.stderr == "", done.stdout + done.stderr
