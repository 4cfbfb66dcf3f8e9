"""Training: from a recipe and rows of data to updates of the student, and the files that a run writes."""
