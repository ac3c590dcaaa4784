"""dart-hostd: the one root process of a farm. Standard library only, so that what runs as root stays small.

Reading order: `verbs` (what may be asked), `server` (the socket), `containers` (what is done), `mounts`, `cgroups`,
`runc`, `netns` (how), `tools` (CRIU for the host), `doctor` (what the host has).
"""
