"""What each part of the curation is worth for learning: training runs that differ in it, on simulated dialogs."""
