"""What the root helper does for an ordinary user, who is not trusted with anything of root's."""
