"""Griffin's recurrent mixer."""

BAKEOFF_API = 1
