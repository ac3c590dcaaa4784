"""The report of a run: figures, paired evaluation, throughput, examples, the HTML page."""
