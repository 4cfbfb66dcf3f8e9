"""Benchmarks: ratios measured in one run, each after asserting that both sides give the same numbers.

make bench
"""
