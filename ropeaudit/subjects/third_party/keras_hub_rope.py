"""keras-hub: its layer RotaryEmbedding, its class alone, on the backend that keras has."""

from __future__ import annotations

import keras
import numpy as np

from ropeaudit.arithmetic.formats import FloatArray, Format
from ropeaudit.rope.setting import RopeSetting
from ropeaudit.subjects import Positions
from ropeaudit.subjects.third_party import EntryFields, one_file
from ropeaudit.subjects.third_party.adapter import Adapter, Rotation

ENTRIES: tuple[EntryFields, ...] = (
    {
        "name": "keras-hub",
        "needs": ("keras_hub", "keras"),
        "layouts": ("half",),
        "dtypes": ("float32", "float16", "bfloat16"),
        "calls": "layers.RotaryEmbedding of src/layers/modeling/rotary_embedding.py, the class alone, "
        "on the backend that KERAS_BACKEND names",
    },
)

_PLACE = "src/layers/modeling/rotary_embedding.py"


class KerasHub(Adapter):
    """layers.RotaryEmbedding in the dtype of x, with positions."""

    scalings = ("default", "linear")

    @property
    def engine(self) -> str:  # type: ignore[override]
        """The backend of keras."""
        return str(keras.backend.backend())

    def instance(self, setting: RopeSetting, dtype: Format) -> Rotation:
        """Return the function of a new layer for each dtype."""
        given = {"keras": keras, "ops": keras.ops, "np": np}
        cls = one_file.definitions("keras_hub", _PLACE, ["RotaryEmbedding"], given)["RotaryEmbedding"]

        def rotate(x: FloatArray, positions: Positions, fmt: Format) -> FloatArray:
            layer = cls(setting.base, setting.scaling.stretch, dtype=fmt.name)
            rows = keras.ops.cast(x.transpose(1, 0, 2)[None].astype(np.float32), fmt.name)
            rotated = keras.ops.cast(layer(rows, positions=positions.astype(np.int32)), "float32")
            back: FloatArray = np.asarray(keras.ops.convert_to_numpy(rotated))[0].transpose(1, 0, 2)
            return back

        return rotate


IMPLEMENTATIONS = {"keras-hub": KerasHub}
