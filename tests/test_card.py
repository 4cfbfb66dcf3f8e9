from trainer_runs import ROWS, make_trainer


def test_a_run_leaves_a_card_beside_its_weights(tmp_path):
    trainer = make_trainer(
        tmp_path, max_steps=1, eval_strategy="steps", eval_steps=1, trainer={"eval_dataset": ROWS[:3]}
    )
    trainer.train()
    page = (tmp_path / "README.md").read_text()
    assert page.startswith("---\nlibrary_name: transformers\n")
    for told in ("1 of 4 questions, 12 in all", "0.5, 0.02, 0.1, 0.1", "high_entropy, 2 passes a block", "% of 3"):
        assert told in page
