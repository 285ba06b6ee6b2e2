"""The manifest of a case of vectors.

`manifest.json` says all that a kernel and its judge need; `manifest.txt` says the same, a key and a value a
line, for programs without JSON. The parameters of a case determine the names and shapes of its files.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from typing import Any

from ropeaudit.arithmetic.formats import parse
from ropeaudit.conformance.case_spec import BATCH, INTEGERS, WANTS, CaseSpec, Entry
from ropeaudit.errors import BadInput, RopeAuditError
from ropeaudit.rope import scaling
from ropeaudit.rope.scaled import attention_factor
from ropeaudit.rope.setting import RopeSetting

FORMAT, VERSION = "ropeaudit-vectors", 1
MANIFEST, FLAT = "manifest.json", "manifest.txt"
TENSORS, RETURNED = "inputs.safetensors", "outputs.safetensors"


def sha256(content: bytes) -> str:
    """Return "sha256:" and the digest, as sha256sum writes it."""
    return "sha256:" + hashlib.sha256(content).hexdigest()


def manifest(spec: CaseSpec, digests: Mapping[str, str]) -> dict[str, Any]:
    """Return what manifest.json holds. digests: of the files that are given, by name."""

    def given(files: Mapping[str, Entry]) -> dict[str, Entry]:
        return {name: {**file, "digest": digests[file["file"]]} for name, file in files.items()}

    calls = [
        {
            "offset": offset,
            "inputs": given(spec.call_inputs(offset)),
            "outputs": spec.outputs(offset),
        }
        for offset in spec.offsets
    ]
    content = {
        **_parameters(spec),
        "inputs": given(spec.inputs()),
        "calls": calls,
        "safetensors": {"inputs": TENSORS, "digest": digests[TENSORS], "outputs": RETURNED},
    }
    return content | {"digest": digest_of(content)}


def _parameters(spec: CaseSpec) -> dict[str, Any]:
    setting = spec.setting
    parameters = {
        name: list(value) if isinstance(value, tuple) else value
        for name, value in setting.scaling.parameters().items()
    }
    return {
        "format": FORMAT,
        "version": VERSION,
        "want": spec.want,
        "model": spec.model,
        "dtype": spec.dtype.name,
        "batch": BATCH,
        "heads": spec.heads,
        "kv_heads": spec.kv_heads,
        "seq_len": spec.seq_len,
        "head_dim": setting.head_dim,
        "rotary_dim": setting.rotary_dim,
        "layout": setting.layout,
        "base": setting.base,
        "softmax_scale": setting.scale,
        "scaling": {"kind": setting.scaling.kind, **parameters},
        "context": spec.context,
        "attention_factor": attention_factor(setting.scaling),
        "positions_dtype": spec.positions,
        "tables": spec.tables,
        "seed": spec.seed,
        "offsets": list(spec.offsets),
    }


def digest_of(content: Mapping[str, Any]) -> str:
    """Return the digest of a manifest, its own left out."""
    rest = {name: value for name, value in content.items() if name != "digest"}
    return sha256(json.dumps(rest, sort_keys=True, separators=(",", ":")).encode())


def as_json(content: Mapping[str, Any]) -> bytes:
    """Return the bytes of manifest.json: a parameter, a file or a call on a line."""
    lines = [f"{json.dumps(name)}: {_nested(value)}" for name, value in content.items()]
    return ("{\n" + ",\n".join(lines) + "\n}\n").encode()


def _nested(value: Any) -> str:
    if isinstance(value, dict) and value and all(isinstance(item, dict) for item in value.values()):
        items = [f"{json.dumps(name)}: {json.dumps(item)}" for name, item in value.items()]
        return "{\n  " + ",\n  ".join(items) + "\n}"
    if isinstance(value, list) and value and all(isinstance(item, dict) for item in value):
        return "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n]"
    return json.dumps(value)


def flat(content: Mapping[str, Any]) -> bytes:
    """Return the bytes of manifest.txt: a key and a value a line, no value with a blank in it."""
    lines = []
    for name, value in content.items():
        if name in ("inputs", "calls", "safetensors", "offsets", "scaling", "digest"):
            continue
        lines.append(f"{name} {_word(value)}")
    lines += [f"{name} {_word(value)}" for name, value in _scaling_lines(content["scaling"])]
    lines += [f"calls {len(content['offsets'])}", *(f"offset {offset}" for offset in content["offsets"])]
    return ("\n".join([*lines, f"digest {content['digest']}"]) + "\n").encode()


def _scaling_lines(values: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    yield "scaling", values["kind"]
    for name, value in values.items():
        if isinstance(value, list):
            yield from ((f"scaling.{name}.{number}", item) for number, item in enumerate(value))
        elif name != "kind":
            yield f"scaling.{name}", value


def _word(value: Any) -> str:
    """Return a value as C reads it: numbers in full, true and false as 1 and 0, names without blanks."""
    if isinstance(value, bool):
        return str(int(value))
    return repr(value) if isinstance(value, float) else "_".join(str(value).split())


def spec_of(content: Mapping[str, Any]) -> CaseSpec:
    """Return the parameters of a case that a manifest holds. Raises: BadInput, in words without its name."""
    try:
        shape = dict(content["scaling"])
        scale = scaling.from_mapping(str(shape.pop("kind")), shape)
        setting = RopeSetting.of(
            _whole(content, "head_dim"),
            _whole(content, "rotary_dim"),
            float(content["base"]),
            content["layout"],
            float(content["softmax_scale"]),
            scale,
            scale.length_for(_whole(content, "context")),
        )
        spec = CaseSpec(
            setting=setting,
            dtype=parse(str(content["dtype"])),
            heads=_whole(content, "heads"),
            kv_heads=_whole(content, "kv_heads"),
            seq_len=_whole(content, "seq_len"),
            seed=_whole(content, "seed"),
            offsets=tuple(_integer(offset) for offset in content["offsets"]),
            context=_whole(content, "context"),
            want=str(content["want"]),
            positions=str(content["positions_dtype"]),
            tables=content["tables"] is True,
            model=str(content["model"]),
        )
    except RopeAuditError as error:
        raise BadInput(str(error)) from None
    except KeyError as error:
        raise BadInput(f"{error.args[0]} is missing") from None
    except (TypeError, ValueError, OverflowError, AttributeError) as error:
        raise BadInput(f"a parameter is of a wrong type ({error})") from None
    if spec.want not in WANTS or spec.positions not in INTEGERS or spec.offsets[:1] != (0,):
        raise BadInput("want, positions_dtype or offsets are not those of a case")
    return spec


def _integer(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise ValueError(f"{value!r} is not a whole number")
    return value


def _whole(content: Mapping[str, Any], name: str) -> int:
    value = _integer(content[name])
    if not 0 <= value < 2**63:
        raise ValueError(f"{name} {value}")
    return value
