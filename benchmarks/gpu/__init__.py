"""What runs on one GPU: `python -m benchmarks.gpu --help`."""
