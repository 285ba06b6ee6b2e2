"""Values go through a door and come out as they were; what is no value of ours is not believed."""

from __future__ import annotations

import json
import math
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from ropeaudit.arithmetic.formats import FORMATS, Format
from ropeaudit.door.messages import Malformed, Values
from ropeaudit.errors import BadInput, UnknownName, UsageError
from ropeaudit.rope.presets import all_presets
from ropeaudit.rope.scaling import Scaling
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects.calling.environments import ENVIRONMENTS, Environment

VALUES = Values([RopeSetting, Scaling, Environment, Format], FORMATS)

plain = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
keys = st.integers() | st.text() | st.tuples(st.integers(), st.text())
nested = st.recursive(
    plain,
    lambda one: st.lists(one) | st.lists(one).map(tuple) | st.dictionaries(keys, one),
    max_leaves=12,
)


def through(value: Any) -> Any:
    arrays: dict[str, Any] = {}
    told = json.loads(json.dumps(VALUES.packed(value, arrays)))
    return VALUES.unpacked(told, arrays)


@given(nested)
@example([math.nan, math.inf, -math.inf])
def test_what_is_sent_arrives(value) -> None:
    assert repr(through(value)) == repr(value)  # 0.0 is not -0.0, and True not 1


@given(st.frozensets(keys))
def test_sets_arrive(value) -> None:
    assert through(value) == value
    assert through(set(value)) == value


def test_the_settings_of_every_model_arrive() -> None:
    for model in all_presets():
        assert through(list(model.layers.values())) == list(model.layers.values())


def test_there_is_one_of_each_format_on_either_side() -> None:
    for environment in ENVIRONMENTS.values():
        arrived = through(environment)
        assert arrived == environment
        assert arrived.dtype is environment.dtype
    assert all(through(one) is one for one in FORMATS)


@pytest.mark.parametrize("dtype", ["float16", "float32", "float64", "int64", "bool", "uint8"])
def test_arrays_arrive_bit_for_bit(dtype) -> None:
    array = np.array([[0, 1, 2], [3, 4, 5]]).astype(dtype)
    arrived = through({"x": (array, array[0, 1])})["x"]
    assert arrived[0].dtype == array.dtype
    assert arrived[0].tobytes() == array.tobytes()
    assert type(arrived[1]) is type(array[0, 1])


@pytest.mark.parametrize(
    "error",
    [UsageError("a", "b", "c"), BadInput("x.csv is torn; remove it"), UnknownName("recipe", "hg", ["hf"])],
)
def test_errors_of_ours_arrive_and_can_be_raised(error) -> None:
    with pytest.raises(type(error)) as raised:
        raise through(error)
    assert raised.value.typed == error.typed
    assert str(raised.value) == str(error)
    assert raised.value.fault == error.fault


@pytest.mark.parametrize("value", [object(), 1j, b"", int, test_what_is_sent_arrives])
def test_what_is_no_value_is_not_sent(value) -> None:
    with pytest.raises(TypeError, match="is not sent"):
        through([value])


@pytest.mark.parametrize(
    "told",
    [
        *({}, {"class": "os.system", "fields": {}}, {"constant": 99}, {"constant": None}, {"tuple": 1}),
        *({"dict": [[1]]}, {"dict": [[{"dict": []}, 1]]}, {"array": "7", "scalar": False}, {"odd": 1}),
        *({"error": "SystemExit", "message": "", "fault": ""}, {"error": "UsageError"}),
        {"class": "ropeaudit.rope.setting.RopeSetting", "fields": {"head_dim": "wide"}},
        {"class": "ropeaudit.rope.setting.RopeSetting", "fields": {"of": 1}},
        {"class": "ropeaudit.rope.setting.RopeSetting", "fields": [1]},
    ],
)
def test_what_nobody_of_ours_sends_is_malformed(told) -> None:
    with pytest.raises(Malformed):
        VALUES.unpacked([told], {})
