import json

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
