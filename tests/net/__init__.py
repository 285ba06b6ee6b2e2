"""The net at the doors: what comes out of the command line and of the API, whatever stands behind them."""
