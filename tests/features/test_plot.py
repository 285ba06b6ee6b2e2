"""Pictures: what is drawn, asked of the figure itself; files, titles, bad input."""

import itertools
import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from command_line import ran

from ropeaudit import parse, shift
from ropeaudit.audits.cases import Case
from ropeaudit.errors import UsageError
from ropeaudit.features.plot import pictures as plots
from ropeaudit.main import main
from ropeaudit.recipes import named
from ropeaudit.reports import charts, reading
from ropeaudit.reports.numbers import part, short

pytest.importorskip("matplotlib")
SMALL = ["--heads", "2", "--seq-len", "40"]
OFFSETS = (0, 1, 64, 4096, 131072)


@pytest.fixture(autouse=True)
def _of_the_default_size() -> Iterator[None]:
    with charts.sized(None):
        yield


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    built = tmp_path_factory.mktemp("plots")
    explain = ["explain", *SMALL, "--recipe", "uniform", "--dtype", "bf16,fp16", "--offset", "1000"]
    limits = ["limit", "--seq-len", "16", "--heads", "1", "--kv-heads", "1", "--up-to", "512"]
    drift = ["shift", *SMALL, "--offset", "0,1,64,4k,128k", "--dtype", "fp16,bf16"]
    limits += ["--model", "llama-3.1-8b,qwen3-8b", "--recipe", "uniform"]
    for name, line in {
        "drift": [*drift, "--recipe", "uniform,hf"],
        "stages": explain,
        "frequencies": [*explain, "--by", "pair"],
        "decay": ["decay", "--distance", "0-5000", "--base", "1e4,5e5"],
        "limit": [*limits, "--dtype", "float8_e4m3fn,bf16"],
    }.items():
        assert main([*line, "-q", "-o", f"{built / name}.json"]) == 0
    return built


@pytest.fixture(scope="module")
def sweep() -> list[dict]:
    return [r.as_dict() for r in shift(OFFSETS, ("fp16", "bf16"), ["uniform", "hf"], heads=2, seq_len=40)]


def records(path: Path, name: str = "records") -> list[dict]:
    return json.loads(path.read_text(encoding="utf-8"))[name]


def lines(axes) -> dict:
    return {line.get_label(): line for line in axes.get_lines()}


def words(axes) -> list[str]:
    """Return the words to the right of bars."""
    return [label.get_text() for label in axes.child_axes[0].get_yticklabels()]


def test_drift_draws_every_row(sweep) -> None:
    picture = charts.drift(sweep, "x")
    (axes,) = picture.figure.axes
    for subject in ("uniform", "hf"):
        for dtype in ("float16", "bfloat16"):
            line = lines(axes)[f"{subject} {dtype}"]
            rows = [row for row in sweep if (row["implementation"], row["dtype"]) == (subject, dtype)]
            assert list(line.get_xdata()) == list(OFFSETS)
            np.testing.assert_array_equal(line.get_ydata(), [row["drift_rms"] for row in rows])
    assert (axes.get_xscale(), axes.get_yscale()) == ("symlog", "log")
    assert axes.get_xlabel() == "offset added to every position (tokens)"
    assert axes.get_ylabel() == "RMS drift (score units)"
    assert picture.figure.get_suptitle() == picture.title == "x"


def test_lost_scores_are_marked_at_the_edge_in_the_colour_of_their_line(sweep) -> None:
    (axes,) = charts.drift(sweep, "x").figure.axes
    line = lines(axes)["uniform float16"]
    [mark] = [one for one in axes.get_lines() if one.get_marker() == "X"]
    assert (list(mark.get_xdata()), list(mark.get_ydata())) == ([131072], [1.0])
    assert mark.get_transform() == axes.get_xaxis_transform()
    assert (mark.get_label(), mark.get_color()) == ("nan or infinite scores", line.get_color())
    (axes,) = charts.drift([{**row, "drift_rms": 0.0} for row in sweep], "x").figure.axes
    assert set(lines(axes)["no drift at all"].get_ydata()) == {0.0}


def test_what_was_to_be_expected_is_drawn_too(sweep) -> None:
    rows = [row for row in sweep if (row["implementation"], row["dtype"]) == ("hf", "bfloat16")]
    (axes,) = charts.drift(rows, "x").figure.axes
    for column, label in (
        ("predicted_rms", "predicted RMS"),
        ("bound_max", "bound of the largest |drift|"),
        ("floor_rms", "floor: RMS drift at offset 0"),
    ):
        dash = lines(axes)[label].get_linestyle()
        drawn = [one for one in axes.get_lines() if one.get_linestyle() == dash and len(one.get_xdata())]
        assert [row[column] for row in rows] in [list(one.get_ydata()) for one in drawn]


def test_a_size_that_leaves_no_room_is_said(sweep) -> None:
    rows = [{**row, "seed": seed} for seed in range(6) for row in sweep]
    with charts.sized((3.5, 2.5)):
        charts.encoded(charts.drift(sweep, "x"), "png")
    with charts.sized((3.5, 1.0)), pytest.raises(UsageError, match=r"no room for the axes in 3.5 x 1 inches"):
        charts.encoded(charts.drift(rows[: len(sweep)], "x"), "png")


@pytest.mark.parametrize("kind", ["drift", "decay"])
def test_labels_of_a_paper_sized_figure_do_not_touch(kind, folder) -> None:
    with charts.sized((3.5, 2.5)):
        picture = plots.picture(kind, str(folder / f"{kind}.json"))
        charts.encoded(picture, "png")
        for axes in picture.figure.axes:
            shown = [one.label1 for one in axes.xaxis.get_major_ticks() if one.label1.get_visible()]
            within = [
                text for text in shown if text.get_text() and axes.viewLim.containsx(text.get_position()[0])
            ]
            boxes = sorted((text.get_window_extent() for text in within), key=lambda box: box.x0)
            assert all(left.x1 < right.x0 for left, right in itertools.pairwise(boxes))
            assert bool(boxes) == (axes is picture.figure.axes[-1])  # panels share the labels of the last one
        for legend in picture.figure.legends:
            assert legend.get_window_extent().height < 0.35 * picture.figure.bbox.height


def test_the_first_inexact_position_of_each_format_is_marked(sweep) -> None:
    (axes,) = charts.drift(sweep, "x").figure.axes
    assert {text.get_text(): text.get_position()[0] for text in axes.texts} == {"a": 257 - 39, "b": 2049 - 39}
    assert {name for name in lines(axes) if name[1:2] == ":"} == {
        "a: offset 218; position 257 is inexact in bfloat16",
        "b: offset 2,010; position 2,049 is inexact in float16",
    }  # hf keeps positions in float32, whose first one is past these offsets
    assert parse("bf16").first_inexact_integer == 257


def test_legends_cover_no_line_and_too_many_lines_are_said(sweep) -> None:
    rows = [{**row, "seed": seed} for seed in range(9) for row in sweep]
    picture = charts.drift(rows, "x")
    (axes,) = picture.figure.axes
    plotted = [name for name in lines(axes) if "seed=" in name]
    assert len(plotted) == charts.MOST_LINES
    assert picture.notes[0].startswith("12 of 36 lines, those that drift least, are not drawn, for 24 fit")
    picture.figure.draw_without_rendering()
    (legend,) = picture.figure.legends
    box = legend.get_window_extent()
    assert axes.get_legend() is None
    assert not box.overlaps(axes.get_window_extent())
    assert picture.figure.bbox.x0 <= box.x0
    assert box.x1 <= picture.figure.bbox.x1  # it is not cut
    looks = [tuple(map(str, charts.line_look(number).values())) for number in range(280)]
    assert len({look[:3] for look in looks}) == 280


def test_stages(folder) -> None:
    picture = plots.picture("stages", str(folder / "stages.json"))
    rows = records(folder / "stages.json")
    assert [axes.get_title(loc="left") for axes in picture.figure.axes] == [
        "uniform bfloat16 at offset 1,000",
        "uniform float16 at offset 1,000",
    ]
    for axes, dtype in zip(picture.figure.axes, ("bfloat16", "float16"), strict=True):
        drawn = [row for row in rows if row["dtype"] == dtype and abs(row["share"]) >= 0.0005]
        shares = {f"{row['stage']} ({row['format']})": row["share"] for row in drawn}
        names = [label.get_text() for label in axes.get_yticklabels()]
        widths = [bar.get_width() for bar in axes.patches]
        assert dict(zip(names, widths, strict=True)) == pytest.approx({k: 100 * v for k, v in shares.items()})
        assert sorted(words(axes)) == sorted(f"{part(row['share'])} {row['cause']}" for row in drawn)
    assert "(%" in picture.figure.axes[-1].get_xlabel()
    assert picture.notes == ["stages that hold less than 0.05 % of the mean square drift are left out"]
    assert picture.title == json.loads((folder / "stages.json").read_text(encoding="utf-8"))["headline"]


def test_undefined_shares_are_marked(tmp_path) -> None:
    path = tmp_path / "x.json"
    case = ["--recipe", "uniform", "--dtype", "fp16", "--offset", "128k"]
    assert main(["explain", *SMALL, *case, "-q", "-o", f"{path}"]) == 0
    (axes,) = plots.picture("stages", str(path)).figure.axes
    assert all(text.startswith("not defined: ") for text in words(axes))
    assert len([mark for mark in axes.get_lines() if mark.get_marker() == "X"]) == len(words(axes)) > 0
    picture = plots.picture("frequencies", str(path))
    assert "nan or infinite" in lines(picture.figure.axes[0])


@pytest.mark.parametrize(("file", "table"), [("stages", "pairs"), ("frequencies", "records")])
def test_frequencies(file, table, folder) -> None:
    picture = plots.picture("frequencies", str(folder / f"{file}.json"))
    (axes,) = picture.figure.axes
    rows = [row for row in records(folder / f"{file}.json", table) if row["dtype"] == "bfloat16"]
    line = lines(axes)["uniform bfloat16 at offset 1,000"]
    assert list(line.get_ydata()) == [row["part_rms"] for row in rows[:-1]]
    assert list(line.get_xdata()) == [row["wavelength"] for row in rows[:-1]]
    colour = line.get_color()
    [level] = [one for one in axes.get_lines() if one.get_color() == colour and one is not line]
    assert list(level.get_ydata()) == [rows[-1]["part_rms"]] * 2
    assert rows[-1]["pair"] in lines(axes)
    assert picture.title == json.loads((folder / f"{file}.json").read_text(encoding="utf-8"))["headline"]
    assert "tokens" in axes.get_xlabel()


def test_decay(folder) -> None:
    picture = plots.picture("decay", str(folder / "decay.json"))
    top, bound, men = picture.figure.axes
    rows = [
        r for r in records(folder / "decay.json") if r["setting"] == "base=10000" and r["source"] == "ones"
    ]
    assert len(rows) > 10
    for axes, column, label in (
        (top, "rms_relative", "base=10000 ones"),
        (bound, "bound", "base=10000"),
        (men, "men_sum", "base=10000"),
    ):
        line = lines(axes)[label]
        assert list(line.get_xdata()) == [row["distance"] for row in rows]
        assert list(line.get_ydata()) == [row[column] for row in rows]
    assert len(lines(top)) == 5  # two settings, two sources, zero
    assert men.get_title(loc="left").endswith("●: first negative")
    dots = [(*line.get_xdata(), *line.get_ydata()) for line in men.get_lines() if line.get_marker() == "o"]
    assert (1707, 0) in dots
    assert "tokens" in men.get_xlabel()


def test_limit(folder) -> None:
    picture = plots.picture("limit", str(folder / "limit.json"))
    (axes,) = picture.figure.axes
    rows = records(folder / "limit.json")
    assert [label.get_text() for label in axes.get_yticklabels()] == [
        f"{row['implementation']} {row['dtype']} {row['model']}" for row in rows
    ]
    ends = {bar.get_x() + bar.get_width() for bar in axes.patches}
    proved, seen = ({row[f"{what}_position"] or 1 for row in rows} for what in ("proved", "measured"))
    assert sorted(ends) == pytest.approx(sorted(proved | seen))
    marks = [mark.get_xdata()[0] for mark in axes.get_lines() if mark.get_marker() == "X"]
    assert marks == [row["failure_position"] for row in rows if row["first_failure_seen"] is not None] != []
    never = [row for row in rows if row["proved_position"] is None]
    assert words(axes).count("fails at offset 0") == len(never) > 0
    assert axes.get_xlabel() == "last position that meets drift_relative ≤ 0.01 (tokens)"


def heatmap(recipe: str, dtype: str, offset: int, **case):
    resolved = named(recipe).resolve(parse(dtype))
    return plots.heatmap(Case(seq_len=40, **case), resolved, offset, lambda share: None)


def test_heatmap_is_the_drift_of_the_audit() -> None:
    picture = heatmap("hf", "bf16", 1000, heads=2)
    (record,) = shift(1000, "bf16", "hf", heads=2, seq_len=40)
    axes, bar = picture.figure.axes
    shown = axes.get_images()[0].get_array()
    np.testing.assert_array_equal(shown.mask, np.triu(np.ones((40, 40)), 1))
    assert math.sqrt((shown.compressed() ** 2).mean()) == pytest.approx(record.drift_rms, rel=1e-3)
    place = f"query {record.worst_query} and key {record.worst_key} in head {record.worst_head}"
    assert picture.title.endswith(f"the largest |drift| is {short(record.drift_max)}, of {place}")
    assert "score units" in bar.get_ylabel()


def test_lost_scores_of_a_heatmap_are_red_and_counted() -> None:
    picture = heatmap("uniform", "fp16", 65500, heads=1)
    axes = picture.figure.axes[0]
    shown, lost = (image.get_array() for image in axes.get_images())
    assert f" {lost.count()} of 820 scores" in picture.title
    assert 0 < lost.count() == 820 - shown.count() < 820


def test_the_same_report_gives_the_same_file(folder, tmp_path, capsys) -> None:
    line = ["plot", f"{folder / 'limit.json'}", "--kind", "limit"]
    for name in ("x", "y"):
        seen = ran(capsys, [*line, "-o", f"{tmp_path / name}.svg"])
        written = str(tmp_path / f"{name}.svg")
        assert (seen.out, seen.err.startswith(f"ropeaudit: wrote {written!r}: ")) == ("", True)
    assert (tmp_path / "x.svg").read_bytes() == (tmp_path / "y.svg").read_bytes()


@pytest.mark.parametrize("y", ["drift_relative", "change_rms", "offset"])
def test_any_column_of_numbers_is_drawn(y, folder, tmp_path, capsys) -> None:
    path = f"{folder / 'drift.json'}"
    assert main(["plot", path, "--y", y, "-o", f"{tmp_path / 'x.svg'}"]) == 0
    rows = reading.read(path)
    (axes,) = charts.drift(rows, "x", y).figure.axes
    assert axes.get_ylabel() == y.replace("_", " ")
    drawn = sorted(at for line in axes.get_lines() for at in line.get_ydata() if at == at)
    assert {float(row[y]) for row in rows if row[y] and math.isfinite(row[y])} <= set(drawn)


@pytest.mark.parametrize(
    ("options", "error_line"),
    [
        (["--kind", "stages"], "draws a report of `ropeaudit explain`"),
        (["--y", "verdict"], "unknown --y 'verdict'; known: schema, offset, "),
    ],
)
def test_what_a_report_has_not_is_not_drawn(options, error_line, folder, tmp_path, capsys) -> None:
    line = ["plot", f"{folder / 'drift.json'}", "-o", f"{tmp_path / 'x.svg'}"]
    assert error_line in ran(capsys, [*line, *options], 2).err
    assert list(tmp_path.iterdir()) == []


def test_without_matplotlib_one_is_told_what_to_install(folder, tmp_path, monkeypatch, capsys) -> None:
    from ropeaudit import reports

    monkeypatch.setattr(reports, "find_spec", lambda name: None)
    assert main(["plot", f"{folder / 'drift.json'}", "-o", f"{tmp_path / 'x.svg'}"]) == 2
    assert "a picture needs matplotlib; type: pip install 'ropeaudit[plot]'" in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["limit", "stages"])
def test_names_of_any_length_and_script_are_drawn(kind, folder, tmp_path, capsys) -> None:
    whole = json.loads((folder / f"{kind}.json").read_text(encoding="utf-8"))
    for row in whole["records"]:
        row.update(
            implementation=f"模型{'x' * 3000}{row.get('implementation')}",
            setting=f"{'y' * 3000}{row.get('setting')}",
        )
    path = tmp_path / "long.json"
    path.write_text(json.dumps(whole), encoding="utf-8")
    plotted = plots.picture(kind, str(path))
    was = plots.picture(kind, str(folder / f"{kind}.json"))
    assert sum(len(axes.get_lines()) for axes in plotted.figure.axes) == (
        sum(len(axes.get_lines()) for axes in was.figure.axes)
    )
    assert main(["plot", str(path), "--kind", kind, "-o", f"{tmp_path / 'x.png'}", "-q"]) == 0
    assert capsys.readouterr().err == ""  # no warning of the library that draws


@pytest.mark.parametrize(("column", "value"), [("offset", "x"), ("share", 10**400)])
def test_an_edited_report_is_blamed_in_a_line(column, value, folder, tmp_path, capsys) -> None:
    whole = json.loads((folder / "stages.json").read_text(encoding="utf-8"))
    whole["records"][0][column] = value
    (tmp_path / "x.json").write_text(json.dumps(whole), encoding="utf-8")
    line = ["plot", f"{tmp_path / 'x.json'}", "--kind", "stages", "-o", f"{tmp_path / 'x.svg'}"]
    message = ran(capsys, line, 2).err
    assert "x.json' holds values that no report has" in message
    assert message.count("\n") == 1


def test_title_and_size_are_those_requested(folder, tmp_path, capsys) -> None:
    target = tmp_path / "x.svg"
    line = ["plot", f"{folder / 'decay.json'}", "--kind", "decay", "-o", f"{target}", "--size", "5x4"]
    assert main([*line, "--title", "My own title"]) == 0
    seen = capsys.readouterr().err  # the file and the finding: the title is known to who typed it
    assert seen.startswith(f"ropeaudit: wrote {str(target)!r}: ")
    assert "first negative at 1,707" in seen
    text = target.read_text(encoding="utf-8")
    assert 'width="360pt" height="288pt"' in text  # 72 points an inch
    assert "My own title" in text
    assert main([*line, "--title", "", "-q"]) == 0
    assert "is first negative at" not in target.read_text(encoding="utf-8")
