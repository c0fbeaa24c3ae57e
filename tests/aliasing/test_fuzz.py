"""Random programs of views and writes agree on both devices: a hypothesis state machine over the differential pair."""

from __future__ import annotations

import os

import pytest
from hypothesis import HealthCheck, Phase, note, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from tests.grammar import KINDS, random_program, step
from tests.programs import Pair, fails, minimal, replay

PROGRAMS = int(os.environ.get("TORCH_TINY_FUZZ_PROGRAMS", "20"))  # `make test-long` takes 300
STEPS = 30
CI = settings(
    max_examples=PROGRAMS,
    stateful_step_count=STEPS,
    derandomize=True,
    database=None,
    deadline=None,
    phases=(Phase.explicit, Phase.generate),
    suppress_health_check=list(HealthCheck),
)


class Drawn:
    """Choices made by hypothesis."""

    def __init__(self, data: st.DataObject):
        self.data = data

    def integer(self, low: int, high: int) -> int:
        return self.data.draw(st.integers(low, high))

    def pick(self, options):
        return self.data.draw(st.sampled_from(list(options)))


class Programs(RuleBasedStateMachine):
    """Every rule is one line of one kind; a program ends with a comparison of every storage."""

    ran = 0

    def __init__(self):
        super().__init__()
        self.pair = Pair()
        self.failed = False

    def do(self, data: st.DataObject, kind: str) -> None:
        try:
            step(self.pair, Drawn(data), kind)
        except AssertionError:
            self.explain()
            raise

    def explain(self) -> None:
        self.failed = True
        shortest = minimal(list(self.pair.lines)) if fails(self.pair.lines) else self.pair.lines
        note("the program, shortened:\n    " + "\n    ".join(shortest))

    @initialize(data=st.data())
    def first_tensor(self, data):
        self.do(data, "make")

    def teardown(self):
        Programs.ran += 1
        if not self.failed:
            try:
                self.pair.compare_values()
            except AssertionError:
                self.explain()
                raise


def _rule_of(kind: str):
    def run(self, data):
        self.do(data, kind)

    run.__name__ = kind
    return rule(data=st.data())(run)


# A kind is as likely as its weight: hypothesis chooses among rules evenly, so heavier kinds are several rules.
for _kind, (_, _weight) in KINDS.items():
    for _copy in range((_weight + 1) // 2):
        setattr(Programs, f"{_kind}_{_copy}", _rule_of(_kind))


def test_random_programs_agree_on_both_devices():
    run_state_machine_as_test(Programs, settings=CI)
    assert Programs.ran >= PROGRAMS


@pytest.mark.parametrize("seed", range(PROGRAMS // 3))
def test_random_program_of_a_seed_agrees(seed):
    assert random_program(seed).lines


def test_a_wrong_value_is_found_and_shortened():
    program = ["t1 = torch.zeros(4, device=device)", "t2 = t1[1:]", "t2.add_(1)", "t1.mul_(2)"]
    broken = [
        *program[:2],
        "t3 = torch.ones(2, device=device)",
        "t2.add_(1 if str(device) == 'cpu' else 2)",
        program[3],
    ]

    def seen_as_broken(lines):
        pair = Pair()
        pair.tiny["device"] = type("Named", (str,), {"__str__": lambda self: "other"})(pair.tiny["device"])
        try:
            for line in lines:
                pair.run(line)
            pair.compare_values()
        except AssertionError as error:
            return str(error)
        return None

    assert fails(program) is None
    assert "storage of t1" in seen_as_broken(broken)
    assert minimal(broken, seen_as_broken) == [broken[0], broken[1], broken[3]]


def test_a_written_down_program_can_be_replayed():
    pair = replay(
        """
        t1 = data(4, 4, device=device)
        t2 = t1.t()[1:]
        t2 += 1
        flush()
        del t1
        read = t2.tolist()
        """,
        compare_each=True,
    )
    assert pair.live() == ["t2"]
