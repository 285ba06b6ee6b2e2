"""Cases in, records out: audits, sweeps of them, what is compared between them."""
