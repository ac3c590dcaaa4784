"""Live desktops of one provider: restore, fork, step, frames, weight."""
