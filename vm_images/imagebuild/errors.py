"""What a build may tell the user."""


class BuildError(Exception):
    """The build cannot go on; the text is one sentence with the fix."""


class UsageError(BuildError):
    """The request itself is wrong (unknown recipe, bad field, missing tool): nothing was started."""
