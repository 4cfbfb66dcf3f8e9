"""The names of the files and folders of a study, by which it is known."""

# In the folder of a study: what it consists of, and its results.
STUDY = "study.json"
RESULTS = "results.json"
# Beside the folders of studies: what they train and evaluate.
CELLS = "cells"
