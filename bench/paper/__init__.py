"""Every system that the paper describes or compares with, swept and measured on the same data."""
