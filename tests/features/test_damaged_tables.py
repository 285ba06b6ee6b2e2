"""Tables that were damaged are named, whatever holds them, and those beside them that are right stay so."""

import damaged_tables
import pytest
from command_line import ran
from damaged_tables import BASE, DAMAGES, HOLDERS
from optional import needs

import ropeaudit
from ropeaudit.recognition.diagnosis import codes

pytestmark = needs("onnx")


def audited(folder, holder, damage, base):
    """Return the audit of damaged tables, and which buffer should be cos, and which sin."""
    spec, names = HOLDERS[holder](folder, *damage.change(*damaged_tables.tables()))
    return ropeaudit.module(spec, base=base), names, spec


def named(folder, holder, damage, base):
    """Whether everything that was damaged is named, and nothing else blamed."""
    audit, names, _ = audited(folder, holder, damage, base)
    expected = damage.codes if base or damage.guessed is None else damage.guessed
    assert {one.stored.name for one in audit.buffers} == set(names)
    for one in audit.buffers:
        side = names[one.stored.name]
        assert one.what == side
        if side in damage.sides:
            found = one.diagnosis if one.wrong else one.table and one.table.diagnosis
            assert set(codes(found).split("+")) & set(expected), one.finding
            assert not damage.entries or tuple(found.values["entries"]) == damage.entries
        else:
            assert set(codes(one.diagnosis).split("+")) == set(damage.beside or ("",)), one.finding
            assert one.agrees is not False or damage.beside
    return audit


def cases(damages, fast):
    return [
        pytest.param(holder, name, marks=() if holder in fast else pytest.mark.slow)
        for holder in HOLDERS
        for name in damages
    ]


@pytest.mark.parametrize(("holder", "name"), cases(DAMAGES, ("safetensors",)))
def test_damage_is_named(holder, name, tmp_path) -> None:
    audit = named(tmp_path, holder, DAMAGES[name], BASE)
    assert audit.wrong


@pytest.mark.parametrize(("holder", "name"), cases(DAMAGES, ("onnx",)))
def test_damage_is_named_without_a_base(holder, name, tmp_path) -> None:
    """What is that of a base at other positions is named, and without a base it is not judged."""
    audit = named(tmp_path, holder, DAMAGES[name], None)
    assert audit.wrong or not audit.judged


@pytest.mark.parametrize("base", [BASE, None])
@pytest.mark.parametrize("holder", HOLDERS)
def test_right_tables_stay_right(holder, base, tmp_path) -> None:
    spec, names = HOLDERS[holder](tmp_path, *damaged_tables.tables())
    audit = ropeaudit.module(spec, base=base)
    assert {one.stored.name: one.what for one in audit.buffers} == names
    assert (audit.wrong, audit.judged) == (False, True)
    assert {one.agrees for one in audit.buffers} == {True if base else None}


def test_a_table_of_other_positions_is_not_judged_without_a_base(tmp_path, capsys) -> None:
    spec, _ = HOLDERS["safetensors"](tmp_path, *DAMAGES["shifted by one"].change(*damaged_tables.tables()))
    said = ran(capsys, ["module", spec], 1).out
    assert "nothing was judged" in said
    assert "assumed         base 500000, positions +1, from the values" in said
    assert "--config, --model or --base says what is right" in said


def test_a_module_that_takes_its_tables_in_columns_is_right(tmp_path) -> None:
    """What it returns is right: another order of axes is no fault then."""
    cos, sin = damaged_tables.tables()
    spec, _ = HOLDERS["module"](tmp_path, cos.T.copy(), sin.T.copy())
    file = tmp_path / "rope.py"
    code = file.read_text()
    for name in ("cos_cached", "sin_cached"):
        code = code.replace(f"self.{name}[position_ids]", f"self.{name}.T[position_ids]")
    file.write_text(code)
    audit = ropeaudit.module(spec, base=BASE)
    assert (audit.wrong, audit.judged) == (False, True)
