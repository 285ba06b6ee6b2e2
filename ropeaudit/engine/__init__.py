"""The measurement of drift: tiles of scores, statistics of their differences, rows after softmax."""
