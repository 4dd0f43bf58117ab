"""Models that look things up: embedders and searches, and the ways in which a model takes in what was found."""

BAKEOFF_API = 1
