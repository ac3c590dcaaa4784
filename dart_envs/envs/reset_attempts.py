"""How often a reset is tried.

Role: `ResetAttempts`, which says after each failure whether another desktop is worth taking. Rule: a fault of the farm or of a desktop
is tried again; what would repeat itself is not. Non-goals: resetting (`dart_envs.envs.core`).
"""

from __future__ import annotations

from dart_envs.errors import DartEnvError, FarmError, SetupError
from dart_envs.farm.transport import NO_DESKTOP_CODES, NON_RETRYABLE_CODES

RESET_ATTEMPTS = 3


class ResetAttempts:
    """The failures of one reset.

    Attributes:
        failed: How many attempts have failed.
    """

    def __init__(self) -> None:
        self.failed = 0
        self._failed_step: int | None = None

    def is_final(self, error: DartEnvError) -> bool:
        """Note a failure, and say whether it is the reset's result.

        Args:
            error: Why the attempt failed.

        Returns:
            True after `RESET_ATTEMPTS` attempts, for a refusal of the farm that stays, and for a setup step that missed its
            success condition on two desktops, one after the other.
        """
        self.failed += 1
        failed_before, self._failed_step = (
            self._failed_step,
            error.failed_step if isinstance(error, SetupError) else None,
        )
        repeated = self._failed_step is not None and self._failed_step == failed_before
        return self.failed == RESET_ATTEMPTS or repeated or _is_permanent(error)


def _is_permanent(error: DartEnvError) -> bool:
    return isinstance(error, FarmError) and error.code in NON_RETRYABLE_CODES | NO_DESKTOP_CODES
