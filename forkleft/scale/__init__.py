"""What a run needs before it is started: work, memory and time, computed from a recipe and `config.json` files."""
