"""The guest's private descriptors lie at high numbers, where guest code does not meet them."""

from __future__ import annotations

import os

from atoll.guest.core.streams import copy_up


def test_a_descriptor_is_copied_to_the_first_free_number_and_no_child_inherits_it():
    read, write = os.pipe()
    taken = os.dup2(read, 700)
    copy = copy_up(write, taken)
    try:
        assert copy == taken + 1
        assert not os.get_inheritable(copy)
        os.write(copy, b"x")
        assert os.read(read, 1) == b"x"
    finally:
        for fd in (read, write, taken, copy):
            os.close(fd)
