"""What random programs found: each finding as the shortest program that showed it."""

from __future__ import annotations

import torch

from tests.differential import both


def test_folded_numbers_of_narrow_integers_wrap_before_they_are_converted():
    def program(device):
        zero = torch.zeros(3, dtype=torch.uint8, device=device)
        return [(zero - 1).float(), (zero - 1).long(), (~zero).float(), (zero.to(torch.int8) - 129).float()]

    both(program)


def test_bits_of_a_folded_number_are_as_wide_as_its_dtype():
    def program(device):
        a = torch.ones(3, dtype=torch.float64, device=device)
        return [(a - a).abs().max(), torch.copysign(a - a, -a), (a.half() - a.half()).abs().max()]

    both(program)
