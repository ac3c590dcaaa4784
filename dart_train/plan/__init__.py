"""What a recipe will take: memory, disk and time of each component, before anything starts (`dart-train plan`)."""
