"""What this build costs beside stock's. `python -m benchmarks` runs everything, `--write` also writes README.md."""
