"""Which corrections of tinygrad are still needed: each is left out in turn, and the test that it names must fail, on
the device that it names.

python -m tests.corrections            all of them
python -m tests.corrections nan ...    those whose names have one of these words
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from functools import cache

from tests import devices
from torch_tinygrad import corrections

WITHOUT = """
import sys, pytest, torch
from torch_tinygrad import corrections
del corrections.ALL[sys.argv[1]]
sys.exit(pytest.main(["-q", "-x", "--no-header", "--tb=line", "-p", "no:cacheprovider", *sys.argv[2:]]))
"""

is_there = cache(devices.is_there)


def outcome(one: corrections.Correction) -> str:
    """What the named test does without the correction. Programs that were compiled with it must not be found, what
    cannot be compiled without it must not run directly instead, and no process that has it may compile kernels."""
    if one.device and not is_there(one.device):
        return f"shows it on {one.device}, which is not here"
    with tempfile.TemporaryDirectory() as folder:
        environment = devices.environment(one.device) if one.device else dict(os.environ)
        environment |= {"TORCH_TINY_CACHE": folder, "TORCH_TINY_COMPILE": "always", "TORCH_TINY_FALLBACK": "error"}
        environment["PARALLEL"] = "1"
        line = [sys.executable, "-c", WITHOUT, one.name, f"tests/{one.test}"]
        done = subprocess.run(line, env=environment, capture_output=True, text=True, timeout=600)
    words = {0: "passes without it", 1: "fails without it", 5: "is not there"}
    last = [text for text in done.stdout.splitlines() if text.strip()][-1:] or [done.stderr.strip()[-200:]]
    skipped = done.returncode == 0 and " passed" not in last[0]
    return f"{'is skipped here' if skipped else words.get(done.returncode, 'cannot run without it')} ({last[0]})"


def main(words: list[str]) -> int:
    wanted = [one for one in corrections.ALL.values() if not words or any(word in one.name for word in words)]
    idle = 0
    for one in wanted:
        found = outcome(one)
        idle += found.startswith("passes")
        print(f"{one.name}: tests/{one.test} {found}", flush=True)
    print(f"{len(wanted)} corrections, {idle} that their tests do not need")
    return int(idle > 0)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
