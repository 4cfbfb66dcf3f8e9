"""Measuring models: protocols, results and honest statistics."""
