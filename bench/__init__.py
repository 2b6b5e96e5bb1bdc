"""Measurements that print tables; none of them is a test."""
