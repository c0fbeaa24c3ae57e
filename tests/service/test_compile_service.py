"""The compile service: programs from another process, which has bounds, dies with its parent and disturbs nobody."""

import os
import resource
import signal
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from tests.compiling import Asked, children, compiling_child, is_gone, key, long, short, until
from tests.processes import run
from torch_tinygrad.choice import is_host

pytestmark = pytest.mark.skipif(not is_host() or sys.platform != "linux", reason="asks Linux about processes")
ROOT = Path(__file__).parents[2]


def program(code: str) -> str:
    head = f"import os, sys; sys.path.insert(0, {str(ROOT)!r}); import torch; from tests.compiling import *\n"
    return head + textwrap.dedent(code)


@pytest.fixture(scope="module")
def asked():
    asked = Asked()
    yield asked
    asked.client.shutdown()


def test_nothing_is_started_before_the_first_request():
    before = children(os.getpid())
    asked = Asked()
    assert asked.client.available() and asked.client.pending() == 0 and asked.client.wait(0)
    assert asked.client.helper_pid() is None and children(os.getpid()) == before


SAME = """
from torch_tinygrad.engine import compile
known, plain = [], compile.compile_trace
def compile_trace(raw, varying, device_index):
    known.append(((raw, varying, device_index), made := plain(raw, varying, device_index)))
    return made
compile.compile_trace = compile_trace
model = torch.nn.Sequential(torch.nn.Linear(16, 32), torch.nn.Tanh(), torch.nn.Linear(32, 4)).to("tiny")
optimizer = torch.optim.Adam(model.parameters())
x = torch.randn(8, 16).to("tiny")
for step in range(3):
    optimizer.zero_grad()
    loss = model(x * (1.5 + step)).square().mean()
    loss.backward()
    optimizer.step()
asked = Asked()
for number, (arguments, made) in enumerate(known):
    asked.client.request(key(number), *arguments)
    assert asked.client.wait(200)
    assert asked.answers[-1] == (number, "ready", made.to_bytes()), asked.answers[-1][:2]
print(len(known) > 1)
"""


def test_the_program_is_the_same_as_compiled_here():
    done = run(program(SAME), TORCH_TINY_COMPILE="always")
    assert done.stdout == "True\n", done.stderr


def test_its_priority_counts_beside_its_parents(asked):
    """In a session of its own it took half of the processors, whatever its priority."""
    asked.answer(99, short())
    helper = asked.client.helper_pid()
    assert os.getsid(helper) == os.getsid(0)
    assert os.getpgid(helper) != os.getpgid(0)  # an interrupt from the terminal is not for it
    assert os.getpriority(os.PRIO_PROCESS, helper) >= min(os.getpriority(os.PRIO_PROCESS, 0) + 10, 19)


def test_newest_first_and_each_once(asked):
    asked.answers.clear()
    asked.ask(100, long())
    child = compiling_child(asked)
    for number in (100, 101, 102, 103, 102, 101):
        asked.ask(number, short(number))
    assert asked.client.pending() == 4
    os.kill(child, signal.SIGKILL)
    assert asked.client.wait(200)
    assert [answer[:2] for answer in asked.answers] == [
        (100, "failed"),
        (101, "ready"),
        (102, "ready"),
        (103, "ready"),
    ]


def test_the_oldest_of_too_many_gives_way(asked):
    asked.answers.clear()
    asked.ask(200, long())
    child = compiling_child(asked)
    for number in range(201, 201 + 66):
        asked.ask(number, short())
    assert [answer[:2] for answer in asked.answers] == [(201, "failed"), (202, "failed")]
    with asked.client._changed:
        asked.client._waiting.clear()
    os.kill(child, signal.SIGKILL)
    assert asked.client.wait(200)


@pytest.mark.parametrize("ending, lasts", [(signal.SIGKILL, False), (signal.SIGTERM, False), (signal.SIGSEGV, True)])
def test_a_compile_that_ends_by_a_signal(asked, ending, lasts):
    """A crash is remembered, what came from outside is not; the helper goes on."""
    number = 300 + ending
    asked.ask(number, long())
    helper = asked.client.helper_pid()
    os.kill(compiling_child(asked), ending)
    assert asked.client.wait(200)
    assert asked.answers[-1][:2] == (number, "failed") and ending.name in asked.answers[-1][2]
    assert (asked.client.known_failure(key(number)) is not None) == lasts
    assert asked.answer(number + 100, short())[0] == "ready" and asked.client.helper_pid() == helper


def test_a_helper_that_is_killed_is_replaced(asked):
    asked.ask(400, long())
    child, helper = compiling_child(asked), asked.client.helper_pid()
    os.kill(helper, signal.SIGKILL)
    assert asked.client.wait(200)
    assert asked.answers[-1][:2] == (400, "failed") and asked.client.known_failure(key(400)) is None
    until(lambda: is_gone(child))
    assert asked.answer(401, short())[0] == "ready" and asked.client.helper_pid() != helper


def test_what_cannot_be_lowered_is_remembered(asked):
    trace = short()
    trace.nodes[0] = ("aten::no_such_operator", *trace.nodes[0][1:])
    kind, reason = asked.answer(500, trace)
    assert kind == "failed" and "no_such_operator" in reason
    assert asked.client.known_failure(key(500)) == reason
    asked.answers.clear()
    asked.ask(500, trace)
    assert asked.answers == [(500, "failed", reason)]  # at once


def test_this_process_does_not_grow_with_what_a_compile_takes(asked):
    assert asked.answer(600, short())[0] == "ready"
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    asked.ask(601, long())
    child = compiling_child(asked)

    def taken() -> int:
        lines = Path(f"/proc/{child}/status").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("RssAnon"))

    first = taken()
    until(lambda: taken() > first + (50 << 10))
    os.kill(child, signal.SIGKILL)
    assert asked.client.wait(200)
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + (20 << 10)


BOUNDED = """
asked = Asked()
kind, reason = asked.answer(1, long())
print(kind, asked.client.known_failure(key(1)) == reason, reason)
"""


@pytest.mark.parametrize(
    "bound, words", [("SECONDS", ("1", "more than 1 s")), ("MEMORY", (str(64 << 20), "more than 64 MiB"))]
)
def test_a_compile_that_exceeds_its_bounds(bound, words):
    done = run(program(BOUNDED), **{f"TORCH_TINY_COMPILE_{bound}": words[0]})
    assert done.stdout.startswith("failed True ") and words[1] in done.stdout, done.stdout + done.stderr
    assert f"TORCH_TINY_COMPILE_{bound}" in done.stdout


def test_failures_are_kept_on_disk(tmp_path):
    code = program("""
    from torch_tinygrad import _C
    _C.set_disk_cache(sys.argv[1], "digest", 1 << 20)
    def client():
        return Asked(load_failure=_C.load_note, save_failure=_C.save_note)
    asked = client()
    trace = short()
    trace.nodes[0] = ("aten::no_such_operator", *trace.nodes[0][1:])
    first = asked.answer(7, trace)
    other = client()
    other.ask(7, trace)
    print(other.answers == [(7, *first)], other.client.helper_pid(), other.client.known_failure(key(8)))
    _C.set_disk_cache(sys.argv[1], "another digest", 1 << 20)
    print(client().client.known_failure(key(7)))
    """)
    command = [sys.executable, "-c", code, str(tmp_path / "programs")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300)
    assert done.stdout == "True None None\nNone\n", done.stdout + done.stderr


def started(code: str, **arguments) -> tuple[subprocess.Popen, list[int]]:
    """A program that is at work, and the processes it names."""
    process = subprocess.Popen(
        [sys.executable, "-c", program(code)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        **arguments,
    )
    return process, [int(pid) for pid in process.stdout.readline().split()]


def test_a_killed_parent_leaves_nothing():
    process, (_, child) = started(
        "asked = Asked(); asked.ask(1, long()); print(0, compiling_child(asked), flush=True); input()"
    )
    helper = int(Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[1])
    process.kill()
    process.wait()
    until(lambda: is_gone(helper) and is_gone(child))


def test_a_killed_parent_leaves_nothing_though_a_fork_of_it_lives_on():
    process, (fork, helper, child) = started("""
    import signal
    asked = Asked()
    asked.ask(1, long())
    child, helper = compiling_child(asked), asked.client.helper_pid()
    fork = os.fork()
    if fork == 0:
        asked.ask(2, short())
        os._exit(0) if asked.answers[-1][:2] != (2, "failed") or asked.client.available() else signal.pause()
    print(fork, helper, child, flush=True)
    input()
    """)
    process.kill()
    until(lambda: is_gone(helper) and is_gone(child))
    assert not is_gone(fork)
    os.kill(fork, signal.SIGKILL)
    process.communicate()


def test_a_killed_process_leaves_none_of_those_that_compile_kernels():
    process, workers = started(
        """
    with torch.tiny.compile_mode("always"):
        torch.stack([torch.rand(10 + i, device="tiny").sort().values.cumsum(0).sum() for i in range(12)]).cpu()
    print(*children(os.getpid()), flush=True)
    input()
    """,
        env={**os.environ, "PARALLEL": "2"},
    )
    assert len(workers) > 1
    process.kill()
    process.communicate()
    until(lambda: all(map(is_gone, workers)))


def test_an_exit_while_compiling_is_quick_and_silent():
    process, (helper, child) = started("""
    asked = Asked()
    asked.ask(1, long())
    child = compiling_child(asked)
    print(asked.client.helper_pid(), child, flush=True)
    """)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 0 and errors == "" and out == ""
    until(lambda: is_gone(helper) and is_gone(child))


def test_an_exit_right_after_a_request_is_silent():
    done = run(program("asked = Asked(); asked.ask(1, short())"))
    assert done.returncode == 0 and done.stderr == ""


def test_an_interrupt_at_the_terminal_is_not_for_the_helper():
    process, _ = started(
        """
        import signal
        signal.signal(signal.SIGINT, signal.default_int_handler)  # background jobs are started with it ignored
        asked = Asked()
        asked.ask(1, sums(range(3, 30)))
        compiling_child(asked)
        try:
            print(flush=True)
            while True:
                time.sleep(1)
        except KeyboardInterrupt:
            assert asked.client.wait(200)
            print(asked.answers[-1][1])
        """,
        start_new_session=True,
    )
    os.killpg(process.pid, signal.SIGINT)
    out, errors = process.communicate(timeout=200)
    assert out == "ready\n" and errors == ""


def test_two_processes_compile_the_same_trace(tmp_path):
    code = "asked = Asked(); print(0, flush=True); print(asked.answer(1, sums(range(3, 9)))[1].hex())"
    environment = {**os.environ, "CACHEDB": str(tmp_path / "tinygrad.db")}
    both = [started(code, env=environment)[0] for _ in range(2)]
    first, second = (process.communicate(timeout=300)[0] for process in both)
    assert first == second and len(first) > 1000


def test_caches_that_cannot_be_written_are_no_condition():
    nowhere = {"XDG_CACHE_HOME": "/proc/nowhere", "CACHEDB": "/proc/nowhere/db", "TORCH_TINY_CACHE": "/proc/nowhere"}
    done = run(program("print(Asked().answer(1, short())[0])"), HOME="/proc/nowhere", **nowhere)
    assert done.stdout == "ready\n" and done.stderr == "", done.stderr


def test_without_a_compiler_there_is_one_warning_and_one_that_appears_is_used():
    code = program("""
    import warnings
    path = os.environ["PATH"]
    from torch_tinygrad import clang
    found = clang.command()
    os.environ["PATH"], sys.modules["ziglang"] = "/nowhere", None
    asked = Asked()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        answers = [asked.answer(number, short()) for number in (1, 1, 2)]
    texts = [str(warning.message) for warning in caught]
    print([kind for kind, _ in answers], all("no compiler" in reason for _, reason in answers))
    print(len(texts), "PATH" in texts[0], "pip install ziglang" in texts[0], asked.client.helper_pid())
    os.environ["CC"] = found[0]
    if len(found) > 1:  # of the wheel
        del os.environ["CC"], sys.modules["ziglang"]
    time.sleep(2.1)
    print(asked.answer(1, short())[0])
    """)
    done = run(code, CC="", CACHELEVEL="0")
    assert done.stdout == "['failed', 'failed', 'failed'] True\n1 True True None\nready\n", done.stdout + done.stderr


def test_the_user_s_program_is_not_run_again(tmp_path):
    script = tmp_path / "script.py"  # without a guard for `__main__`
    script.write_text(program("print('once'); print(Asked().answer(1, short())[0])"))
    (tmp_path / "tinygrad_extension.py").write_text("raise SystemExit")
    done = subprocess.run([sys.executable, script.name], cwd=tmp_path, capture_output=True, text=True, timeout=200)
    assert done.stdout == "once\nready\n", done.stderr


def test_a_program_that_is_not_run_by_a_python_of_its_own_says_so():
    code = program("""
    sys.executable = "/usr/bin/env"
    asked = Asked()
    asked.ask(1, short())
    print(asked.client.available(), *asked.answers)
    """)
    done = run(code)
    assert done.stdout.startswith("False (1, 'failed', 'no process can be started"), done.stdout + done.stderr


def test_a_helper_of_another_version_is_not_used():
    code = program("""
    asked = Asked(digest="another")
    print(*asked.answer(1, short()))
    print(asked.client.known_failure(key(1)))
    """)
    done = run(code)
    assert done.stdout.startswith("failed the helper process has other versions") and done.stdout.endswith("None\n")
