"""Providers that scripts of the older library name, and that this one has none of.

Each name gives a value that keeps what it is given. Whoever wants machines of it is told what serves instead, and
``--provider`` puts another provider in its place. A name more is a class more in ``names.py``.
"""
