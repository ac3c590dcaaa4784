"""How a run stands, while it goes on and afterwards (`dart-train watch`)."""
