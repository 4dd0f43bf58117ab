"""Linear attention: mixers whose state is a matrix that keys write and queries read."""

BAKEOFF_API = 1
