"""What an exploration is stored in: tables, their layouts and rows, and the locks of those who write."""
