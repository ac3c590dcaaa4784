"""What a policy imitates: demonstrations and stored successes as token sequences. Import what you need from the modules."""
