"""The one error of this folder."""


class ReleaseError(Exception):
    """A release that cannot be made, or that is not what it says. The message is one sentence."""
