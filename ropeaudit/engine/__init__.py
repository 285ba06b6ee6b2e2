"""What is measured and how: tiles of scores, statistics of their differences, rows after softmax."""
