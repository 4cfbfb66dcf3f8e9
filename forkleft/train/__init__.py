"""Training: from a recipe and rows of data to updates of the student, and what a run leaves behind."""
