import json

from matplotlib.figure import Figure
from PIL import Image

from forkleft.report.curves import draw_curves


def test_curves_of_a_run(tmp_path):
    """Also where a route never occurs, and of one update."""
    for updates in (1, 30):
        rows = [
            {
                "step": k + 1,
                "loss": 1 / (k + 1),
                "student_accuracy": k / 30,
                "teacher_accuracy": 1.0,
                "route_ce": k,
                "route_leftopd": 30 - k,
                "route_gold": 0,
                "route_exclude": 0,
                "loss_leftopd": 0.5,
            }
            for k in range(updates)
        ]
        metrics, picture = tmp_path / "metrics.jsonl", tmp_path / "curves.png"
        metrics.write_text("".join(json.dumps(row) + "\n" for row in [*rows, {"step": updates, "train_loss": 1.0}]))
        draw_curves(metrics, picture)
        assert Image.open(picture).size == (1650, 555)


def test_the_picture_shows_the_evaluations(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path: drawn.append(figure))
    row = {"step": 1, "loss": 1.0, "student_accuracy": 0.4, "teacher_accuracy": 1.0}
    row |= {f"route_{name}": 1 for name in ("ce", "leftopd", "gold", "exclude")}
    rows = [{"step": 0, "eval_accuracy": 0.5}, row, {"step": 1, "eval_accuracy": 0.75}]
    metrics = tmp_path / "metrics.jsonl"
    metrics.write_text("".join(json.dumps(row) + "\n" for row in rows))
    draw_curves(metrics, tmp_path / "curves.png")
    accuracy, *others = drawn[0].axes
    (points,) = [line for line in accuracy.lines if line.get_label() == "held-out"]
    assert points.get_xydata().tolist() == [[0, 50], [1, 75]]
    assert all(axes.get_xlim() == (0, 1) for axes in (accuracy, *others))


def test_a_run_that_logged_no_update_has_no_curves(tmp_path):
    (tmp_path / "metrics.jsonl").write_text(json.dumps({"step": 0, "eval_accuracy": 0.5}) + "\n")
    draw_curves(tmp_path / "metrics.jsonl", tmp_path / "curves.png")
    assert not (tmp_path / "curves.png").exists()


def test_curves_of_an_adaptation(tmp_path, monkeypatch):
    drawn = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, path: drawn.append(figure))
    rows = [{"step": 0, "eval_loss": 3.0, "eval_causal_loss": 2.0}]
    rows += [{"step": k, "loss": 1.0, "loss_denoising": 1 / k, "loss_causal": 0.5} for k in (1, 2)]
    rows += [{"step": 2, "eval_loss": 1.0, "eval_causal_loss": 1.5}]
    metrics = tmp_path / "metrics.jsonl"
    for more in ([], [{"step": 2, "eval_accuracy": 0.25}]):
        metrics.write_text("".join(json.dumps(row) + "\n" for row in [*rows, *more]))
        draw_curves(metrics, tmp_path / "curves.png")
    (losses,), (_, accuracy) = (figure.axes for figure in drawn)
    found = {line.get_label(): line.get_xydata().tolist() for line in losses.lines}
    assert found["held-out, denoising"] == [[0, 3], [2, 1]] and found["held-out, next token"] == [[0, 2], [2, 1.5]]
    assert {"denoising", "next token"} <= found.keys()
    assert accuracy.lines[0].get_xydata().tolist() == [[2, 25]]
