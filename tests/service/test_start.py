"""The first use of the device: the compiler is imported when the first trace is to be compiled, and not before."""

import json

import pytest

from tests.processes import run
from torch_tinygrad.choice import is_host

pytestmark = pytest.mark.skipif(not is_host(), reason="other devices are opened at once")

PROGRAM = """
import json, sys, torch
from torch_tinygrad import facts
facts.PACKAGED = facts.PACKAGED.with_name("none")
model = torch.nn.Linear(4, 3).to("tiny")
with torch.no_grad():
    model.weight.copy_(torch.arange(12.0).view(3, 4))
    model.bias.zero_()
x = torch.ones(2, 4, device="tiny")
lists = model(x).tolist()
print(json.dumps([lists, "tinygrad" in sys.modules, torch.tiny.stats()["loads"]]))
"""


def outcome(folder, program: str = PROGRAM):
    done = run(program, TORCH_TINY_CACHE=str(folder), TORCH_TINY_COMPILE="always")
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.fixture(scope="module")
def filled(tmp_path_factory):
    folder = tmp_path_factory.mktemp("cache") / "programs"
    first = outcome(folder)
    assert first[1] and first[2] == 0
    return folder, first


def test_a_second_process_needs_no_tinygrad(filled):
    folder, first = filled
    lists, has_tinygrad, loads = outcome(folder)
    assert lists == first[0] and not has_tinygrad and loads > 0


def test_what_is_kept_is_what_the_compiler_s_tables_say(filled):
    code = """
    import json, sys, torch
    from torch_tinygrad import facts
    facts.PACKAGED = facts.PACKAGED.with_name("none")
    kept, imported = facts.facts(), "tinygrad" in sys.modules
    same = kept == facts.gathered()
    print(json.dumps([same, imported, len(kept.lifts), len(kept.recorded), "BEAM" in kept.settings]))
    """
    same, imported, lowered, recorded, has_settings = outcome(filled[0], code)
    assert same and not imported and lowered > 500 and recorded > 500 and has_settings


NOTE = b"torch-tinygrad program has a note:\n"


@pytest.mark.parametrize("damage", [b"", NOTE + b"{", NOTE + b'{"a": 1}'])
def test_damaged_facts_are_gathered_again(filled, tmp_path, damage):
    folder, first = filled
    own = tmp_path / "programs"
    own.mkdir(mode=0o700)
    notes = 0
    for file in folder.iterdir():
        data = file.read_bytes()
        is_note = data.startswith(NOTE)
        notes += is_note
        (own / file.name).write_bytes(damage if is_note else data)
        (own / file.name).chmod(0o600)
    assert notes == 1
    lists, has_tinygrad, loads = outcome(own)
    assert lists == first[0] and has_tinygrad and loads > 0
    assert not outcome(own)[1]


def test_settings_of_tinygrad_make_other_programs(filled):
    done = run(PROGRAM, TORCH_TINY_CACHE=str(filled[0]), TORCH_TINY_COMPILE="always", NOOPT="1")
    assert json.loads(done.stdout)[2] == 0, done.stderr


def test_facts_that_came_with_the_package_are_used_while_they_are_true(tmp_path):
    code = f"""
    import json, sys, torch
    from pathlib import Path
    from torch_tinygrad import facts
    facts.PACKAGED = Path({str(tmp_path / "facts.json")!r})
    if not facts.PACKAGED.exists():
        facts.write_packaged()
        facts.PACKAGED.write_text(facts.PACKAGED.read_text().replace('"BEAM"', '"BEAM", "OURS"'))
        print(json.dumps(None))
    else:
        found = facts.facts()
        print(json.dumps(["OURS" in found.settings, "tinygrad" in sys.modules]))
    """
    outcome("0", code)
    assert outcome("0", code) == [True, False]
    stale = (tmp_path / "facts.json").read_text().replace('"of": "', '"of": "0')
    (tmp_path / "facts.json").write_text(stale)
    assert outcome("0", code) == [False, True]


def test_common_operators_import_no_compiler_of_pytorch_s():
    """Some of PyTorch's Meta kernels are Python, and import a second's worth of modules when they are first used."""
    program = """
    import json, sys, torch
    from torch.nn import functional as F
    x = torch.rand(16, 16).to("tiny")
    made = [torch.eye(4, device="tiny"), torch.eye(3, 5, device="tiny"), torch.arange(7, device="tiny"), x.tril()]
    made += [torch.linspace(0, 1, 5, device="tiny"), F.dropout(x, 0.0), x.roll(1, 0), x.cumsum(0), F.pad(x, (1, 2))]
    made += [x.std(0), F.layer_norm(x, (16,)), F.cross_entropy(x, torch.arange(16).to("tiny")), x @ x, x.softmax(1)]
    large = torch.ones(700, 600, device="tiny")  # too large for the CPU's kernels to be asked as they are
    made += [large + 1, large.exp(), large.tril(), large.cumsum(0), large.sort(1)[0], large.topk(3)[0], large.std(0)]
    made += [large > 0, large.softmax(1), F.layer_norm(large, (600,)), large @ large.t(), large.argmax(1)]
    made += [large.normal_(), F.max_pool2d(torch.ones(8, 64, 64, 64, device="tiny"), 3, 2, 1), large.repeat(2, 1)]
    made += [torch.randn(700, 600, device="tiny"), torch.randint(9, (900, 900), device="tiny"), torch.rand_like(large)]
    made += [torch.arange(500000, device="tiny"), torch.linspace(0, 1, 500000, device="tiny"), torch.randn_like(large)]
    made += [F.conv2d(torch.ones(8, 16, 64, 64, device="tiny"), torch.ones(16, 16, 3, 3, device="tiny"), padding=1)]
    print(json.dumps([[t.sum().item() for t in made[:3]], "sympy" in sys.modules, "torch._inductor" in sys.modules]))
    """
    done = run(program, TORCH_TINY_COMPILE="never")
    assert json.loads(done.stdout) == [[4, 3, 21], False, False], done.stderr
