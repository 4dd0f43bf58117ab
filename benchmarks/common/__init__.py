"""What several benchmarks share: models under one small interface, and tables."""
