"""What the studies showed on the lab: their results, the claims that they judge, and the page `docs/results.md`."""
