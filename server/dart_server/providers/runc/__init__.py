"""Provider `runc`: desktops as containers under the root helper, with live snapshots."""
