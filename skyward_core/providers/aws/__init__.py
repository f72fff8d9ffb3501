"""Machines rented from Amazon EC2."""
