from forkleft.report.evaluations import evaluated, items_of


def test_evaluations_are_points_by_update():
    logged = [
        {"step": 0, "eval_accuracy": 0.5, "eval_count": 4},
        {"step": 1, "loss": 1.0, "student_accuracy": 0.9},
        {"step": 2, "eval_accuracy": 0.75, "eval_count": 4},
        {"step": 2, "eval_chain_3_accuracy": 0.25},
    ]
    assert evaluated(logged) == {"held-out": {0: 0.5, 2: 0.75}, "held-out chain_3": {2: 0.25}}
    assert items_of(logged, "held-out") == {0: 4, 2: 4}
    assert items_of(logged, "held-out chain_3") == {}
