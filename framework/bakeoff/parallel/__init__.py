"""Several processes that train one model: how it is laid out over them, what they send each other, what is kept."""
