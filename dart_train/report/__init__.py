"""The report of a run: figures, paired evaluation, the HTML page."""
