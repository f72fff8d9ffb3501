"""Ranks that know each other, and the lock that has one client at a time start them."""
