"""`python -m bakeoff` is the command line."""

from bakeoff.cli.main import run

run()
