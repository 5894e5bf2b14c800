"""The errors that a user can cause and cure."""


class UserError(ValueError):
    """Names the offending value and the remedy; the command line prints it and exits with 2."""


class DataError(UserError):
    """Data that cannot be used; the message names the file and the remedy."""


class CalibrationWarning(UserWarning):
    """Data that weaken what is fitted to them; names the number that shows it, and the remedy."""
