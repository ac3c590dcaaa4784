"""Acting through the head: actions that name their targets, and the policy that finds them."""
