from commands import run


def test_an_autoregressive_checkpoint_becomes_a_student(capsys, tmp_path):
    from forkleft import load_student
    from forkleft.lab.models import model_path

    words = ("convert", "--model", str(model_path("teacher-weak")), "--family", "bd3lm", "--block-size", "8")
    code, out, _ = run(capsys, *words, "--output", str(tmp_path / "one"), "--mask-token", "<|mask|>")
    assert (code, "a student of family bd3lm" in out) == (0, True)
    student = load_student(tmp_path / "one")
    assert (student.family.block_size, student.vocabulary.mask_id) == (8, 1)
    # By its id, too; and in another precision.
    code, _, _ = run(capsys, *words, "--output", str(tmp_path / "two"), "--mask-token", "1", "--dtype", "bfloat16")
    assert code == 0
    assert load_student(tmp_path / "two").vocabulary.mask_id == 1
    assert "bfloat16" in (tmp_path / "two" / "config.json").read_text()
