"""The error that a user can cause and cure."""

__all__ = ["UserError"]


class UserError(ValueError):
    """Names the offending value and the remedy; the command line prints it and exits with 2."""
