"""Errors that are the user's to mend: one message, exit code 2, no traceback."""


class UserError(ValueError):
    """Something that the user wrote or lacks; the message says what, where, and what would be right."""

    told = False
    """Whether it was said already, here or by another process of the same job."""


class RecipeError(UserError):
    """A recipe that cannot be used as it stands; lists every slip found, with its place."""


class RegistryError(UserError):
    """A name that no component, or more than one, answers to."""


class CapabilityError(UserError):
    """A demand that a part does not meet: names the part, the demand and the alternatives."""


class MissingExtra(UserError):
    """An optional dependency is not installed; the message holds the pip line that adds it."""

    def __init__(self, what: str, extra: str):
        super().__init__(f"{what} needs an optional dependency; install it with: pip install 'bakeoff[{extra}]'")
