"""Who owns the failure of a program or a judge model: the source itself, or what the policy left for it to judge.

Role: `ask_with_control` asks a source about an episode. Rule: where the source fails on the episode, it is asked about a control that the
policy had no part in. Where it fails there, too, it is broken, and the episode is masked. Where it answers, the episode is put to it once
more, because the failure may have passed; a second failure is what the policy caused, and scores 0 with that cause. This is the rule of
environments for evaluators that raise (`dart_envs.envs`). Non-goals: services that do not answer (`RewardError`), which are masked at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from dart_agent.rewards.source import EpisodeRefusedError, RewardError, Verdict


async def ask_with_control(
    ask: Callable[[], Awaitable[Verdict]], ask_control: Callable[[], Awaitable[object]]
) -> Verdict:
    """Ask a source about an episode.

    Args:
        ask: Asks about the episode.
        ask_control: Asks about an episode of the same task that the policy had no part in; its verdict does not matter.

    Returns:
        The verdict; 0 with the cause where the source fails on this episode and not on the control.

    Raises:
        RewardError: The source is at fault.
    """
    try:
        return await ask()
    except EpisodeRefusedError as error:
        failure = error
    try:
        await ask_control()
    except RewardError:
        raise RewardError(f"{failure}; it fails on an episode without anything of the policy, too") from None
    try:
        return await ask()
    except EpisodeRefusedError as error:
        return Verdict(0.0, error.details, f"{error}; it judged an episode without anything of the policy")
