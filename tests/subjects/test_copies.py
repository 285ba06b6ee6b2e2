"""Instances of own code are copies that begin alike, and share tables until one of them writes."""

import numpy as np
import torch

from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.calling.own_code import OwnCode
from ropeaudit.subjects.calling.signatures import can_be_copied, copied


class Cached(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(6.0).reshape(3, 2))
        self.plain, self.view = torch.ones(3), self.table[1:]
        self.log: list[int] = []


WRITES = {
    "in place": lambda one: one.table.add_(1),
    "data": lambda one: one.table.data.__setitem__((0, 0), 9.0),
    "numpy": lambda one: one.table.numpy().__setitem__((0, 0), 9.0),
    "pointer": lambda one: np.ctypeslib.as_array(
        (__import__("ctypes").c_float * 6).from_address(one.table.data_ptr())
    ).__setitem__(0, 9.0),
    "through a view": lambda one: one.view.mul_(3.0),
    "an attribute": lambda one: one.plain.zero_(),
    "a list": lambda one: one.log.append(1),
}


def held(one: Cached) -> list[object]:
    return [one.table.tolist(), one.plain.tolist(), list(one.log)]


def test_what_a_copy_writes_no_other_sees() -> None:
    for how, write in WRITES.items():
        first = Cached()
        before, copies = held(first), [copied(first), copied(first)]
        # both read the same memory until one writes, which a data pointer may
        assert torch._C._data_address(copies[0].table) == torch._C._data_address(first.table)
        write(copies[0])
        assert [held(first), held(copies[1])] == [before] * 2, how
        assert held(copies[0]) != before
        assert copies[0].view.tolist() == copies[0].table[1:].tolist()  # still a view


def test_a_torch_without_lazy_copies_copies(monkeypatch) -> None:
    monkeypatch.delattr(torch, "_lazy_clone")
    first = Cached()
    copied(first).table.zero_()
    assert first.table.any()


def test_objects_are_built_once_a_setting_and_functions_each_time() -> None:
    built = []

    class Rope:
        def __init__(self) -> None:
            built.append(self)
            self.past = 0

        def __call__(self, x, positions):
            return x

    def factory():
        return lambda x, positions: x

    own, setting = OwnCode("Rope", Rope), RopeSetting()
    first = own.instance(setting)
    first.past = 1
    assert own.instance(setting).past == 0
    assert own.instance(RopeSetting(base=5.0)) is not first
    assert len(built) == 2
    bound = Rope()
    bound.rotate = (lambda given: lambda x: given)(bound)  # a copy would keep it, and call the first
    assert not can_be_copied(bound)
    assert can_be_copied(Rope())
    assert not can_be_copied(factory())
