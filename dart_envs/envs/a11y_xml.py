"""OSWorld's XML form of the accessibility tree, as an observation has it.

Role: ask the guest agent for it and read its answer. Rule: an answer without a tree is a `GuestError`; whose fault it is, the core decides.
Non-goals: the tree's other forms (`LeaseLike.a11y`).
"""

from __future__ import annotations

from dart_envs.errors import GuestError
from dart_envs.farm.base import LeaseLike
from dart_envs.farm.transport import malformed_answer_error
from dart_server.wire.guest_answers import JsonLimit, MalformedAnswer, parse_object

TREE_LIMIT = JsonLimit(32 * 1024**2, depth=2, values=16)
"""OSWorld's tree: XML in one text."""


async def read_a11y_xml(lease: LeaseLike) -> str:
    """Return the accessibility tree in OSWorld's XML form.

    Args:
        lease: The desktop.

    Returns:
        The XML text.

    Raises:
        GuestError: If the answer has no tree.
        DesktopFailedError: If the answer is malformed.
    """
    reply = await lease.guest("GET", "/accessibility")
    try:
        return str(parse_object(reply.content, TREE_LIMIT)["AT"])
    except MalformedAnswer as error:
        if reply.status == 200:
            raise malformed_answer_error(error) from error
        raise GuestError(f"The accessibility tree did not come (status {reply.status}).", code="bad_tree") from error
    except KeyError as error:
        raise GuestError(f"The accessibility tree did not come (status {reply.status}).", code="bad_tree") from error
